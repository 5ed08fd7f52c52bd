"""An engine's own pages, lent by a process of its own: what others read of them, and who reads them when."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lending_worker import BLOCK, LAYOUT, name, pattern
from worker_process import WorkerProcess

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import (
    AdoptOutcome,
    Client,
    EvictOutcome,
    FailedPrecondition,
    Fence,
    InvalidArgument,
    Layout,
    Namespace,
    Piece,
    SharedRegion,
    Tier,
    Tiers,
    WithdrawOutcome,
    pieces_of,
)

SETTINGS = {"max_lent_pools": 4, "lent_fence_timeout_ms": 1000}


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    """One daemon for all tests that leave it as it was."""
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        one = ServeProcess(Path(state), Path(shm), dict(SETTINGS)).start()
        yield one
        one.kill()
        print(one.log)


def begin(served: ServeProcess) -> WorkerProcess:
    one = WorkerProcess("lending_worker.py", served.address)
    one.wait_for(lambda: one.lines)
    return one


@pytest.fixture(scope="module")
def worker(served: ServeProcess) -> Iterator[WorkerProcess]:
    """One worker for all tests, each with blocks of its own, which have given their pages back at the end."""
    one = begin(served)
    yield one
    one.kill()


@pytest.fixture(scope="module")
def client(served: ServeProcess) -> Iterator[Client]:
    with Client(served.address, name="reader") as one:
        yield one


@pytest.fixture(scope="module")
def ns(client: Client) -> Namespace:
    return client.namespace(LAYOUT)


def lend(worker: WorkerProcess, seed: int, page: int, fence: int = 0) -> None:
    worker.ask(f"fill {page} {seed}")
    assert worker.ask(f"adopt {seed} {page} {fence}")["adopt"] == "ADOPTED"


def tiers(ns: Namespace, seed: int) -> Tiers:
    return ns.lookup([name(seed)]).tiers[0]


def mapped_pools(served: ServeProcess) -> int:
    """How many mappings of lent memory the daemon has."""
    return Path(f"/proc/{served.pid}/maps").read_text().count("tierd-lent")


def until(true: Callable[[], bool], within_s: float = 10.0) -> None:
    """Waits for something that another process brings about."""
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def occupancy(client: Client) -> Any:
    return client.admin.occupancy().tiers[Tier.HBM]


def test_others_read_what_a_worker_lends(worker: WorkerProcess, ns: Namespace) -> None:
    """A get of a lent block returns its bytes, put together from the worker's pages without its help."""
    lend(worker, 1, page=1)
    assert tiers(ns, 1) == Tiers.HBM
    (block,) = ns.get([name(1)])
    assert np.array_equal(block, pattern(1))
    assert tiers(ns, 1) == Tiers.HBM | Tiers.HOST
    assert worker.ask("withdraw 0 2000 1")["withdraw"] == {"1": "WITHDRAWN"}


def test_evicting_frees_the_page_for_other_bytes(worker: WorkerProcess, ns: Namespace) -> None:
    """After an evict to host the page may hold anything: the block is what it was."""
    lend(worker, 11, page=1)
    assert worker.ask("evict 11")["evict"] == "MOVED"
    worker.ask("fill 1 99")
    assert tiers(ns, 11) == Tiers.HOST
    assert np.array_equal(ns.get([name(11)])[0], pattern(11))


def test_withdraw_with_save_keeps_the_block(worker: WorkerProcess, ns: Namespace) -> None:
    """A page withdrawn with `save` leaves its block in host; one withdrawn without leaves nothing."""
    lend(worker, 21, page=1)
    lend(worker, 22, page=2)
    assert worker.ask("withdraw 1 2000 1")["withdraw"] == {"1": "WITHDRAWN"}
    assert worker.ask("withdraw 0 2000 2")["withdraw"] == {"2": "WITHDRAWN"}
    worker.ask("fill 1 99")
    assert (tiers(ns, 21), tiers(ns, 22)) == (Tiers.HOST, Tiers.NONE)
    assert np.array_equal(ns.get([name(21)])[0], pattern(21))


def test_a_copy_waits_for_the_fence(worker: WorkerProcess, client: Client, ns: Namespace) -> None:
    """What is stored of a page is what was in it when its fence was reached, not when the copy was asked for."""
    worker.ask("fill 1 99")
    assert worker.ask("adopt 31 1 7")["adopt"] == "ADOPTED"
    evicted: list[EvictOutcome] = []
    call = threading.Thread(target=lambda: evicted.extend(ns.evict([name(31)], to="host")))
    call.start()
    until(lambda: client.admin.occupancy().moves_in_flight == 1)
    worker.ask("fill 1 31")
    worker.ask("reach 7")
    call.join(10)
    assert evicted == [EvictOutcome.MOVED]
    assert np.array_equal(ns.get([name(31)])[0], pattern(31))


def test_a_fence_that_is_not_reached_costs_the_copy_only(
    worker: WorkerProcess, client: Client, ns: Namespace
) -> None:
    """Without its fence nothing is stored, the caller is told within the deadline, and the block stays in hbm."""
    failed = occupancy(client).failed_moves_total
    lend(worker, 41, page=1, fence=1000)
    assert ns.evict([name(41)], to="host", timeout_s=5.0) == [EvictOutcome.FAILED]
    assert tiers(ns, 41) == Tiers.HBM
    assert occupancy(client).failed_moves_total == failed + 1
    worker.ask("reach 1000")
    assert ns.evict([name(41)], to="host") == [EvictOutcome.MOVED]


def test_a_page_that_is_read_is_not_given_back(worker: WorkerProcess, ns: Namespace) -> None:
    """While a copy of it is under way a page is PENDING, or abandoned at once if the copy has not begun."""
    lend(worker, 51, page=1, fence=2000)
    assert ns.get([name(51)], timeout_s=0.05) == [None]
    assert worker.ask("withdraw 1 0 1")["withdraw"] == {"1": "PENDING"}
    assert worker.ask("withdraw 0 500 1")["withdraw"] == {"1": "WITHDRAWN"}
    assert tiers(ns, 51) == Tiers.NONE


def test_a_pool_that_is_taken_back_takes_no_more_pages(worker: WorkerProcess, ns: Namespace) -> None:
    """From a withdraw of all its pages on a pool is refused another, which its end would leave lent for ever."""
    lend(worker, 55, page=1, fence=5000)
    assert worker.ask("withdraw 1 0")["withdraw"] == {"1": "PENDING"}
    assert "being given back" in worker.ask("adopt 56 2 0")["text"]
    worker.ask("reach 5000")
    assert worker.ask("withdraw 1 2000")["withdraw"] == {"1": "WITHDRAWN"}
    assert (tiers(ns, 55), tiers(ns, 56)) == (Tiers.HOST, Tiers.NONE)


def test_a_page_is_not_lent_twice(worker: WorkerProcess) -> None:
    """A page that was not withdrawn is refused for another block, in words that say what to do."""
    lend(worker, 61, page=1)
    reply = worker.ask("adopt 62 1 0")
    assert reply["adopt"] == "FailedPrecondition"
    assert "page 1 " in reply["text"]
    assert "withdraw it first" in reply["text"]
    worker.ask("withdraw 0 2000 1")


def test_a_dead_worker_lends_nothing(served: ServeProcess, client: Client, ns: Namespace) -> None:
    """With its process goes what it lent, and the daemon's view of its memory; what others had of it stays."""
    worker = begin(served)
    pools = mapped_pools(served)
    lend(worker, 71, page=3)
    lend(worker, 72, page=4)
    ns.get([name(72)])
    worker.kill()
    until(lambda: not occupancy(client).lent_blocks and mapped_pools(served) < pools)
    assert (tiers(ns, 71), tiers(ns, 72)) == (Tiers.NONE, Tiers.HOST)
    assert ns.get([name(71)]) == [None]


def test_a_closed_pool_is_no_longer_mapped(served: ServeProcess, ns: Namespace) -> None:
    """When a worker has taken all of its pages back and is gone the daemon has given its memory up."""
    pools = mapped_pools(served)
    worker = begin(served)
    lend(worker, 81, page=3)
    assert mapped_pools(served) > pools
    assert worker.ask("close")["close"] is True
    assert tiers(ns, 81) == Tiers.NONE
    worker.finish()
    until(lambda: mapped_pools(served) == pools)


def test_limits_of_lending(served: ServeProcess) -> None:
    """Plans that leave their memory, overlap or do not fit the block are refused by the name of the field."""
    with Client(served.address, shared_memory="require") as client:
        region = SharedRegion(4 * BLOCK)
        kv = region.array.reshape(4, BLOCK)
        with pytest.raises(InvalidArgument, match=r"pieces\[0\].*page 4"):
            client.lend([region], pieces_of([kv], 0), pages=5)
        with pytest.raises(InvalidArgument, match=r"pieces\[0\].*overlap"):
            client.lend([region], [Piece(0, 0, 4095, BLOCK)], pages=2)
        pool = client.lend([region], pieces_of([kv], 0), pages=4)
        ns = client.namespace(Layout.opaque(block_bytes=2 * BLOCK))
        with pytest.raises(InvalidArgument, match="pool: its pages have 4096 bytes, a block has 8192"):
            ns.adopt(pool, [b"x"], [0])
        right = client.namespace(LAYOUT)
        with pytest.raises(InvalidArgument, match="pages: 4: the pool has pages 0 to 3"):
            right.adopt(pool, [b"x"], [4])
        with pytest.raises(InvalidArgument, match="fences: the pool has no fence"):
            right.adopt(pool, [b"x"], [0], fences=[3])
        assert right.adopt(pool, [b"x"], [0]) == [AdoptOutcome.ADOPTED]
        assert pool.withdraw() == {0: WithdrawOutcome.WITHDRAWN}


def test_without_a_gpu_a_client_that_asks_for_one_reads_all_the_same(
    served: ServeProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """Pinning that is refused is one line in the log; a lease for a device is one of host memory."""
    with Client(served.address, shared_memory="require", cuda_pinned=True) as client:
        ns = client.namespace(LAYOUT)
        ns.put([name(91)], [pattern(91)])
        with ns.acquire([name(91)], on_device=True) as lease:
            assert np.array_equal(lease.views()[0], pattern(91))
    if not torch.cuda.is_available():
        assert len([one for one in caplog.records if "not pinned" in one.message]) == 1


def test_lending_goes_on_after_the_daemon_was_killed(daemon: StartDaemon) -> None:
    """A new daemon knows of no loan; the worker's pages are free without it, and it lends again as before."""
    served = daemon(**SETTINGS)
    worker = begin(served)
    with Client(served.address) as client:
        ns = client.namespace(LAYOUT)
        lend(worker, 1, page=3)
        ns.get([name(1)])
        lend(worker, 2, page=4)
        served.kill()
        assert worker.ask("withdraw 0 1000 4")["withdraw"] == {"4": "WITHDRAWN"}
        served.start()
        assert (tiers(ns, 1), tiers(ns, 2)) == (Tiers.HOST, Tiers.NONE)
        lend(worker, 5, page=4)
        assert np.array_equal(ns.get([name(5)])[0], pattern(5))
    worker.kill()


def test_lending_is_off_by_default(daemon: StartDaemon) -> None:
    """Without the setting, and for a client that has no shared memory, lending is refused in words."""
    address = daemon().address
    region = SharedRegion(BLOCK)
    pieces = pieces_of([region.array.reshape(1, BLOCK)], 0)
    with Client(address) as client, pytest.raises(FailedPrecondition, match="max_lent_pools is 0"):
        client.lend([region], pieces, pages=1)
    with Client(address, shared_memory="never") as client, pytest.raises(FailedPrecondition, match="streams"):
        client.lend([region], pieces, pages=1, fence=Fence())
