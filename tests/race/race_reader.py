"""A reader of test_race.py: reads random blocks by the catalog alone and compares every byte.

usage: race_reader.py SHM_DIR INSTANCE_HEX SEED READS [careless]
Maps everything read-only. `careless`: it does not look again after copying, to show what that is for.
Prints one JSON object: how many reads it checked, and what came of the others.
"""

from __future__ import annotations

import json
import mmap
import random
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from race_blocks import ABSENT, BLOCK_BYTES, IDENTITIES, PLAN, all_patterns, identity_of

from tierd.adapters.memory import segment_name
from tierd.adapters.shm import SharedDirectory
from tierd_client.catalog import CatalogReader, PlaceColumns
from tierd_client.checks import Checks
from tierd_client.direct import Lane
from tierd_client.format import CATALOG_MAGIC, BoolArray, I64Array, Table, U8Array
from tierd_client.outcomes import AcquireOutcome
from tierd_client.staging import HostSink

SLOW_EVERY = 8
"""One read in so many dawdles between finding a block and copying it."""
DAWDLE = 2_000
LOOKUP_EVERY = 1_000
TOGETHER, TOGETHER_EVERY = 32, 64
"""Blocks of a call of many, and one such call for so many single reads."""
WRONG_MAX = 5
"""A careless reader has shown what it is for by then."""


def read_only(path: Path) -> U8Array:
    with path.open("rb") as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_SHARED), np.uint8)


class CarelessReader(CatalogReader):
    """Believes what it copied."""

    def read_into(self, *arguments: object, **options: object) -> bool:
        self.copied = False
        super().read_into(*arguments, **options)  # type: ignore[arg-type]
        return self.copied

    def still_there(self, places: PlaceColumns, chosen: I64Array) -> BoolArray:
        return np.ones(len(chosen), bool)


class Unreported:
    """Nobody is told of accesses here."""

    full = False

    def note(self, *_: object) -> None:
        """Forgets it."""


def lane_of(catalog: CatalogReader, segments: dict[int, U8Array]) -> Lane:
    """What clients read by, without a session or a daemon to tell of accesses."""
    namespace: Any = SimpleNamespace(client=SimpleNamespace(checks=Checks("never")))
    mapped: Any = SimpleNamespace(views=segments)
    nobody: Any = Unreported()
    return Lane(namespace, 0, nobody, mapped, catalog, (1, 0), nobody)


class Reader:
    def __init__(self, shm_dir: Path, instance: bytes, seed: int, careless: bool) -> None:
        directory = SharedDirectory(shm_dir, instance)
        table = Table.attach(CATALOG_MAGIC, read_only(directory.path_of("catalog")))
        self._segments = {n: read_only(directory.path_of(segment_name(n))) for n, _ in PLAN.host_segments}
        self._catalog = CarelessReader(table) if careless else CatalogReader(table)
        self._random = random.Random(seed)
        self._ids = [identity_of(number) for number in range(IDENTITIES + ABSENT)]
        self._absent = np.frombuffer(b"".join(self._ids[IDENTITIES:]), np.uint8).reshape(-1, 32)
        self._expected = [pattern.tobytes() for pattern in all_patterns()]
        self._out = np.empty(BLOCK_BYTES, np.uint8)
        self._dawdle = False
        self._found = False
        self._lane = lane_of(self._catalog, self._segments)
        self._many = np.empty((TOGETHER, BLOCK_BYTES), np.uint8)
        self.counts = Counter(checked=0, wrong=0, torn=0, absent=0, ghosts=0)

    def read_one(self) -> None:
        number = self._random.randrange(IDENTITIES + ABSENT)
        self._found = False
        read = self._catalog.read_into(self._ids[number], self._out, self._segment)
        if not read:
            self.counts["torn" if self._found else "absent"] += 1
        elif number >= IDENTITIES:
            self.counts["ghosts"] += 1
        else:
            self.counts["checked"] += 1
            self.counts["wrong"] += self._out.tobytes() != self._expected[number]

    def read_together(self) -> None:
        """As a client's call of many blocks."""
        numbers = self._random.sample(range(IDENTITIES + ABSENT), TOGETHER)
        packed = b"".join(self._ids[number] for number in numbers)
        outcomes = self._lane.read(packed, BLOCK_BYTES, HostSink(self._many.__getitem__), "")
        for place, (number, outcome) in enumerate(zip(numbers, outcomes, strict=True)):
            if outcome is not AcquireOutcome.LEASED:
                self.counts["absent"] += 1
            elif number >= IDENTITIES:
                self.counts["ghosts"] += 1
            else:
                self.counts["checked"] += 1
                self.counts["wrong"] += self._many[place].tobytes() != self._expected[number]

    def look_up_absent(self) -> None:
        """None of the identities that nobody put is found by the vectorised probe either."""
        found = self._catalog.lookup(self._absent)
        self.counts["ghosts"] += int(np.count_nonzero(found))

    def dawdle(self) -> None:
        self._dawdle = True

    def _segment(self, number: int) -> U8Array | None:
        """Called between noting where a block is and copying it."""
        self._found = True
        if isinstance(self._catalog, CarelessReader):
            self._catalog.copied = True
        if self._dawdle:
            self._dawdle = False
            for _ in range(DAWDLE):
                pass
        return self._segments.get(number)


def main() -> None:
    seed, reads, careless = int(sys.argv[3]), int(sys.argv[4]), "careless" in sys.argv[5:]
    reader = Reader(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]), seed, careless)
    counts = reader.counts
    tries = 0
    while counts["checked"] < reads and not (careless and counts["wrong"] >= WRONG_MAX):
        if tries % SLOW_EVERY == 0:
            reader.dawdle()
        if tries % LOOKUP_EVERY == 0:
            reader.look_up_absent()
        if tries % TOGETHER_EVERY == 0:
            reader.read_together()
        reader.read_one()
        tries += 1
    print(json.dumps(counts), flush=True)


if __name__ == "__main__":
    main()
