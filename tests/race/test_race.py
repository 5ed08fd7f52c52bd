"""Readers in other processes against a writer that re-uses slots all the time: no read gives a wrong byte.

`make soak` is the same for longer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from race_run import Race, counts_of

READS = 1_000_000
READERS = 2
CARELESS_READS = 500_000
KILLS = 20
READS_OVER_KILLS = 100_000
HOLDS = 50_000
HOLDS_OVER_KILLS = 100_000
UNPROTECTED_HOLDS = 200_000


@pytest.fixture
def race() -> Iterator[Race]:
    with tempfile.TemporaryDirectory(prefix="tierd-race-", dir="/dev/shm") as directory:
        running = Race(Path(directory))
        yield running
        running.kill_writer()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_million_reads_give_no_wrong_byte(race: Race) -> None:
    """Readers that race evictions and the re-use of slots get the bytes of the identity that they asked for, or
    are told to ask; none finds an identity that was never put. Torn copies do happen, and are thrown away."""
    counts = counts_of(race.start_readers(READERS, READS // READERS))
    print(dict(counts), "blocks written", race.stop_writer())
    assert counts["checked"] >= READS
    assert (counts["wrong"], counts["ghosts"]) == (0, 0)
    assert counts["torn"] > 0
    assert counts["absent"] > 0


def test_readers_that_do_not_look_again_get_wrong_bytes(race: Race) -> None:
    """Without the second look at the record the same readers return bytes of other blocks: the race is real."""
    counts = counts_of(race.start_readers(1, CARELESS_READS, "careless"))
    assert counts["wrong"] > 0


def test_readers_outlive_writers(race: Race) -> None:
    """While the writer is killed and restarted over what it left, readers that go on reading meanwhile get no
    wrong byte either."""
    readers = race.start_readers(1, READS_OVER_KILLS)
    kills = 0
    while readers[0].poll() is None and kills < KILLS:
        race.next_line()
        race.kill_writer()
        race.start_writer()
        kills += 1
    counts = counts_of(readers)
    print(dict(counts), "kills", kills)
    assert kills > 3
    assert counts["checked"] >= READS_OVER_KILLS
    assert (counts["wrong"], counts["ghosts"]) == (0, 0)


def test_what_is_held_does_not_change(race: Race) -> None:
    """Blocks that readers look at in place while others are evicted all the time are, until they let them go, those
    that they asked for, to the byte."""
    counts = counts_of(race.start_holders(HOLDS // 2))
    print(dict(counts), "blocks written", race.stop_writer())
    assert counts["held"] >= HOLDS
    assert (counts["wrong"], counts["late"], counts["ghosts"]) == (0, 0, 0)


def test_what_is_held_does_not_change_when_writers_die(race: Race) -> None:
    """The same while the writer is killed and the next one goes on with what it left."""
    holders, kills = race.start_holders(HOLDS_OVER_KILLS // 2), 0
    while kills < KILLS and any(holder.poll() is None for holder in holders):
        race.next_line()
        race.kill_writer()
        race.start_writer()
        kills += 1
    counts = counts_of(holders)
    print(dict(counts), "kills", kills)
    assert kills > 3
    assert (counts["wrong"], counts["late"], counts["ghosts"]) == (0, 0, 0)


@pytest.mark.parametrize("side", ["blind", "careless"])
def test_what_is_held_changes_without_the_two_looks(side: str) -> None:
    """With a writer that does not look at what is held, or readers that do not look again after they have said so,
    bytes change under the readers: both looks are needed, and the race shows it."""
    with tempfile.TemporaryDirectory(prefix="tierd-race-", dir="/dev/shm") as directory:
        race = Race(Path(directory), *(["blind"] if side == "blind" else []))
        try:
            holders = race.start_holders(UNPROTECTED_HOLDS, *(["careless"] if side == "careless" else []))
            counts = counts_of(holders)
        finally:
            race.kill_writer()
    assert counts["wrong"] + counts["late"] > 0
