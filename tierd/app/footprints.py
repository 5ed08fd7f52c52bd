"""Learns how much of its memory the spill store takes for a block of each size, by asking it about a few.

A value takes its header, its key and what the server's allocator rounds up: 5 MiB may be 6. The engine counts with
what was learnt, so that the limit of the spill tier is one of the server's memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

import structlog

from tierd.app.mover import Mover
from tierd.app.writer import Writer
from tierd.core import messages as m
from tierd.core.errors import SpillError, SpillRefused

log = structlog.get_logger(__name__)

EVERY_S = 10.0
"""From one look for sizes of which nothing is known to the next."""
LEARNT_FOR_S = 600.0
"""Then a size is asked about again; a store that refuses to tell is as well."""
SIZES_PER_ROUND = 16
BLOCKS_PER_SIZE = 8
BELIEVED_FACTOR, BELIEVED_BYTES = 2, 65_536
"""An answer above so many times the size and so many bytes more is no allocator's, and is not believed."""


class FootprintSurvey:
    """Belongs to the event loop's thread."""

    def __init__(self, writer: Writer, mover: Mover, *, save: Callable[[Mapping[int, int]], None]) -> None:
        """`save` is given all footprints, bytes by size of a block, when some have changed."""
        self._writer, self._mover, self._save = writer, mover, save
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tierd-footprints")
        self._refused_until = 0.0
        self._known: Mapping[int, int] = {}

    async def run(self) -> None:
        """Works until cancelled."""
        try:
            while True:
                await asyncio.sleep(EVERY_S)
                await self.round()
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def round(self) -> None:
        """Asks about the commonest sizes of which nothing new is known."""
        if not self._mover.carrier.gate.is_open or time.monotonic() < self._refused_until:
            return
        ask = m.SampleStored(SIZES_PER_ROUND, BLOCKS_PER_SIZE, self._writer.now_s() - LEARNT_FOR_S)
        try:
            answers = await self._ask(self._writer.ask(ask, m.Sample).blocks)
            if answers:
                self._learn({size: -(-sum(of) // len(of)) for size, of in answers.items()})
        except SpillRefused as error:
            self._refused_until = time.monotonic() + LEARNT_FOR_S
            log.warning("footprints_assumed", reason=str(error), assumed="whole pages of 4096 bytes")
        except SpillError as error:
            log.warning("footprints_not_learnt", reason=str(error))
        except Exception:  # a store that breaks its contract costs the books some truth, not the daemon
            log.exception("footprints_not_learnt")

    async def _ask(self, sample: list[tuple[int, int, bytes]]) -> dict[int, list[int]]:
        """The answers that can be believed, by size of the block."""
        by_namespace: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for size, namespace, identity in sample:
            by_namespace[namespace].append((size, identity))
        found: dict[int, list[int]] = defaultdict(list)
        for namespace, blocks in by_namespace.items():
            identities = [identity for _, identity in blocks]
            answers = await asyncio.get_running_loop().run_in_executor(
                self._pool, self._mover.carrier.footprints, namespace, identities
            )
            for (size, _), taken in zip(blocks, answers, strict=True):
                if taken is not None and 0 < taken <= BELIEVED_FACTOR * size + BELIEVED_BYTES:
                    found[size].append(taken)
        return found

    def _learn(self, bytes_by_size: Mapping[int, int]) -> None:
        known = self._writer.ask(m.LearnFootprints(bytes_by_size), m.Learnt).bytes_by_size
        if known != self._known:
            self._known = known
            log.info("footprints_learnt", bytes_by_block_bytes=known)
            self._save(known)
