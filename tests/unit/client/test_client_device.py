"""Tensors of a GPU go in and out through staging buffers, and no copy outlives its call: with a fake device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_daemon import ScriptedDaemon
from twins import TWINS, client_of

from tierd_client import AcquireOutcome, Layout, PagedKV, PutOutcome, chain_ids, errors, paged_device, staging
from tierd_client.payload import flat_blocks, writable_blocks

torch = pytest.importorskip("torch")
from fake_device import LazyCopier, from_device, on_device  # noqa: E402 - imports torch

BLOCKS = 7
LAYOUT = Layout(model="m", dtype="bfloat16", layers=2, kv_heads=2, head_dim=8, block_tokens=4)
SIZE = LAYOUT.groups[0].block_bytes
SHAPE = (2, 2, 4, 2, 8)
IDS = chain_ids(LAYOUT, range(4 * BLOCKS))


@pytest.fixture(autouse=True)
def copiers(monkeypatch: pytest.MonkeyPatch) -> list[LazyCopier]:
    """All copiers that a test makes."""
    monkeypatch.setitem(staging.COPIERS, "cuda", LazyCopier)
    LazyCopier.made = []
    return LazyCopier.made


@pytest.fixture(params=TWINS)
def served(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[ScriptedDaemon, Any]]:
    daemon = ScriptedDaemon(tmp_path / "s.sock", max_ids=3)
    daemon.start()
    with client_of(request.param, daemon.target) as client:
        yield daemon, client.namespace(LAYOUT)
    daemon.stop()


def _tensors() -> Any:
    return torch.randn(BLOCKS, *SHAPE).to(torch.bfloat16)


def _bytes(tensor: Any) -> bytes:
    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


@pytest.mark.parametrize("whole", [True, False])
def test_tensors_of_a_device_are_stored(served: tuple[ScriptedDaemon, Any], whole: bool) -> None:
    """One tensor of all blocks, or one a block: the bytes that are stored are those on the device."""
    daemon, ns = served
    tensors = _tensors()
    given = on_device(tensors) if whole else [on_device(one) for one in tensors]
    assert ns.put(IDS, given) == [PutOutcome.STORED] * BLOCKS
    assert [daemon.blocks[identity] for identity in IDS] == [_bytes(one) for one in tensors]


def test_blocks_are_read_onto_a_device(served: tuple[ScriptedDaemon, Any], copiers: list[LazyCopier]) -> None:
    """get makes tensors there, get_into fills given ones; both return when every copy is done, and leave out what
    is absent."""
    daemon, ns = served
    tensors = _tensors()
    ns.put(IDS, tensors)
    del daemon.blocks[IDS[2]]
    got = ns.get(IDS, device="cuda")
    assert [one is None for one in got] == [index == 2 for index in range(BLOCKS)]
    for one, sent in zip(got, tensors, strict=True):
        if one is not None:
            assert torch.equal(from_device(one), sent)
    into = on_device(torch.zeros_like(tensors))
    outcomes = ns.get_into(IDS, into)
    assert outcomes == [AcquireOutcome.MISS if index == 2 else AcquireOutcome.LEASED for index in range(BLOCKS)]
    filled = from_device(into)
    assert all(torch.equal(filled[i], tensors[i]) for i in range(BLOCKS) if i != 2)
    assert not filled[2].any()
    assert not any(copier.pending for copier in copiers)


def test_a_damaged_block_never_reaches_the_device(
    served: tuple[ScriptedDaemon, Any], copiers: list[LazyCopier],
) -> None:
    """Bytes are compared with their checksum before they are copied onwards."""
    daemon, ns = served
    ns.put(IDS[:1], _tensors()[:1])
    daemon.corrupt_reads = True
    into = on_device(torch.zeros(1, *SHAPE, dtype=torch.bfloat16))
    assert ns.get_into(IDS[:1], into) == [AcquireOutcome.LOST]
    assert not from_device(into).any()
    assert copiers[-1].copied_bytes == 0


def test_an_error_leaves_no_copy_under_way(served: tuple[ScriptedDaemon, Any], copiers: list[LazyCopier]) -> None:
    """When a read fails in the middle, what it had started to copy is done when the call raises."""
    daemon, ns = served
    ns.put(IDS[:3], _tensors()[:3])
    daemon.cut_reads = 10
    with pytest.raises(errors.BrokenPeer):
        ns.get_into(IDS[:3], on_device(torch.zeros(3, *SHAPE, dtype=torch.bfloat16)))
    assert copiers[-1].copied_bytes == 2 * SIZE
    assert not copiers[-1].pending


def test_blocks_of_a_device_are_fetched_ahead() -> None:
    """While the CPU has one block the next one is on its way; each is there when it is asked for, also when some
    are left out or asked for twice."""
    flat = [on_device(torch.full((SIZE,), i, dtype=torch.uint8)) for i in range(BLOCKS)]
    source = staging.source_of(flat, "tensors")
    copier = LazyCopier.made[-1]
    for index in (0, 1, 3, 3, 6, 2):
        assert (source.block(index) == index).all()
        assert copier.pending == (1 if index + 1 < BLOCKS and index != 2 else copier.pending)
    assert [int(block[0]) for block in source.host()] == list(range(BLOCKS))
    assert [int(block[0]) for block in source.part(2, 4).host()] == [2, 3]


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (lambda cpu, gpu: [gpu, cpu], r"^tensors\[1\]: on cpu, tensors\[0\] on cuda:0"),
        (lambda cpu, gpu: [cpu, gpu], r"^tensors\[1\]: on cuda:0, tensors\[0\] on cpu"),
        (lambda cpu, gpu: [gpu, gpu[:-1]], r"^tensors\[1\]: \d+ bytes"),
        (lambda cpu, gpu: [gpu, torch.empty(SIZE, dtype=torch.uint8, device="meta")], r"^tensors\[1\]: on meta"),
        (lambda cpu, gpu: [torch.empty(SIZE, dtype=torch.uint8, device="meta")] * 2, "^tensors: on meta; only cpu"),
    ],
)
def test_tensors_that_cannot_be_copied_are_named(blocks: Any, message: str) -> None:
    """Several devices in one call, and a device that nobody can copy from, are refused before anything is asked."""
    cpu = torch.zeros(SIZE, dtype=torch.uint8)
    with pytest.raises(errors.InvalidArgument, match=message):
        staging.source_of(flat_blocks(blocks(cpu, on_device(cpu)), 2, SIZE), "tensors")


def test_a_device_that_is_none_is_named(served: tuple[ScriptedDaemon, Any]) -> None:
    """`device` is a torch device, or InvalidArgument says why not; the CPU is one."""
    _, ns = served
    with pytest.raises(errors.InvalidArgument, match=r"^device: 'gpu'"):
        ns.get(IDS, device="gpu")
    with pytest.raises(errors.InvalidArgument, match=r"^device: on meta"):
        ns.get(IDS, device="meta")
    if not torch.cuda.is_available():
        staging.COPIERS["cuda"] = staging.CudaCopier
        with pytest.raises(errors.InvalidArgument, match=r"^device: on cuda, which is not there"):
            ns.get(IDS, device="cuda")
    ns.put(IDS[:1], _tensors()[:1])
    assert ns.get(IDS[:1], device="cpu")[0].dtype == torch.bfloat16


def test_host_memory_is_not_staged() -> None:
    """Blocks in host memory are given as they are."""
    memory = np.zeros(2 * SIZE, np.uint8)
    blocks = flat_blocks(memory, 2, SIZE)
    assert staging.source_of(blocks, "tensors").host() is blocks
    sink = staging.sink_of(writable_blocks(memory, 2, SIZE), "buffers")
    sink.begin(1)[:] = 5
    sink.ready()
    assert not sink.pending and memory[SIZE:].all() and not memory[:SIZE].any()
    assert not LazyCopier.made


@pytest.mark.parametrize("chunk_blocks", [1, 3, 100])
def test_pages_of_a_device_go_both_ways(
    served: tuple[ScriptedDaemon, Any], copiers: list[LazyCopier], monkeypatch: pytest.MonkeyPatch,
    chunk_blocks: int,
) -> None:
    """Pages on a device are stored and read, layers are told when they are there, and no copy outlives its call,
    however many blocks go at once."""
    daemon, ns = served
    monkeypatch.setattr(paged_device, "CHUNK_BYTES", chunk_blocks * SIZE // 2)
    cache = torch.randn(2, BLOCKS + 1, 2, 4, 2, 8).to(torch.bfloat16)  # layers, pages, parts
    order = [3, 0, 7, 1, 2, 6, 4]
    paged = PagedKV(LAYOUT, [on_device(layer) for layer in cache], page_axis=0)
    assert ns.put_pages(IDS, paged, order) == [PutOutcome.STORED] * BLOCKS
    stored = [daemon.blocks[identity] for identity in IDS]
    assert stored == [_bytes(cache[:, page].swapaxes(0, 1)) for page in order]
    del daemon.blocks[IDS[2]]
    target = [on_device(torch.zeros_like(layer)) for layer in cache]
    told: list[int] = []

    def after(layer: int) -> None:
        assert torch.equal(from_device(target[layer])[0], cache[layer][3])
        told.append(layer)

    outcomes = ns.get_pages(IDS, PagedKV(LAYOUT, target, page_axis=0), range(BLOCKS), after_layer=after)
    assert outcomes == [AcquireOutcome.MISS if index == 2 else AcquireOutcome.LEASED for index in range(BLOCKS)]
    assert told == [0, 1]
    for index, page in enumerate(order):
        for layer in range(2):
            expected = torch.zeros_like(cache[layer][page]) if index == 2 else cache[layer][page]
            assert torch.equal(from_device(target[layer])[index], expected)
    assert not any(copier.pending for copier in copiers)


def test_pages_of_several_devices_are_named() -> None:
    """All tensors are on one device, and on one that can be copied from."""
    cpu = torch.zeros(2, 3, 4, 2, 8, dtype=torch.bfloat16)
    with pytest.raises(errors.InvalidArgument, match=r"^tensors\[1\]: on cpu, tensors\[0\] on cuda:0; one PagedKV"):
        PagedKV(LAYOUT, [on_device(cpu), cpu])
    with pytest.raises(errors.InvalidArgument, match=r"^tensors: on meta; only cpu"):
        PagedKV(LAYOUT, [cpu.to("meta")] * 2)
