"""What queues of a policy are told, and what ARC, S3-FIFO and lots make of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from tierd.core.catalog import Catalog
from tierd.core.policy.arc import AGAIN, ONCE, ArcQueues
from tierd.core.policy.base import Common, Moment
from tierd.core.policy.queues import ByQueues, Counts, Spot
from tierd.core.policy.random import RandomQueues
from tierd.core.policy.s3fifo import MAIN, S3FifoQueues
from tierd.core.queue_order import QueueOrder
from tierd.core.statistics import access_weighted
from tierd_client.format import CATALOG_MAGIC, Table, catalog_columns


class Told:
    """FIFO with a second chance for what was accessed; remembers all that it is told, of blocks by letters."""

    count: ClassVar[int] = 1
    moves_when_accessed: ClassVar[bool] = False

    def __init__(self) -> None:
        self.turn = 0
        self.heard: list[str] = []

    def expect(self, identity: bytes, counts: Counts) -> None:
        self.heard.append(f"expect {chr(identity[0])}")

    def enter(self, identity: bytes, counts: Counts) -> Spot:
        self.heard.append(f"enter {chr(identity[0])}")
        return Spot(0)

    def enter_at_start(self, identity: bytes, touches: int) -> Spot:
        self.heard.append(f"at start {chr(identity[0])} {touches}")
        return Spot(0)

    def accessed(self, spot: Spot) -> Spot:
        return Spot(0, 1)

    def look_in(self, counts: Counts, newcomer: bytes) -> tuple[int, ...]:
        self.heard.append(f"look for {chr(newcomer[0]) if newcomer else '-'} {counts.lengths} of {counts.most}")
        return (0,)

    def pass_over(self, spot: Spot) -> Spot | None:
        return Spot(0) if spot.mark else None

    def left(self, identity: bytes, spot: Spot, counts: Counts, newcomer: bytes) -> None:
        self.heard.append(f"left {chr(identity[0])} for {chr(newcomer[0]) if newcomer else '-'} {counts.lengths}")

    def terms(self, spot: Spot) -> dict[str, float]:
        return {"mark": float(spot.mark)}


@dataclass
class Tier:
    """Six rows, a to f, and an order that tells `told`."""

    told: Told = field(default_factory=Told)
    common: Common = field(default_factory=Common)

    def __post_init__(self) -> None:
        self.catalog = Catalog(Table.create(CATALOG_MAGIC, catalog_columns(8, 16)))
        ids = np.zeros((6, 32), np.uint8)
        ids[:, 0] = [ord(name) for name in "abcdef"]
        self.catalog.insert(ids)
        self.order = QueueOrder(self.catalog, cast(ByQueues, self), np.zeros(8, np.int32))
        self.step = 0

    def queues(self) -> Told:
        return self.told

    def touch(self, names: str) -> None:
        for name in names:
            self.step += 1
            rows = self.rows(name)
            access_weighted(self.catalog, rows, np.ones(1), 1, self.step, 0.0, Common())
            self.order.insert(rows)

    def choose(self, count: int) -> str:
        chosen = self.order.choose(count, Moment(self.step, 0.0, 50.0), Unprotected())
        return "".join("abcdef"[row] for row in chosen)

    def rows(self, names: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.array(["abcdef".index(name) for name in names], np.int64)

    def expect(self, names: str) -> None:
        self.order.expect(self.catalog.identity, self.rows(names))


class Unprotected:
    def one(self, row: int) -> bool:
        return False

    def many(self, rows: np.ndarray) -> np.ndarray:
        return np.zeros(len(rows), bool)


def test_queues_hear_for_whom_a_victim_makes_room() -> None:
    """Each victim is looked for in the name of the next block that was announced and has not come; a drop that was
    no choice is not told."""
    tier = Tier()
    tier.touch("abc")
    tier.expect("def")
    tier.touch("d")
    assert tier.choose(1) == "a"
    tier.order.discard(tier.rows("ab"))
    assert tier.choose(2) == "cd"
    tier.order.discard(tier.rows("cd"))
    assert tier.told.heard[3:] == [
        "expect d", "expect e", "expect f", "enter d", "look for e [4] of 4", "left a for e [3]",
        "look for f [2] of 4", "look for - [1] of 4", "left c for f [0]", "left d for - [0]",
    ]


@pytest.mark.parametrize("between", ["", "c", "drop"])
def test_a_choice_is_taken_back_only_while_nothing_happened(between: str) -> None:
    """Passing over a block is undone when the choice is put back at once, and stays when blocks were accessed or
    dropped meanwhile."""
    tier = Tier()
    tier.touch("abcda")
    assert tier.choose(1) == "b"
    if between == "drop":
        tier.order.discard(tier.rows("d"))
    else:
        tier.touch(between)
    tier.order.put_back(tier.rows("b"))
    assert tier.order.terms(0) == {"mark": 0.0 if between else 1.0}
    assert tier.choose(1) == "b"


def test_blocks_at_the_start_come_in_the_order_of_their_last_accesses() -> None:
    """Queues that are made of records hold the longest unused first, with their numbers of accesses."""
    tier = Tier()
    tier.touch("bacb")
    tier.told.heard.clear()
    fresh = QueueOrder(tier.catalog, cast(ByQueues, tier), np.zeros(8, np.int32))
    fresh.load(tier.rows("abc"))
    assert tier.told.heard == ["at start a 1", "at start c 1", "at start b 2"]


def test_arc_moves_its_target_once_for_a_miss_and_by_what_is_remembered() -> None:
    """A miss that B1 remembers lengthens T1 by one or by |B2| / |B1|, within the tier; one of B2 shortens it; told
    again, neither moves it again."""
    queues, counts = ArcQueues(), Counts([1, 3], 4)
    for name, queue in ((b"a", ONCE), (b"b", AGAIN), (b"c", AGAIN), (b"d", AGAIN)):
        queues.left(name, Spot(queue), Counts([1, 1], 4), b"")
    for _ in range(2):
        queues.expect(b"a", counts)
        assert queues.target == 3.0
    queues.expect(b"b", counts)
    queues.expect(b"b", counts)
    assert queues.target == 2.0
    queues.expect(b"x", counts)
    assert queues.target == 2.0


def test_arc_takes_from_t1_at_its_target_for_what_t2_lost() -> None:
    """At exactly its target T1 gives the victim only for a block that B2 remembers."""
    queues, counts = ArcQueues(), Counts([1, 1], 2)
    queues.left(b"x", Spot(AGAIN), counts, b"")
    queues.target = 1.0
    assert queues.look_in(counts, b"x") == (ONCE, AGAIN)
    assert queues.look_in(counts, b"y") == (AGAIN, ONCE)
    assert queues.look_in(Counts([2, 0], 2), b"y") == (ONCE, AGAIN)


def test_what_left_is_remembered_within_bounds() -> None:
    """T1 and B1 know as much as the tier holds, all lists of ARC twice as much; S3-FIFO its main queue's share."""
    arc, counts = ArcQueues(), Counts([3, 5], 8)
    for number in range(40):
        arc.left(bytes([number]), Spot(number % 2), counts, b"")
    known = [arc.enter(bytes([number]), counts).queue == AGAIN for number in range(40)]
    assert [number for number, found in enumerate(known) if found] == [32, 34, 35, 36, 37, 38, 39]
    s3fifo = S3FifoQueues(0.25)
    for number in range(40):
        s3fifo.left(bytes([number]), Spot(number % 2), counts, b"")
    known = [s3fifo.enter(bytes([number]), counts).queue == MAIN for number in range(40)]
    assert [number for number, found in enumerate(known) if found] == [28, 30, 32, 34, 36, 38]


def test_lots_are_drawn_from_the_time_of_the_last_victim() -> None:
    """What comes after a victim goes later than it, by 1 on average; a victim of before changes nothing."""
    queues, counts = RandomQueues(3), Counts([1], 1)
    queues.left(b"a" * 32, Spot(0, key=5.0), counts, b"")
    queues.left(b"b" * 32, Spot(0, key=2.0), counts, b"")
    keys = [queues.enter(bytes([number]) * 32, counts).key for number in range(200)]
    assert min(keys) > 5.0
    assert 5.8 < np.mean(keys) < 6.2
    assert len(set(keys)) == 200
