"""A client that looks at blocks in place and the engine, by turns: where it matters to one the other goes on by
some steps at random. Slots are written by whoever gets them, and what is held is compared all the time."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, identity, ids_of
from race_reader import lane_of

from tierd.core import messages as m
from tierd.core.hazards import Hazards
from tierd.core.tables import Tables
from tierd_client.catalog import FASTEST_FIRST, HBM_PLANE, HOST_PLANE, CatalogReader, Owner, PlaceColumns
from tierd_client.format import (
    HAZARD_PAGE_BYTES,
    OFFSET_BITS,
    OFFSET_MASK,
    STATE_ABSENT,
    BoolArray,
    I64Array,
    Table,
    U8Array,
    U64Array,
)
from tierd_client.hazards import HazardPage, Looked

READER = 9
"""The session that looks at blocks; SESSION writes them."""
NUMBERS = 24
HOST_SLOTS, HBM_SLOTS = 8, 4
SPOILT = 0xEE
SEEDS = 16
TURNS = 150


def size_of(number: int) -> int:
    """Blocks of two sizes, so that ranges are cut anew."""
    return BLOCK * (1 + number % 2)


class StepwiseReader(CatalogReader):
    """Pauses between finding a block, saying that it is looked at, and looking again."""

    def __init__(self, table: Table, pause: Callable[[], None]) -> None:
        super().__init__(table)
        self._pause = pause

    def places(
        self, packed: bytes, size: int, owner: Owner | None = None, plane: int = HOST_PLANE,
    ) -> PlaceColumns:
        found = super().places(packed, size, owner, plane)
        self._pause()
        return found

    def still_ready(self, places: PlaceColumns, chosen: I64Array) -> BoolArray:
        self._pause()
        return super().still_ready(places, chosen)


class StepwiseHazards(Hazards):
    """The client goes on before each reading of its page and after it."""

    def __init__(self, pages: dict[int, U64Array], meanwhile: Callable[[], None]) -> None:
        super().__init__(pages, meanwhile)
        self._meanwhile = meanwhile

    def read(self) -> U64Array:
        entries = super().read()
        self._meanwhile()
        return entries


@dataclass(frozen=True, slots=True)
class Held:
    looked: Looked
    blocks: list[tuple[int, U8Array]]
    """Number of each block, and its view."""


class Client:
    """Takes blocks and lets them go, on a thread that runs only while `go_on` waits for it."""

    def __init__(self, seed: int, table: Table, memory: dict[int, U8Array]) -> None:
        words = np.zeros(HAZARD_PAGE_BYTES, np.uint8)
        self.words: U64Array = words.view("<u8").reshape(-1, 2)
        self.held: list[Held] = []
        self._memory = memory
        self._random = random.Random(seed)
        self._page = HazardPage(words)
        self._lane = lane_of(StepwiseReader(table, self._pause), memory)
        self._ended = False
        self._mine, self._others = threading.Semaphore(0), threading.Semaphore(0)
        threading.Thread(target=self._run, daemon=True).start()

    def go_on(self) -> None:
        """To its next pause, unless its process has ended. What it holds has the bytes that it had."""
        self._compare()
        if not self._ended:
            self._mine.release()
            assert self._others.acquire(timeout=10)

    def end(self) -> None:
        self._compare()
        self._ended = True
        self._mine.release()

    def _compare(self) -> None:
        for held in self.held:
            for number, block in held.blocks:
                assert (block == number).all(), f"block {number} has bytes of {block[0]}"

    def _pause(self) -> None:
        self._others.release()
        self._mine.acquire()

    def _run(self) -> None:
        self._mine.acquire()
        while not self._ended:
            if len(self.held) < self._random.randrange(2, 8):
                self._take()
            elif self.held:
                self.held.pop(self._random.randrange(len(self.held))).looked.end()
            self._pause()

    def _take(self) -> None:
        numbers = self._random.sample(range(self._random.randrange(2), NUMBERS, 2), 3)
        looked, size = Looked(self._page), size_of(numbers[0])
        self._lane.look_at(looked, b"".join(map(identity, numbers)), size, FASTEST_FIRST)
        found = looked.addresses.items()
        self.held.append(Held(looked, [(numbers[i], view(self._memory, address, size)) for i, address in found]))


def view(memory: dict[int, U8Array], address: int, size: int) -> U8Array:
    start = address & OFFSET_MASK
    return memory[address >> OFFSET_BITS][start : start + size]


class World:
    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._memory = {1: np.zeros(HOST_SLOTS * BLOCK, np.uint8), 0x4000: np.zeros(HBM_SLOTS * BLOCK, np.uint8)}
        tables = Tables.private(64)
        self.client = Client(seed, tables.catalog, self._memory)
        self.held = 0
        self._driver = self._boot(tables, frozenset())
        self._driver.step(m.OpenSession(READER))
        self._driver.step(m.OpenPage(READER, self.client.words))

    def turn(self) -> None:
        """One command."""
        acts = [self._put, self._put, self._put, self._evict, self._evict, self._move, self._stock, self._lease]
        self._random.choice([*acts, *acts, self._clear, self._restart])()
        self._meanwhile()
        self.held += len(self.client.held)

    def end(self) -> None:
        """Of a client that has ended all is free or used."""
        self.client.end()
        self._driver.step(m.EndSession(READER, settled=True))
        reply = self._driver.step(m.Occupancy())
        assert [tier.quarantined_bytes for tier in reply.tiers] == [0] * len(reply.tiers)

    def _meanwhile(self) -> None:
        for _ in range(self._random.choice([0, 0, 1, 2, 5])):
            self.client.go_on()

    def _boot(self, tables: Tables, survivors: frozenset[int]) -> Driver:
        pages = dict.fromkeys(survivors, self.client.words)
        driver = Driver(
            HOST_SLOTS, hbm=HBM_SLOTS, spill=16, tables=tables, survivors=survivors,
            looked_at=StepwiseHazards(pages, self._meanwhile))
        driver.step(m.OpenSession(SESSION, bytes(16)))
        return driver

    def _view(self, address: int, size: int) -> U8Array:
        return view(self._memory, address, size)

    # --- the engine, its writers and movers -----------------------------------------------------------

    def _numbers(self) -> m.Ids:
        return ids_of([self._random.randrange(NUMBERS)])

    def _put(self) -> None:
        number, tier = self._random.randrange(NUMBERS), self._random.choice([m.Tier.HOST, m.Tier.HBM])
        blocks, size = ids_of([number]), size_of(number)
        reply = self._driver.step(m.Reserve(SESSION, blocks, size, tier))
        if reply.outcomes[0] != m.Reserved.GRANTED:
            return
        self._view(int(reply.addresses[0]), size)[:] = SPOILT
        if self._random.random() < 0.2:
            self._driver.step(m.Abort(SESSION, blocks.ids, reply.generations, tier))
            return
        self._view(int(reply.addresses[0]), size)[:] = number
        self._driver.step(m.Commit(SESSION, blocks.ids, reply.generations, np.zeros(1, np.uint64), tier))

    def _evict(self) -> None:
        to = self._random.choice([None, None, m.Tier.HOST, m.Tier.SPILL])
        self._driver.step(m.Evict(self._numbers(), to, allow_drop=True))

    def _move(self) -> None:
        ok = self._random.random() < 0.8
        for move in self._driver.moves:
            if move.target != m.Tier.SPILL:
                number = int.from_bytes(move.identity[:8], "big") - 1
                self._view(move.target_address, move.size)[:] = number if ok else SPOILT
        self._driver.carry_out(ok=ok)

    def _stock(self) -> None:
        """A session writes ahead, and gives back what it wrote."""
        number = self._random.randrange(NUMBERS)
        reply = self._driver.step(m.Stock(SESSION, ids_of([number]), size_of(number), 1, 1))
        for address in reply.addresses.tolist():
            self._view(address, size_of(number))[:] = SPOILT
        self._driver.step(m.Unstock(SESSION, reply.generations))

    def _lease(self) -> None:
        reply = self._driver.step(m.Acquire(SESSION, self._numbers()))
        if reply.lease:
            self._driver.step(m.Release(SESSION, (reply.lease,)))

    def _clear(self) -> None:
        self._driver.step(m.Clear(m.BlockFilter()))

    def _restart(self) -> None:
        """As after a kill -9; what was in hbm is forgotten first (open_memory)."""
        tables = self._driver.tables
        tables.catalog["state"][HBM_PLANE] = STATE_ABSENT
        self._driver = self._boot(tables, frozenset({READER}))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_held_does_not_change_at_any_interleaving(seed: int) -> None:
    """Whatever the engine does between the steps of a client, and a client between those of the engine, over
    restarts too, a block that is held keeps its bytes until it is let go, and no slot stays out of use after."""
    world = World(seed)
    for _ in range(TURNS):
        world.turn()
    world.end()
    assert world.held > TURNS / 2
