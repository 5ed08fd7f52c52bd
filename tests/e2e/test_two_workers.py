"""Two worker processes on the same blocks of one daemon."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest
from sharing_worker import BLOCK_BYTES
from worker_process import WorkerProcess

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client, Tier

ROUNDS = 20
BLOCKS = 16


@pytest.fixture
def server(daemon: StartDaemon) -> ServeProcess:
    return daemon(host_bytes="32MiB")


@pytest.fixture
def pair(server: ServeProcess) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    workers = WorkerProcess("sharing_worker.py", server.address), WorkerProcess("sharing_worker.py", server.address)
    for worker in workers:
        worker.wait_for(lambda worker=worker: worker.lines)
    yield workers
    for worker in workers:
        worker.kill()


Pair = tuple[WorkerProcess, WorkerProcess]


def test_each_block_is_stored_once(pair: Pair) -> None:
    """Of two workers that put the same blocks at the same time one is told STORED for each block, the other
    that it exists or is being written; afterwards both read all of them."""
    seen: Counter[str] = Counter()
    for number in range(ROUNDS):
        for worker in pair:
            worker.tell(f"put {number * BLOCKS} {BLOCKS}")
        for both in zip(*(_answer(worker, "put", number) for worker in pair), strict=True):
            assert both.count("STORED") == 1
            assert set(both) <= {"STORED", "EXISTS", "BUSY"}
            seen.update(both)
    for worker in pair:
        assert worker.ask(f"get 0 {ROUNDS * BLOCKS}")["get"] == ROUNDS * BLOCKS
        worker.finish()
    print(dict(seen))


def _answer(worker: WorkerProcess, verb: str, number: int) -> list[str]:
    """What it answers, or has answered, to a verb for that time."""

    def found() -> list[str] | None:
        answers: list[list[str]] = [line[verb] for line in worker.lines if verb in line]
        return answers[number] if len(answers) > number else None

    answer: list[str] = worker.wait_for(found)
    return answer


def test_a_lease_of_one_worker_binds_the_other(pair: Pair) -> None:
    """A worker cannot drop what another one has leased; when that one dies it can."""
    one, other = pair
    assert set(one.ask("put 0 8")["put"]) == {"STORED"}
    assert set(one.ask("lease 0 4")["lease"]) == {"LEASED"}
    assert other.ask("drop 0 8")["drop"] == ["IN_USE"] * 4 + ["DROPPED"] * 4
    one.kill()
    assert _until(lambda: set(other.ask("drop 0 4")["drop"]) == {"DROPPED"})


def test_what_a_dead_worker_was_writing_another_can_write(server: ServeProcess, pair: Pair) -> None:
    """Blocks that one worker is writing are BUSY for another, and can be put as soon as the first is dead."""
    one, other = pair
    assert set(one.ask("reserve 0 8")["reserve"]) == {"GRANTED"}
    assert set(other.ask("put 0 8")["put"]) == {"BUSY"}
    assert other.ask("get 0 8")["get"] == 0
    one.kill()
    assert _until(lambda: set(other.ask("put 0 8")["put"]) == {"STORED"})
    assert other.ask("get 0 8")["get"] == 8
    with Client(server.address) as client:
        host = client.admin.occupancy().tiers[Tier.HOST]
        assert host.reserved_bytes - host.stocked_bytes == host.quarantined_bytes == 0
        assert host.used_bytes == 8 * BLOCK_BYTES


def _until(done: object, within_s: float = 10.0) -> bool:
    """Asks again and again: the kernel tells of a death when it pleases."""
    assert callable(done)
    ends_at = time.monotonic() + within_s
    while not done():
        if time.monotonic() > ends_at:
            return False
    return True
