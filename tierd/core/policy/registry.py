"""The policies by name, and the text that sets one: `name` or `name(parameter=value,...)`."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import cast

from tierd.core.errors import InvalidInput
from tierd.core.policy.arc import Arc
from tierd.core.policy.base import Parameters, Policy
from tierd.core.policy.ema import Ema
from tierd.core.policy.gab import Gab
from tierd.core.policy.gittins import Gittins
from tierd.core.policy.guarded import Guarded, reason_of, try_out
from tierd.core.policy.h2o import H2O
from tierd.core.policy.lfu import Lfu
from tierd.core.policy.lrfu import Lrfu
from tierd.core.policy.lru import Lru
from tierd.core.policy.random import Random
from tierd.core.policy.s3fifo import S3Fifo
from tierd.core.policy.scissorhands import Scissorhands
from tierd.core.policy.sieve import Sieve
from tierd.core.policy.sliding_window import SlidingWindow
from tierd.core.policy.snapkv import SnapKV
from tierd.core.policy.streaming import Streaming
from tierd.core.policy.strided import Strided
from tierd.core.policy.tova import Tova

Maker = Callable[[Parameters], Policy]
Told = Callable[[str, str], None]
"""Called with the name of a policy that failed while it was in force, and why."""

POLICIES: dict[str, Maker] = {
    one.name: one.parse for one in (
        Arc, Ema, Gab, Gittins, H2O, Lfu, Lrfu, Lru, Random, S3Fifo, Scissorhands, Sieve, SlidingWindow, SnapKV,
        Streaming, Strided, Tova,
    )
}
_SPEC = re.compile(r"\s*([a-z0-9_]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_MOST_CHARACTERS = 1024
_offered: dict[str, tuple[Callable[[], Maker], Told | None]] = {}
"""Name of a policy of another package -> what loads it, and who is told when it fails."""

_EVERY_POLICY = ("name", "rule", "index", "common", "spec", "ranks", "terms")
_INDEXES = ("classes", "keys", "queues")
"""A policy also has what its index names."""


def offer(name: str, load: Callable[[], Maker], told: Told | None = None) -> None:
    """Adds a policy of another package. `load` is called when it is named; it may raise InvalidInput. `told`: LRU
    takes over when the policy fails, and this is called; without it the failure is raised."""
    _offered[name] = load, told


def parse(spec: str) -> Policy:
    """The policy that a spec names. InvalidInput names the parameter that is wrong."""
    match = _SPEC.fullmatch(spec) if len(spec) <= _MOST_CHARACTERS else None
    if match is None:
        raise InvalidInput("policy", f"{spec[:80]!r} is not of the form name(parameter=value,...)")
    name, body = match.group(1), match.group(2) or ""
    parameters = Parameters(name, _split(body))
    policy = _maker(name)(parameters)
    parameters.finish()
    if policy.index == "queues" and policy.common.admission != "none":
        raise InvalidInput("policy.admission", f"{name} goes by queues, and stores all")
    if policy.index != "classes" and policy.common.fallback != "none":
        raise InvalidInput("policy.fallback", f"{name} goes by {policy.index}: for policies whose index is classes")
    return policy


def _maker(name: str) -> Maker:
    if name in POLICIES:
        return POLICIES[name]
    if name not in _offered:
        raise InvalidInput("policy", f"{name!r} is not one of {', '.join(sorted({*POLICIES, *_offered}))}")
    return partial(_offered_policy, name)


def _offered_policy(name: str, parameters: Parameters) -> Policy:
    """A policy of another package; InvalidInput says what it lacks, or how it fails."""
    load, told = _offered[name]
    try:
        policy = load()(parameters)
        _check_members(name, policy)
        try_out(policy)
        return policy if told is None else cast(Policy, Guarded(policy, partial(told, name)))
    except InvalidInput:
        raise
    except (Exception, SystemExit) as error:
        raise InvalidInput("policy", f"{name!r} fails: {reason_of(error)}") from error


def _check_members(name: str, policy: Policy) -> None:
    index = getattr(policy, "index", None)
    missing = [one for one in _EVERY_POLICY if not hasattr(policy, one)]
    if index is not None and (index not in _INDEXES or not hasattr(policy, index)):
        missing.append(f"{index} (its index)")
    if missing:
        raise InvalidInput("policy", f"{name!r} is no policy: it has no {', '.join(missing)}")
    match = _SPEC.fullmatch(policy.spec) if len(policy.spec) <= _MOST_CHARACTERS else None
    if policy.name != name or match is None or match.group(1) != name:
        raise InvalidInput("policy", f"{name!r} calls itself {policy.name!r}, and its spec {policy.spec[:80]!r}")


def _split(body: str) -> dict[str, str]:
    given: dict[str, str] = {}
    for part in filter(None, (text.strip() for text in body.split(","))):
        key, equals, value = (text.strip() for text in part.partition("="))
        if not equals or not key or not value:
            raise InvalidInput("policy", f"{part!r} is not of the form parameter=value")
        if key in given:
            raise InvalidInput(f"policy.{key}", "given twice")
        given[key] = value
    return given
