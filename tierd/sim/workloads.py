"""Traces that are made rather than read: `name` or `name(parameter=value,...)` in place of a file.

The same spec makes the same trace. What each name makes, and its parameters with their ranges, stand in the
classes of documents.py and conversations.py.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

from tierd.core.errors import InvalidInput
from tierd.sim.conversations import Agents, Chat, MultiTurn
from tierd.sim.documents import ChainedZipf, HotSet, Loop, Recent, ScanPolluted
from tierd.sim.draws import Workload
from tierd.sim.traces import Trace

MOST_ACCESSES = 50_000_000
"""Of a made trace: it takes 8 bytes for each."""
_SPEC = re.compile(r"([a-z-]+)(?:\((.*)\))?")
WORKLOADS: dict[str, type[Any]] = {
    kind.name: kind for kind in (ChainedZipf, ScanPolluted, MultiTurn, Chat, Agents, HotSet, Recent, Loop)
}


def is_workload(text: str) -> bool:
    """Whether this names a workload, rather than a file."""
    match = _SPEC.fullmatch(text.strip())
    return match is not None and match.group(1) in WORKLOADS


def make_trace(spec: str) -> Trace:
    """The trace that a spec names. InvalidInput names the parameter that is wrong."""
    match = _SPEC.fullmatch(spec.strip())
    if match is None or match.group(1) not in WORKLOADS:
        raise InvalidInput("workload", f"{spec[:80]!r} is not {' or '.join(WORKLOADS)}, with (parameter=value,...)")
    kind = WORKLOADS[match.group(1)]
    workload: Workload = kind(**_parameters(kind, match.group(2) or ""))
    if (accesses := workload.accesses()) > MOST_ACCESSES:
        raise InvalidInput("workload", f"{spec} asks for about {accesses:.3g} blocks, over {MOST_ACCESSES:,}")
    return replace(workload.make(), name=spec.strip())


def _parameters(kind: type[Any], text: str) -> dict[str, Any]:
    """Values by name, of the type of the field's default, within its range."""
    known = {one.name: one for one in fields(kind)}
    given: dict[str, Any] = {}
    for part in filter(None, (one.strip() for one in text.split(","))):
        name, _, value = (one.strip() for one in part.partition("="))
        if name not in known or name in given:
            problem = "given twice" if name in given else f"is no parameter; there are {', '.join(known)}"
            raise InvalidInput(f"{kind.name}.{name}", problem)
        given[name] = _number(kind, known[name], value)
    return given


def _number(kind: type[Any], one: Any, text: str) -> Any:
    low, high = one.metadata["low"], one.metadata["high"]
    try:
        value = type(one.default)(text)
    except ValueError:
        value = None
    if value is None or not low <= value <= high:
        wanted = f"{type(one.default).__name__} in [{low}, {high}]"
        raise InvalidInput(f"{kind.name}.{one.name}", f"{text!r} is no {wanted}")
    return value
