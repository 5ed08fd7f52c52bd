"""Engines' pages through a real daemon: what one worker stores out of its pages another reads into its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paged_worker import LAYERS, LAYOUT, PAGE, content
from twins import TWINS, client_of
from worker_process import WorkerProcess

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import AcquireOutcome, InvalidArgument, Layout, PagedKV, PutOutcome, chain_ids

DOCUMENT = Path(__file__).parents[2] / "docs" / "paged.md"
BLOCKS = 12
IDS = [b"%d" % number for number in range(BLOCKS)]
ORDER = np.random.default_rng(0).permutation(BLOCKS + 3)[:BLOCKS]
STORED, LEASED, MISS = PutOutcome.STORED, AcquireOutcome.LEASED, AcquireOutcome.MISS


@pytest.fixture(scope="module")
def server(module_daemon: StartDaemon) -> ServeProcess:
    return module_daemon(host_bytes="32MiB", max_ids=5)


@pytest.fixture(params=[(twin, memory) for twin in TWINS for memory in ("require", "never")], ids="-".join)
def ns(server: ServeProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    twin, memory = request.param
    with client_of(twin, server.address, shared_memory=memory) as client:
        yield client.namespace(LAYOUT.replace(revision="-".join(request.param) + request.node.name))


def full() -> list[Any]:
    """Tensors of each layer in whose page ORDER[i] block i lies."""
    layers = [np.zeros((2, BLOCKS + 3, *PAGE), np.float16) for _ in range(LAYERS)]
    for number, page in enumerate(ORDER):
        for layer in range(LAYERS):
            layers[layer][:, page] = content(number)[:, layer]
    return layers


def test_two_processes_share_blocks_of_different_pages(server: ServeProcess) -> None:
    """A worker whose pages are laid out and numbered otherwise reads what the first one stored, layer by layer, and
    leaves alone the pages of blocks that are not there."""
    with client_of("sync", server.address) as client:
        assert client.namespace(LAYOUT).put_pages(IDS, PagedKV(LAYOUT, full()), ORDER) == [STORED] * BLOCKS
    worker = WorkerProcess("paged_worker.py", server.address)
    answer = worker.ask(f"get 0 {BLOCKS + 1}", 60.0) if worker.wait_for(lambda: worker.lines) else {}
    worker.finish()
    assert answer["get"] == ["LEASED"] * BLOCKS + ["MISS"]
    assert answer["right"] == [True] * BLOCKS + [False]
    assert answer["layers"] == list(range(LAYERS)) and not answer["page_0"]


def test_blocks_go_in_and_out_of_pages(ns: Any) -> None:
    """By shared memory and by stream: pages hold what was stored, in `get` it is the same block, and what another
    process of the layout put is read into pages; outcomes are those of `put` and `get_into`."""
    assert ns.put_pages(IDS[:7], PagedKV(ns.layout, full()), ORDER[:7]) == [STORED] * 7
    assert ns.put_pages(IDS[:8], PagedKV(ns.layout, full()), ORDER[:8]) == [PutOutcome.EXISTS] * 7 + [STORED]
    for number, block in enumerate(ns.get(IDS[:8])):
        assert np.array_equal(block, content(number))
    pages = [np.full((2, BLOCKS, *PAGE), -1, np.float16) for _ in range(LAYERS)]
    assert ns.get_pages(IDS, PagedKV(ns.layout, pages), range(BLOCKS)) == [LEASED] * 8 + [MISS] * 4
    for layer, tensor in enumerate(pages):
        assert all(np.array_equal(tensor[:, number], content(number)[:, layer]) for number in range(8))
        assert (tensor[:, 8:] == -1).all()


def test_layers_are_stored_as_they_are_computed(ns: Any) -> None:
    """Each layer is copied when `before_layer` returns, in order and once, though the blocks are several calls."""
    ready, pages, told = full(), [np.zeros_like(layer) for layer in full()], []

    def compute(layer: int) -> None:
        told.append(layer)
        pages[layer][...] = ready[layer]

    ids = IDS[:5]
    assert ns.put_pages(ids, PagedKV(ns.layout, pages), ORDER[:5], before_layer=compute) == [STORED] * 5
    assert told == list(range(LAYERS))
    assert all(np.array_equal(block, content(number)) for number, block in enumerate(ns.get(ids)))
    assert ns.put_pages(IDS, PagedKV(ns.layout, ready), ORDER, before_layer=told.append).count(STORED) == BLOCKS - 5
    assert all(np.array_equal(block, content(number)) for number, block in enumerate(ns.get(IDS)))


def test_pages_may_change_when_the_put_that_does_not_wait_returns(ns: Any) -> None:
    """Without `wait` the pages are copied when it returns: what is found later is what they held then."""
    pages = full()
    queued = ns.put_pages(IDS, PagedKV(ns.layout, pages), ORDER, wait=False)
    assert set(queued) <= {PutOutcome.QUEUED, STORED}
    for layer in pages:
        layer.fill(-1)
    assert ns.put_pages(IDS, PagedKV(ns.layout, full()), ORDER) == [PutOutcome.EXISTS] * BLOCKS
    assert all(np.array_equal(block, content(number)) for number, block in enumerate(ns.get(IDS)))


def test_an_engine_that_fails_in_between_stores_nothing(ns: Any) -> None:
    """What `before_layer` raises comes out of the call; the slots are given back and can be had again."""

    def fail(layer: int) -> None:
        if layer == 2:
            raise RuntimeError("the forward pass died")

    paged = PagedKV(ns.layout, full())
    with pytest.raises(RuntimeError, match="the forward pass died"):
        ns.put_pages(IDS, paged, ORDER, before_layer=fail)
    with pytest.raises(RuntimeError, match="the forward pass died"):
        ns.get_pages(IDS, paged, ORDER, after_layer=fail)
    assert ns.put_pages(IDS, paged, ORDER) == [STORED] * BLOCKS


def test_pages_are_read_within_the_guard_alone(ns: Any) -> None:
    """What the pages hold before it is entered and after it is left is not stored; where it cannot be entered
    nothing is, and its error comes out of the call."""
    ready, pages = full(), [np.zeros_like(layer) for layer in full()]

    @contextmanager
    def there() -> Iterator[None]:
        for layer, right in zip(pages, ready, strict=True):
            layer[...] = right
        yield
        for layer in pages:
            layer[...] = 0

    def wanted_back() -> AbstractContextManager[None]:
        raise RuntimeError("wanted back")

    paged = PagedKV(ns.layout, pages)
    with pytest.raises(RuntimeError, match="wanted back"):
        ns.put_pages(IDS, paged, ORDER, guard=wanted_back)
    assert ns.get(IDS) == [None] * BLOCKS
    assert ns.put_pages(IDS, paged, ORDER, guard=there) == [STORED] * BLOCKS
    assert all(np.array_equal(block, content(number)) for number, block in enumerate(ns.get(IDS)))


def test_pages_of_another_layout_are_refused(ns: Any) -> None:
    """Nothing is asked of the daemon when the pages are not of the blocks' geometry, or not pages at all."""
    other = Layout(model="m", dtype="float16", layers=LAYERS, kv_heads=2, head_dim=32, block_tokens=16)
    paged = PagedKV(other, [np.zeros((2, 3, 16, 2, 32), np.float16)] * LAYERS)
    with pytest.raises(InvalidArgument, match=r"^paged: of Group\(.*; the ids are of Group"):
        ns.put_pages(IDS[:1], paged, [0])
    with pytest.raises(InvalidArgument, match=r"^paged: list is no PagedKV"):
        ns.get_pages(IDS[:1], full(), [0])


def test_the_example_runs_as_it_stands(server: ServeProcess) -> None:
    """The code of docs/paged.md stores and reads a prompt's blocks, layer by layer as well."""
    torch = pytest.importorskip("torch")
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    changed = code.replace("unix:///run/tierd/tierd.sock", server.address)
    assert changed != code
    names: dict[str, Any] = {"token_ids": list(range(40)), "torch": torch}
    exec(compile(changed, "paged.md", "exec"), names)
    assert names["stored"] == [STORED] * 2 and names["read"] == [LEASED] * 2
    assert all(torch.equal(cache[:, [7, 3]], cache[:, [0, 1]]) for cache in names["kv_caches"])
    assert chain_ids(names["layout"], range(40)) == names["ids"]
