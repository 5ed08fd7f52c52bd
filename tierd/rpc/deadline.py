"""The deadline of a call: its own timeout or that of its RPC, whichever is sooner."""

from __future__ import annotations

import asyncio
from typing import Any

from tierd.rpc.convert import timeout_s

SHORT_CALL_MS = 10_000
"""Bound of calls that have no timeout of their own and may have to wait for the disk or for a stream."""

MARGIN_S = 0.02
"""The reply must reach the client before the RPC's own deadline turns it into an error."""


def deadline_of(context: Any, timeout_ms: int) -> float:
    """In the event loop's time. InvalidInput for a timeout that is too long."""
    left_s = timeout_s(timeout_ms)
    remaining_s = context.time_remaining()
    if remaining_s is not None:
        left_s = min(left_s, max(0.0, remaining_s - MARGIN_S))
    return asyncio.get_running_loop().time() + left_s
