"""The spill tier in all its modes at once, from seeds: invariants hold, and nobody deletes what others stored."""

from __future__ import annotations

import random

import numpy as np
import pytest
from engine_driver import BLOCK, Driver, ids_of
from test_found import adopt

from tierd.core import messages as m
from tierd.core.copies import FOUND
from tierd.core.errors import TierdError
from tierd.core.state import split
from tierd_client.format import STATE_READY

STEPS = 150
BLOCKS = 24


class Machine:
    """A driver whose server, store and clients do what a seed says. Each command is checked as Driver does."""

    def __init__(self, seed: int) -> None:
        self.random = draw = random.Random(seed)
        self.driver = Driver(
            draw.randint(2, 8), hbm=draw.choice([0, 0, 3]), spill=draw.randint(2, 12),
            rows=draw.choice([24, 40, 64]), policy=draw.choice(["lru", "lrfu"]), max_moves=draw.choice([2, 8, 64]),
            spill_write=draw.choice(["on_evict", "on_worth", "on_reuse", "through"]),
            spill_grace_s=draw.choice([0.0, 30.0]), spill_bytes_per_s=draw.choice([0.0, 2.0 * BLOCK]),
            spill_high=draw.choice([1.0, 0.7]), spill_low=draw.choice([0.3, 0.7]),
            spill_ahead=draw.choice([0, 1, 3]),
            read_ahead_bytes=draw.choice([0, 4 * BLOCK]),
        )
        self.leases: list[m.AcquireReply] = []
        self.attached = True

    def numbers(self) -> list[int]:
        first = self.random.randrange(BLOCKS)
        return [(first + place) % BLOCKS for place in range(self.random.randint(1, 4))]

    def put(self) -> None:
        self.driver.put(self.numbers(), chain=self.random.random() < 0.5)

    def acquire(self) -> None:
        reply = self.driver.acquire(self.numbers())
        self.leases += [reply] if reply.lease else []

    def release(self) -> None:
        if self.leases:
            self.driver.release(self.leases.pop())

    def evict(self) -> None:
        self.driver.step(m.Evict(ids_of(self.numbers()), m.Tier.SPILL, self.random.random() < 0.3))

    def find(self) -> None:
        record = m.Record(touches=self.random.randint(1, 4), wall=self.driver.now - self.random.random() * 50)
        adopt(self.driver, self.numbers(), own=self.random.random() < 0.3, record=record)

    def go_up_and_down(self) -> None:
        up = self.attached and self.random.random() < 0.7
        self.driver.step(m.SpillState(up=up, forgotten=self.random.random() < 0.3))

    def switch(self) -> None:
        self.attached = not self.attached
        self.driver.step(m.SpillState(up=self.attached, forgotten=True, attached=self.attached))

    def restate(self) -> None:
        self.driver.step(m.TakeStatistics(3))

    def learn(self) -> None:
        self.driver.step(m.LearnFootprints({BLOCK: self.random.randint(BLOCK // 2, 2 * BLOCK)}))

    def clear(self) -> None:
        if self.random.random() < 0.2:
            self.driver.step(m.Clear(m.BlockFilter()))

    def finish(self) -> None:
        """Some moves end, one way or another. Only what is damaged is deleted from others."""
        moves = self.driver.moves
        self.random.shuffle(moves)
        ended = [moves.pop() for _ in range(self.random.randint(0, len(moves)))]
        self.driver.step(m.Finish(tuple(map(self.result, ended))))

    def result(self, move: m.Move) -> m.MoveResult:
        down, draw = move.target == m.Tier.SPILL, self.random.random
        if draw() < 0.8:
            return m.MoveResult(move.op, True, found=down and draw() < 0.3)
        lost = draw() < 0.4
        return m.MoveResult(move.op, False, lost, full=down and not lost and draw() < 0.3)

    def of_others(self) -> set[bytes]:
        catalog = self.driver.engine.state.catalog
        plane = m.Tier.SPILL - 1
        rows = np.flatnonzero((catalog.state[plane] == STATE_READY) & (catalog.address[plane] == FOUND))
        return set(split(catalog.identity[rows]))


@pytest.mark.parametrize("seed", range(10))
def test_nothing_is_lost_count_of(seed: int) -> None:
    """Whatever comes, every invariant holds after each command, no command deletes a value that another daemon
    stored, and once all is let go every byte of slots is free or used."""
    machine = Machine(seed)
    driver = machine.driver
    choices = [machine.put] * 4 + [machine.acquire] * 2 + [machine.finish] * 3 + [
        machine.release, machine.evict, machine.find, machine.go_up_and_down, machine.switch, machine.restate,
        machine.clear, machine.learn,
    ]
    for _ in range(STEPS):
        driver.now += machine.random.random()
        theirs = machine.of_others()
        driver.unlinked.clear()
        try:
            machine.random.choice(choices)()
        except TierdError:
            assert not machine.attached
        assert not theirs & set(driver.unlinked)
    while machine.leases:
        machine.release()
    while driver.moves:
        driver.carry_out()
    reply = driver.step(m.Occupancy())
    assert isinstance(reply, m.OccupancyReply)
    assert all(tier.free_bytes + tier.used_bytes == tier.capacity_bytes for tier in reply.tiers)
