"""Whether a put and a get can be done now: a canary goes through every tier that is on.

In an arena a free slot is borrowed, written and read by the threads that carry all blocks; where none is free
it must be possible to make room, and a stored block is compared with its checksum instead. In the spill tier a
block that no catalog knows is stored, read and deleted. Users' blocks and their statistics stay as they are.

One canary per tier is under way at a time, and who asks gets an answer within ANSWER_S in any case: a canary that
hangs is a tier that does not work, unless blocks get through meanwhile, for then it only waits its turn. Whether
the daemon as a whole can serve is asked of the arenas; without its spill tier it is degraded.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import numpy as np

from tierd.app.carrier import checksum_of
from tierd.app.service import Service
from tierd.app.verify import verify
from tierd.core.errors import TierdError
from tierd.core.messages import BlockFilter, BorrowedSlot, BorrowSlot, Record, ReturnSlot, Tier
from tierd.core.terms import pack
from tierd.ports import StoredBlock
from tierd_client.format import U8Array

FRESH_S = 1.0
"""So long a finding is told again before the tier is tried anew."""

ANSWER_S = 0.8
"""A canary that takes longer has failed; with FRESH_S below the two seconds in which a failure must show."""

CANARY_BYTES = 4096
CANARY_FINGERPRINT = bytes(32)
"""Of no layout: no namespace's blocks are stored beside it."""


class Status(StrEnum):
    READY = "ready"
    DEGRADED = "degraded"
    """Puts and gets are done, without the spill tier."""
    UNAVAILABLE = "unavailable"


@dataclass(frozen=True, slots=True)
class Finding:
    """Whether a tier took the canary and gave it back, and in words what was found."""

    tier: Tier
    ok: bool
    detail: str


def status_of(findings: Sequence[Finding]) -> Status:
    """Of the daemon whose tiers these are."""
    failed = {one.tier for one in findings if not one.ok}
    if failed - {Tier.SPILL}:
        return Status.UNAVAILABLE
    return Status.DEGRADED if failed else Status.READY


class Readiness:
    """Tries tiers when asked. All methods belong to the event loop's thread; `run` must be running."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._trials = {
            tier: _Trial(self._trial_of(tier), partial(service.measures.moves_of, tier)) for tier in Tier
        }

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """Those that are on now."""
        return tuple(tier for tier in Tier if self._service.is_on(tier))

    async def run(self) -> None:
        """Carries trials out until cancelled."""
        async with asyncio.TaskGroup() as group:
            for trial in self._trials.values():
                group.create_task(trial.run())

    async def check(self, *tiers: Tier) -> list[Finding]:
        """A finding of each of these tiers, not older than FRESH_S, within ANSWER_S."""
        found = await asyncio.gather(*(self._trials[tier].finding() for tier in tiers))
        return [Finding(tier, not problem, problem or "works") for tier, problem in zip(tiers, found, strict=True)]

    def _trial_of(self, tier: Tier) -> Callable[[], Awaitable[str]]:
        async def of_spill() -> str:
            return await _try_spill(self._service)

        async def of_arena() -> str:
            return await _try_arena(self._service, tier)

        return of_spill if tier is Tier.SPILL else of_arena


class _Trial:
    """The trials of one tier, one at a time: the latest finding, and whether somebody wants a newer one."""

    def __init__(self, attempt: Callable[[], Awaitable[str]], moves: Callable[[], int]) -> None:
        """`attempt` returns what is wrong, empty for nothing. `moves`: how many have succeeded so far."""
        self._attempt = attempt
        self._moves = moves
        self._wanted = asyncio.Event()
        self._done = asyncio.Event()
        self._found_at = float("-inf")
        self._problem = ""

    async def run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                self._problem = await self._attempt()
            except Exception as error:  # whatever a tier raises, it does not work
                told = isinstance(error, TierdError) and str(error)
                self._problem = told or f"{type(error).__name__}: {error}"
            self._found_at = time.monotonic()
            self._done.set()

    async def finding(self) -> str:
        if time.monotonic() - self._found_at >= FRESH_S:
            before = self._moves()
            self._done.clear()
            self._wanted.set()
            try:
                await asyncio.wait_for(self._done.wait(), ANSWER_S)
            except TimeoutError:
                return "" if self._moves() > before else f"no answer within {ANSWER_S} s"
        return self._problem


async def _try_arena(service: Service, tier: Tier) -> str:
    slot = service.writer.ask(BorrowSlot(tier, CANARY_BYTES), BorrowedSlot)
    if slot.address is None:
        return await _try_full_arena(service, slot)
    try:
        same = await service.mover.exercise_arena(tier, slot.address, _canary())
    finally:
        service.writer.step(ReturnSlot(tier, slot.address))
    return "" if same else "what was written was read otherwise"


async def _try_full_arena(service: Service, slot: BorrowedSlot) -> str:
    if not slot.room:
        down = service.tier_state(Tier.SPILL)
        why = f", and spill is {down.text}" if service.is_on(Tier.SPILL) and not down.serving else ""
        return f"full: no block may be evicted for a new one{why}"
    if not slot.sample:
        return ""
    deadline = asyncio.get_running_loop().time() + ANSWER_S
    found = await verify(service, pack([slot.sample]), BlockFilter(), False, deadline)
    return f"block {slot.sample.hex()} is damaged" if found.damaged else ""


async def _try_spill(service: Service) -> str:
    state = service.tier_state(Tier.SPILL)
    if not state.serving:
        return state.text
    payload = _canary()
    identity = hashlib.blake2b(service.about.instance_id, digest_size=32, person=b"tierd-canary").digest()
    block = StoredBlock(
        CANARY_FINGERPRINT, identity, group=0, position=0, parent=None, size=CANARY_BYTES,
        checksum=checksum_of(payload), record=Record(),
    )
    same = await service.mover.exercise_spill(block, payload, ANSWER_S)
    return "" if same else "what was stored was read otherwise"


def _canary() -> U8Array:
    """Bytes that no earlier canary had."""
    return np.frombuffer(os.urandom(CANARY_BYTES), np.uint8)
