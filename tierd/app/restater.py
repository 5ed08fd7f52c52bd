"""Keeps the statistics of stored blocks current, in batches: what was accessed since its record was written."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import structlog

from tierd.app.mover import Mover
from tierd.app.writer import Writer
from tierd.core import messages as m
from tierd.core.errors import SpillError
from tierd.ports import LOOK_IDENTITIES_MAX

log = structlog.get_logger(__name__)

RECORDS_PER_ROUND = 1024
"""Most records of one round; the others have their turn in the next, the longest waiting first."""
LAST_RECORDS = 16_384
"""Most records that are written at a stop."""


class Restater:
    """Belongs to the event loop's thread. Statistics are worth no retry: what a round could not write waits for
    the block's next access."""

    def __init__(self, writer: Writer, mover: Mover, *, every_s: float) -> None:
        """`every_s`: from one round to the next."""
        self._writer, self._mover, self._every_s = writer, mover, every_s
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tierd-restate")

    async def run(self) -> None:
        """Works until cancelled."""
        while True:
            await asyncio.sleep(self._every_s)
            await self.round(RECORDS_PER_ROUND)

    async def stop(self, timeout_s: float) -> None:
        """A last round, as far as the time goes."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.round(LAST_RECORDS)
        except TimeoutError:
            log.warning("statistics_not_written", timeout_s=timeout_s)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    async def round(self, most: int) -> None:
        """Writes up to `most` records."""
        if not self._mover.spill_is_shared:
            return
        by_namespace: dict[int, list[tuple[bytes, m.Record]]] = defaultdict(list)
        for namespace, identity, record in self._writer.ask(m.TakeStatistics(most), m.Taken).records:
            by_namespace[namespace].append((identity, record))
        try:
            for namespace, records in by_namespace.items():
                for start in range(0, len(records), LOOK_IDENTITIES_MAX):
                    await self._write(namespace, dict(records[start : start + LOOK_IDENTITIES_MAX]))
        except SpillError as error:
            log.warning("restate_failed", error=str(error))
        except Exception:  # a store that breaks its contract costs statistics, not the daemon
            log.exception("restate_failed")

    async def _write(self, namespace: int, records: dict[bytes, m.Record]) -> None:
        restate = self._mover.carrier.restate
        await asyncio.get_running_loop().run_in_executor(self._pool, restate, namespace, records)
