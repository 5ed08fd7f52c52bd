"""A daemon and a worker on one GPU: its pages by CUDA IPC, fences behind real kernels, deaths on both sides."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tierd.testing.serve import ServeProcess
from tierd_client import Client, Tier

torch = pytest.importorskip("torch")

STARTS_WITHIN_S = 60.0
MIB = 1 << 20


class GpuWorker:
    """gpu_lender.py as a process."""

    def __init__(self, address: str) -> None:
        script = str(Path(__file__).with_name("gpu_lender.py"))
        self.process = subprocess.Popen(
            [sys.executable, script, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.line()

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, "the worker has ended"
        reply: dict[str, Any] = json.loads(text)
        return reply

    def ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        reply = self.line()
        return reply[command.split()[0]] if "text" not in reply else reply

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)


@pytest.fixture(scope="module")
def served() -> Iterator[ServeProcess]:
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        settings = {"max_lent_pools": 8, "hbm_bytes": "256MiB", "hbm_device": "cuda:0", "host_bytes": "512MiB"}
        one = ServeProcess(Path(state), Path(shm), settings).start()
        yield one
        one.kill()
        print(one.log)


@pytest.fixture
def worker(served: ServeProcess) -> Iterator[GpuWorker]:
    one = GpuWorker(served.address)
    yield one
    one.kill()


@pytest.fixture
def client(served: ServeProcess) -> Iterator[Client]:
    with Client(served.address) as one:
        yield one


def until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)


def read(client: Client, seed: int) -> Any:
    from gpu_lender import LAYOUT, name

    return client.namespace(LAYOUT).get([name(seed)], timeout_s=20)[0]


def expect(client: Client, seed: int) -> None:
    from gpu_lender import pattern

    block = read(client, seed)
    assert block is not None
    assert np.array_equal(block, pattern(seed))


def test_others_read_pages_of_a_gpu(worker: GpuWorker, client: Client) -> None:
    """A block in the worker's device memory is read by another process, put together from its pieces."""
    worker.ask("fill 4095 1")
    assert worker.ask("adopt 1 4095") == "ADOPTED"
    expect(client, 1)
    worker.ask("free")


def test_a_page_is_read_behind_its_kernel(worker: GpuWorker, client: Client) -> None:
    """With a kernel still to write it, a page is copied after that: never what lay there before."""
    for round_ in range(20):
        seed = 100 + round_
        worker.ask(f"fill 7 {seed + 1000}")
        assert worker.ask(f"spin 20 {seed} 7") == "ADOPTED"
        expect(client, seed)
        assert worker.ask("withdraw 0 7") == {"7": "WITHDRAWN"}


def test_evict_and_save_free_pages(worker: GpuWorker, client: Client) -> None:
    """After an evict, and after a withdraw that saves, the page may be overwritten: the block stays what it was."""
    worker.ask("fill 1 201")
    worker.ask("adopt 201 1")
    assert worker.ask("evict 201") == "MOVED"
    worker.ask("fill 2 202")
    worker.ask("adopt 202 2")
    assert worker.ask("withdraw 1 2") == {"2": "WITHDRAWN"}
    for page in (1, 2):
        worker.ask(f"fill {page} 999")
    expect(client, 201)
    expect(client, 202)


def test_a_killed_worker_gives_its_memory_back(
    served: ServeProcess, client: Client, record_property: Callable[[str, object], None]
) -> None:
    """After kill -9 its blocks are a miss, the daemon lives, and device memory is what it was within 5 s."""
    expected = torch.cuda.mem_get_info()[0]
    for round_ in range(5):
        worker = GpuWorker(served.address)
        worker.ask("fill 3 301")
        worker.ask("adopt 301 3")
        worker.kill()
        until(lambda: not client.admin.occupancy().tiers[Tier.HBM].lent_blocks)
        assert read(client, 301) is None, round_
    until(lambda: torch.cuda.mem_get_info()[0] >= expected - 64 * MIB, 5)
    record_property("lost_after_5_kills_mib", (expected - torch.cuda.mem_get_info()[0]) // MIB)
    assert served.process is not None
    assert served.process.poll() is None


def test_a_killed_daemon_leaves_the_worker_well(
    served: ServeProcess, worker: GpuWorker, client: Client
) -> None:
    """After kill -9 of the daemon the worker's memory is its own, and it lends it again to the next one."""
    worker.ask("fill 5 401")
    worker.ask("adopt 401 5")
    served.kill()
    assert worker.ask("withdraw 0 5") == {"5": "WITHDRAWN"}
    served.start()
    worker.ask("fill 5 402")
    assert worker.ask("adopt 402 5") == "ADOPTED"
    expect(client, 402)


def test_tiers_with_hbm_of_the_daemons_own(client: Client) -> None:
    """Blocks go up to device memory that the daemon owns, and come back byte by byte."""
    from gpu_lender import LAYOUT, name, pattern

    ns = client.namespace(LAYOUT)
    ids = [name(seed) for seed in range(500, 564)]
    ns.put(ids, [pattern(seed) for seed in range(500, 564)])
    assert {one.name for one in ns.readmit(ids, to="hbm", timeout_s=20)} == {"READY"}
    assert {one.name for one in ns.evict(ids, to="host", timeout_s=20)} == {"MOVED"}
    for seed in (500, 531, 563):
        expect(client, seed)


def test_hbm_of_the_daemon_is_read_on_the_gpu(served: ServeProcess) -> None:
    """A lease of a block in the daemon's device memory gives a tensor on the GPU with the block's bytes, and one in
    host memory that CUDA knows as pinned."""
    from gpu_lender import LAYOUT, name, pattern

    with Client(served.address, shared_memory="require", cuda_pinned=True, rpc_timeout_s=60) as client:
        ns = client.namespace(LAYOUT)
        ns.put([name(601), name(602)], [pattern(601), pattern(602)])
        ns.readmit([name(601)], to="hbm", timeout_s=20)
        for round_ in range(2):
            with ns.acquire([name(601), name(602)], on_device=True, timeout_s=20) as lease:
                there, host = lease.tensors()
                assert there.is_cuda, round_
                assert np.array_equal(there.cpu().numpy().reshape(-1), pattern(601))
                assert np.array_equal(host.numpy().reshape(-1), pattern(602))
                assert np.array_equal(host.to("cuda").cpu().numpy().reshape(-1), pattern(602))
