"""Policies of other packages, by their entry points.

    [project.entry-points."tierd.policies"]
    per_use = "my_policy:PerUse.parse"

A package is imported when its policy is first named, not before: one that is broken harms nobody who does not ask
for it. Names of tierd's own policies are not taken over. A policy is tried out before it is in force; one that
fails afterwards gives way to LRU in the daemon, and ends a replay.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import EntryPoint, entry_points

from tierd.core.errors import InvalidInput
from tierd.core.policy.guarded import reason_of
from tierd.core.policy.registry import Maker, Told, offer

GROUP = "tierd.policies"


def offer_policies(told: Told | None = None) -> None:
    """Lets specs name the policies of all packages that are installed now. `told`: as `offer` has it."""
    for point in entry_points(group=GROUP):
        offer(point.name, partial(_load, point), told)


def _load(point: EntryPoint) -> Maker:
    try:
        maker = point.load()
    except (Exception, SystemExit) as error:  # whatever an import may raise
        raise InvalidInput("policy", f"{_described(point)} cannot be loaded: {reason_of(error)}") from error
    if not callable(maker):
        raise InvalidInput("policy", f"{_described(point)} is no function of parameters")
    checked: Maker = maker
    return checked


def _described(point: EntryPoint) -> str:
    package = point.dist.name if point.dist else "an unnamed package"
    return f"{point.name!r} ({point.value} of {package})"
