"""A reader of test_race.py that looks at blocks in place: it compares every byte when it takes them and again, a
while later, just before it lets them go.

usage: race_holder.py SHM_DIR INSTANCE_HEX SESSION HOLDS [careless]
`careless`: it does not look at the record again after it has published what it looks at, to show what that is for.
Prints one JSON object: how many blocks it held to the end, and what came of the others.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from race_blocks import ABSENT, BLOCK_BYTES, IDENTITIES, PLAN, all_patterns, identity_of
from race_reader import lane_of, read_only

from tierd.adapters.hazards import PAGE_PREFIX
from tierd.adapters.memory import segment_name
from tierd.adapters.shm import SharedDirectory
from tierd_client.catalog import HOST_PLANE, CatalogReader, PlaceColumns
from tierd_client.format import CATALOG_MAGIC, OFFSET_BITS, OFFSET_MASK, BoolArray, I64Array, Table, U8Array
from tierd_client.hazards import HazardPage, Looked

HELD = 12
"""Calls whose blocks are held at once."""
TOGETHER = 8
"""Most blocks of one call."""
WRONG_MAX = 5


class CarelessReader(CatalogReader):
    """Believes what it has published."""

    def still_ready(self, places: PlaceColumns, chosen: I64Array) -> BoolArray:
        return np.ones(len(chosen), bool)


@dataclass(frozen=True, slots=True)
class Held:
    """What one call looks at."""

    looked: Looked
    blocks: list[tuple[int, U8Array]]
    """Number of the block's identity, and the view."""


class Holder:
    def __init__(self, shm_dir: Path, instance: bytes, session: int, careless: bool) -> None:
        directory = SharedDirectory(shm_dir, instance)
        table = Table.attach(CATALOG_MAGIC, read_only(directory.path_of("catalog")))
        self._segments = {n: read_only(directory.path_of(segment_name(n))) for n, _ in PLAN.host_segments}
        self._page = HazardPage(_writable(directory.path_of(f"{PAGE_PREFIX}{session:016x}")))
        self._lane = lane_of(CarelessReader(table) if careless else CatalogReader(table), self._segments)
        self._random = random.Random(session)
        self._ids = [identity_of(number) for number in range(IDENTITIES + ABSENT)]
        self._expected = all_patterns()
        self._held: list[Held] = []
        self.counts = Counter(held=0, wrong=0, late=0, absent=0, ghosts=0)

    def take(self) -> None:
        """Looks at some blocks, and compares them."""
        numbers = self._random.sample(range(IDENTITIES + ABSENT), self._random.randint(1, TOGETHER))
        looked = Looked(self._page)
        self._lane.look_at(looked, b"".join(self._ids[number] for number in numbers), BLOCK_BYTES, [HOST_PLANE])
        blocks = [(numbers[index], self._view(address)) for index, address in looked.addresses.items()]
        self.counts["absent"] += len(numbers) - len(blocks)
        self.counts["ghosts"] += sum(number >= IDENTITIES for number, _ in blocks)
        self.counts["wrong"] += sum(not self._is_right(*block) for block in blocks)
        self._held.append(Held(looked, blocks))

    def let_go(self) -> None:
        """Compares blocks that were taken some time ago, and looks at them no more."""
        held = self._held.pop(self._random.randrange(len(self._held)))
        self.counts["held"] += len(held.blocks)
        self.counts["late"] += sum(not self._is_right(*block) for block in held.blocks)
        held.looked.end()

    def run(self, holds: int) -> None:
        while self.counts["held"] < holds and self.counts["wrong"] + self.counts["late"] < WRONG_MAX:
            self.take()
            while len(self._held) > HELD:
                self.let_go()
        while self._held:
            self.let_go()

    def _view(self, address: int) -> U8Array:
        offset = address & OFFSET_MASK
        return self._segments[address >> OFFSET_BITS][offset : offset + BLOCK_BYTES]

    def _is_right(self, number: int, block: U8Array) -> bool:
        return bool((block == self._expected[number]).all())


def _writable(path: Path) -> U8Array:
    with path.open("r+b") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0), np.uint8)


def main() -> None:
    holder = Holder(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), int(sys.argv[3]), "careless" in sys.argv[5:])
    holder.run(int(sys.argv[4]))
    print(json.dumps(holder.counts), flush=True)


if __name__ == "__main__":
    main()
