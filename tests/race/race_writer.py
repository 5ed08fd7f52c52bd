"""The writer of test_race.py: the real engine over real shared memory, evicting and re-using slots without a pause.

usage: race_writer.py SHM_DIR INSTANCE_HEX [blind]
Blocks are put at random out of more identities than have room. A slot is spoilt before it is written, as a
client may write it in any order. What an earlier writer left there is taken over, as by a restarted daemon; the
sessions of readers that hold on to blocks live on. `blind`: nobody looks at what they hold, to show what that is
for.
Prints "ready", then how many blocks it has written, every now and then; ends with its standard input.
"""

from __future__ import annotations

import random
import sys
import threading
from pathlib import Path

import numpy as np
from race_blocks import BATCH, BLOCK_BYTES, HOLDERS, IDENTITIES, PLAN, all_identities, all_patterns

from tierd.adapters.arena_host import HostArena
from tierd.adapters.hazards import HazardPages, full_barrier
from tierd.adapters.memory import Start, open_memory
from tierd.adapters.shm import SharedDirectory
from tierd.core import messages as m
from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.hazards import Hazards
from tierd.core.messages import Tier
from tierd.core.tables import Tables

SESSION = 1
SPOILT = 0xEE
CLEAR_EVERY = 50
REPORT_EVERY = 100
"""Rounds of a batch each."""


class Writer:
    def __init__(self, shm_dir: Path, instance: bytes, blind: bool) -> None:
        directory = SharedDirectory(shm_dir, instance)
        self._memory = open_memory(directory, PLAN, instance, instance)
        arrays = {number: file.array() for number, file in self._memory.segments.items()}
        self._arena = HostArena(arrays)
        settings = EngineSettings(tiers=(TierSpec(Tier.HOST, segments=PLAN.host_segments),), policy="lru")
        warm = self._memory.start is Start.WARM
        pages = HazardPages(directory, HOLDERS if warm else ())
        looked_at = Hazards() if blind else Hazards(pages.pages(), full_barrier)
        survivors = frozenset(HOLDERS if warm else ())
        self._engine = Engine(settings, Tables(**self._memory.tables), survivors, looked_at)
        for session in () if warm else HOLDERS:
            self._engine.step(m.OpenSession(session), 0.0)
            _, page = pages.page(session)
            if not blind:
                self._engine.step(m.OpenPage(session, page), 0.0)
        self._engine.step(m.OpenSession(SESSION), 0.0)
        self._ids, self._patterns = all_identities(), all_patterns()
        self._checksums = np.arange(IDENTITIES, dtype=np.uint64)
        self._random = random.Random(6)
        self.written = 0

    def put_some(self) -> None:
        """Reserves, spoils, writes and commits blocks, most of them in the place of others."""
        chosen = np.array(self._random.sample(range(IDENTITIES), BATCH))
        blocks = m.Ids(1, 0, np.ascontiguousarray(self._ids[chosen]))
        reply = self._engine.step(m.Reserve(SESSION, blocks, BLOCK_BYTES), 0.0).reply
        granted = np.flatnonzero(reply.outcomes == m.Reserved.GRANTED)
        for place in granted:
            slot = self._arena.view(int(reply.addresses[place]), BLOCK_BYTES)
            slot[:] = SPOILT
            np.copyto(slot, self._patterns[chosen[place]])
        self._engine.step(m.Commit(
            SESSION, blocks.ids[granted], reply.generations[granted], self._checksums[chosen[granted]]), 0.0)
        self.written += len(granted)

    def clear_some(self) -> None:
        """Drops a part of all blocks, so that some identities are absent for a while."""
        self._engine.step(m.Clear(m.BlockFilter(identity_prefix=bytes([self._random.randrange(256)]))), 0.0)


def main() -> None:
    writer = Writer(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), "blind" in sys.argv[3:])
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
    print("ready", flush=True)
    rounds = 0
    while not stop.is_set():
        writer.put_some()
        rounds += 1
        if rounds % CLEAR_EVERY == 0:
            writer.clear_some()
        if rounds % REPORT_EVERY == 0:
            print(writer.written, flush=True)
    print(writer.written, flush=True)


if __name__ == "__main__":
    main()
