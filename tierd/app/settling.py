"""Repeats a command until none of its ids is pending, or the deadline passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Generic, TypeVar

import numpy as np

from tierd.app.line import Turn
from tierd.app.writer import TOGETHER_S, Writer
from tierd.core import messages as m
from tierd_client.format import I64Array

PAUSE_FIRST_S = 0.001
PAUSE_MAX_S = 0.05
"""Pause before a command that made no progress is repeated again: doubles up to the maximum."""
TOGETHER_MAX_S = 0.032

W = TypeVar("W", m.ReserveReply, m.AcquireReply, m.Outcomes, m.WithdrawReply, m.BudgetSet)


async def settle(
    writer: Writer, reply: W, pending: int, again: Callable[[I64Array], W], deadline: float,
    patience_s: float = 0.0,
) -> None:
    """Repeats a command for the ids that are still `pending`, after what they wait for, into `reply`. Where as many
    moves are waited for as ids are left, each has its own: then up to `patience_s` for all of them."""
    loop, call = asyncio.get_running_loop(), _Settling(reply, pending, again)
    pause_s, together_s = PAUSE_FIRST_S, TOGETHER_S
    with writer.line.stand(call):
        while len(call.left):
            patience = patience_s if len(call.waiting) >= len(call.left) else 0.0
            await writer.wait(call.waiting, deadline, max(together_s if len(call.left) > 1 else 0.0, patience))
            if loop.time() >= deadline:
                return
            together_s = min(4 * together_s, TOGETHER_MAX_S)
            if writer.line.go(call):
                pause_s = PAUSE_FIRST_S
            elif len(call.left):
                await asyncio.sleep(min(pause_s, max(0.0, deadline - loop.time())))
                pause_s = min(2 * pause_s, PAUSE_MAX_S)


class _Settling(Turn, Generic[W]):
    """A command of which some ids are still `pending`."""

    def __init__(self, reply: W, pending: int, again: Callable[[I64Array], W]) -> None:
        super().__init__(reply.waiting)
        self._reply: W = reply
        self._pending = pending
        self._again: Callable[[I64Array], W] = again
        self.left = np.flatnonzero(reply.outcomes == pending)

    def try_again(self) -> bool:
        before = len(self.left)
        if not before:  # somebody let it go first, and its caller has not taken note yet
            return False
        rest = self._again(self.left)
        _merge(self._reply, self.left, rest)
        self.waiting = frozenset(rest.waiting)
        self.left = np.flatnonzero(self._reply.outcomes == self._pending)
        return len(self.left) < before


def _merge(reply: W, where: I64Array, part: W) -> None:
    """Puts the arrays of `part` into those of `reply` at the indices `where`."""
    for field in fields(reply):
        value = getattr(reply, field.name)
        if isinstance(value, np.ndarray):
            value[where] = getattr(part, field.name)
