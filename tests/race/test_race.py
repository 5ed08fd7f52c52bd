"""Readers in other processes against a writer that re-uses slots all the time: no read gives a wrong byte.

    race_writer.py: engine ──▶ catalog, segment (shared memory) ◀── race_reader.py x 2, read-only, no RPC
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

READS = 1_000_000
READERS = 2
CARELESS_READS = 500_000
KILLS = 20
READS_OVER_KILLS = 100_000
WITHIN_S = 240.0
"""Takes about a minute on two cores that have nothing else to do."""


class Race:
    """A writer at work on files of its own, and readers that are started on them."""

    def __init__(self, shm_dir: Path) -> None:
        self._where = [str(shm_dir), secrets.token_hex(16)]
        self.start_writer()

    def start_writer(self) -> None:
        self._writer = self._start("race_writer.py")
        assert self.next_line() == "ready"

    def next_line(self) -> str:
        """What the writer says next."""
        assert self._writer.stdout is not None
        return self._writer.stdout.readline().strip()

    def start_readers(self, readers: int, reads: int, *options: str) -> list[subprocess.Popen[str]]:
        return [self._start("race_reader.py", str(seed), str(reads), *options) for seed in range(readers)]

    def stop_writer(self) -> int:
        """Ends the writer in an orderly way; how many blocks it wrote."""
        out, _ = self._writer.communicate(timeout=30)
        assert self._writer.returncode == 0
        return int(out.split()[-1])

    def kill_writer(self) -> None:
        self._writer.kill()
        self._writer.wait(30)

    def _start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name(script)), *self._where, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def counts_of(readers: list[subprocess.Popen[str]]) -> Counter[str]:
    """Waits for readers; the sum of what they counted."""
    total: Counter[str] = Counter()
    for reader in readers:
        out, _ = reader.communicate(timeout=WITHIN_S)
        assert reader.returncode == 0
        total.update(json.loads(out))
    return total


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
