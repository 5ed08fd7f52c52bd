"""The deadline of a call, its own timeout or that of its RPC, whichever is sooner; and of a part of a stream."""

from __future__ import annotations

import asyncio
from typing import Any

from tierd.app import streams
from tierd.core.errors import LimitReached
from tierd.rpc.convert import timeout_s

SHORT_CALL_MS = 10_000
"""Bound of calls that have no timeout of their own and may have to wait for the disk or for a stream."""

MARGIN_MIN_S, MARGIN_MAX_S = 0.02, 0.25
"""The reply must reach the client before the RPC's own deadline turns it into an error: a tenth of the time left,
within these, is for the way there."""


def deadline_of(context: Any, timeout_ms: int) -> float:
    """In the event loop's time. InvalidInput for a timeout that is too long."""
    return deadline_within(context, timeout_s(timeout_ms))


def deadline_within(context: Any, left_s: float) -> float:
    """The same for a timeout in seconds that was checked before."""
    remaining_s = context.time_remaining()
    if remaining_s is not None:
        margin_s = min(MARGIN_MAX_S, max(MARGIN_MIN_S, remaining_s / 10))
        left_s = min(left_s, max(0.0, remaining_s - margin_s))
    return asyncio.get_running_loop().time() + left_s


async def send(context: Any, message: Any) -> None:
    """One message of a stream. LimitReached when its reader takes nothing for STREAM_IDLE_S."""
    try:
        async with asyncio.timeout(streams.STREAM_IDLE_S):
            await context.write(message)
    except TimeoutError as error:
        raise LimitReached(f"the reader took nothing for {streams.STREAM_IDLE_S:.0f} s") from error
