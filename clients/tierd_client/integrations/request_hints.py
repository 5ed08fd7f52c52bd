"""What a request says of its blocks, as `tierd` among the parameters that an engine passes through:

    {"tierd": {"priority": "high", "ttl_s": 600, "next_use": "tool_call", "expected_s": 20}}

`priority` of the blocks that it stores: low, normal or high. `ttl_s`: how long its blocks are not dropped.
`next_use` when it has finished: tool_call (in about `expected_s` seconds), human, or closed: the session has ended.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tierd_client.arguments import seconds
from tierd_client.errors import InvalidArgument
from tierd_client.hints import milliseconds
from tierd_client.outcomes import NextUse, Priority, said

log = logging.getLogger("tierd")


@dataclass(frozen=True, slots=True)
class Hints:
    """Of one request."""

    priority: Priority | None = None
    ttl_s: float = 0.0
    next_use: NextUse | None = None
    expected_s: float = 0.0

    @classmethod
    def of(cls, params: Mapping[str, Any] | None) -> Hints:
        """Of a request's parameters. What cannot be understood is left out, with a line in the log: a request is
        never refused for its hints."""
        given = (params or {}).get("tierd")
        if given is None:
            return cls()
        try:
            return cls._parsed(given)
        except InvalidArgument as error:
            log.warning("a request's hints are ignored: %s", error)
            return cls()

    @classmethod
    def _parsed(cls, given: Any) -> Hints:
        known = [one.name for one in fields(cls)]
        if not isinstance(given, Mapping) or not set(given) <= set(known):
            raise InvalidArgument(f"{given!r} is no mapping of {', '.join(known)}")
        priority, next_use = given.get("priority"), given.get("next_use")
        ttl_s, expected_s = given.get("ttl_s", 0.0), seconds(given.get("expected_s", 0.0), "expected_s")
        milliseconds(ttl_s, "ttl_s")
        return cls(
            None if priority is None else Priority(said(Priority, priority, "priority")), float(ttl_s),
            None if next_use is None else NextUse(said(NextUse, next_use, "next_use")), expected_s)
