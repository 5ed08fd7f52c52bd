"""A worker's tensors on a real GPU, through a daemon with host memory alone."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tierd.testing.serve import ServeProcess
from tierd_client import AcquireOutcome, Client, Layout, PagedKV, PutOutcome, chain_ids

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.device, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

LAYOUT = Layout(model="m", dtype="bfloat16", layers=16, kv_heads=8, head_dim=128, block_tokens=16)
SHAPE = (2, 16, 16, 8, 128)
BLOCKS = 48


@pytest.fixture(params=["require", "never"])
def ns(request: pytest.FixtureRequest) -> Iterator[Any]:
    state = Path(tempfile.mkdtemp(prefix="tierd-cuda-"))
    shm = Path(tempfile.mkdtemp(prefix="tierd-cuda-", dir="/dev/shm"))
    server = ServeProcess(state, shm, {"host_bytes": "256MiB"}).start()
    with Client(server.address, shared_memory=request.param) as client:
        yield client.namespace(LAYOUT)
    server.kill()
    for directory in (state, shm):
        shutil.rmtree(directory, ignore_errors=True)


def test_bytes_of_a_gpu_come_back(ns: Any) -> None:
    """What kernels of a side stream have written is what is stored, though nobody waited for them; it is read onto
    the GPU, where the caller's next kernel sees it."""
    ids = chain_ids(LAYOUT, range(16 * BLOCKS))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        tensors = torch.randn(BLOCKS, *SHAPE, device="cuda").to(torch.bfloat16)
        assert ns.put(ids, tensors) == [PutOutcome.STORED] * BLOCKS
        got = ns.get(ids, device="cuda")
        assert all(torch.equal(one, sent) for one, sent in zip(got, tensors, strict=True))
        into = torch.empty_like(tensors)
        torch.cuda._sleep(50_000_000)
        into.fill_(7)
        assert ns.get_into(ids, into) == [AcquireOutcome.LEASED] * BLOCKS
        assert torch.equal(into, tensors)
    assert all(torch.equal(one, sent.cpu()) for one, sent in zip(ns.get(ids, torch=True), tensors, strict=True))


def test_memory_of_results_is_not_handed_on_too_soon(ns: Any) -> None:
    """Tensors that are freed while kernels of the caller's stream still read them keep their bytes until then."""
    ids = chain_ids(LAYOUT, range(16 * BLOCKS))
    tensors = torch.randn(BLOCKS, *SHAPE, device="cuda").to(torch.bfloat16)
    ns.put(ids, tensors)
    sums = []
    for _ in range(8):
        got = ns.get(ids, device="cuda")
        torch.cuda._sleep(20_000_000)
        sums.append(torch.stack([one.float().sum() for one in got]))
        del got
    expected = torch.stack([one.float().sum() for one in tensors])
    assert all(torch.equal(one, expected) for one in sums)


def test_pages_of_a_gpu_go_both_ways(ns: Any) -> None:
    """What kernels of the caller's stream have written to an engine's pages is stored, and read into other pages,
    layer by layer, where the caller's next kernel sees it."""
    ids = chain_ids(LAYOUT, range(16 * BLOCKS))
    pages = torch.randperm(BLOCKS + 16)[:BLOCKS]
    torch.cuda._sleep(50_000_000)
    kv = [torch.randn(2, BLOCKS + 16, 16, 8, 128, device="cuda").to(torch.bfloat16) for _ in range(16)]
    assert ns.put_pages(ids, PagedKV(LAYOUT, kv), pages) == [PutOutcome.STORED] * BLOCKS
    for block, page in zip(ns.get(ids, device="cuda"), pages.tolist(), strict=True):
        assert all(torch.equal(block[:, layer], tensor[:, page]) for layer, tensor in enumerate(kv))
    into = [torch.zeros_like(tensor) for tensor in kv]
    told: list[int] = []
    outcomes = ns.get_pages(ids, PagedKV(LAYOUT, into), range(BLOCKS), after_layer=told.append)
    assert outcomes == [AcquireOutcome.LEASED] * BLOCKS and told == list(range(16))
    for tensor, sent in zip(into, kv, strict=True):
        assert torch.equal(tensor[:, :BLOCKS], sent[:, pages.cuda()]) and not tensor[:, BLOCKS:].any()
