"""The policies by name, and the text that sets one: `name` or `name(parameter=value,...)`."""

from __future__ import annotations

import re
from collections.abc import Callable

from tierd.core.errors import InvalidInput
from tierd.core.policy.arc import Arc
from tierd.core.policy.base import Parameters, Policy
from tierd.core.policy.ema import Ema
from tierd.core.policy.lfu import Lfu
from tierd.core.policy.lrfu import Lrfu
from tierd.core.policy.lru import Lru
from tierd.core.policy.random import Random
from tierd.core.policy.s3fifo import S3Fifo
from tierd.core.policy.sieve import Sieve
from tierd.core.policy.sliding_window import SlidingWindow
from tierd.core.policy.streaming import Streaming
from tierd.core.policy.strided import Strided

POLICIES: dict[str, Callable[[Parameters], Policy]] = {
    one.name: one.parse for one in (
        Arc, Ema, Lfu, Lrfu, Lru, Random, S3Fifo, Sieve, SlidingWindow, Streaming, Strided,
    )
}
_SPEC = re.compile(r"\s*([a-z0-9_]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_MOST_CHARACTERS = 1024


def parse(spec: str) -> Policy:
    """The policy that a spec names. InvalidInput names the parameter that is wrong."""
    match = _SPEC.fullmatch(spec) if len(spec) <= _MOST_CHARACTERS else None
    if match is None:
        raise InvalidInput("policy", f"{spec[:80]!r} is not of the form name(parameter=value,...)")
    name, body = match.group(1), match.group(2) or ""
    if name not in POLICIES:
        raise InvalidInput("policy", f"{name!r} is not one of {', '.join(sorted(POLICIES))}")
    parameters = Parameters(name, _split(body))
    policy = POLICIES[name](parameters)
    parameters.finish()
    return policy


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
