"""One suite for both twins of the client, by shared memory and by streams, against a real daemon."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from twins import TWINS, client_of

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import (
    AcquireOutcome,
    Client,
    EvictOutcome,
    Group,
    Layout,
    Part,
    PinOutcome,
    PrefetchOutcome,
    Presence,
    Priority,
    PutOutcome,
    ReadmitOutcome,
    Tier,
    chain_ids,
    errors,
    staging,
)

SIZE = 64 << 10
TOKENS = 16
PROMPT = count(1)
"""Each test has blocks of its own: one daemon serves them all."""


@pytest.fixture(scope="module")
def server(module_daemon: StartDaemon) -> ServeProcess:
    """A daemon with all three tiers, and room for what all the tests store."""
    served = module_daemon(hbm_bytes="16MiB", host_bytes="64MiB", spill="embedded", spill_bytes_max="64MiB")
    served.event("spill_up")
    return served


@pytest.fixture(params=[(twin, mode) for twin in TWINS for mode in ("require", "never")], ids="-".join)
def client(server: ServeProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Both twins, by shared memory and by streams."""
    twin, mode = request.param
    with client_of(twin, server.address, shared_memory=mode) as client:
        assert client.maps_memory is (mode == "require")
        yield client


@pytest.fixture
def layout() -> Layout:
    return Layout.opaque(block_bytes=SIZE, block_tokens=TOKENS, revision=str(next(PROMPT)))


def _data(blocks: int, seed: int = 3) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (blocks, SIZE), np.uint8)


def _equal(got: list[Any], sent: Any) -> bool:
    return len(got) == len(sent) and all(
        one is not None and np.array_equal(one, other) for one, other in zip(got, sent, strict=True))


@pytest.mark.parametrize("tier", ["hbm", "host"])
def test_bytes_come_back(client: Any, layout: Layout, tier: str) -> None:
    """What is put is read back as copies, into buffers and under a lease, to the byte."""
    ns, data = client.namespace(layout), _data(8)
    ids = chain_ids(ns, range(8 * TOKENS))
    assert ns.put(ids, data, tier=tier) == [PutOutcome.STORED] * 8
    assert ns.put(ids, data, tier=tier) == [PutOutcome.EXISTS] * 8
    assert _equal(ns.get(ids), data)
    out = np.zeros_like(data)
    assert ns.get_into(ids, out) == [AcquireOutcome.LEASED] * 8
    assert np.array_equal(out, data)
    with ns.acquire(ids) as lease:
        assert _equal(lease.arrays(), data)
        assert len(lease) == 8


def test_blocks_go_down_and_come_up(client: Any, layout: Layout) -> None:
    """Evicted blocks are below, are read from there, and are moved up on demand."""
    ns, data = client.namespace(layout), _data(8)
    ids = chain_ids(ns, range(8 * TOKENS))
    ns.put(ids, data)
    assert ns.evict(ids) == [EvictOutcome.MOVED] * 8
    assert ns.lookup(ids).presence == [Presence.BELOW] * 8
    assert _equal(ns.get(ids[:4]), data[:4])
    assert ns.readmit(ids, to="hbm") == [ReadmitOutcome.READY] * 8
    assert ns.lookup(ids).presence == [Presence.READY] * 8
    assert _equal(ns.get(ids), data)


def test_chains_of_groups_and_ranks(client: Any, layout: Layout) -> None:
    """The hit of several groups, and of several ranks, is what all of them have; what it needs is named."""
    tokens = range(8 * TOKENS)
    part = (Part("x", "uint8", (SIZE,)),)
    groups = [Group("full", TOKENS, part), Group("window", TOKENS, part, "window", 2 * TOKENS)]
    hybrid = Layout.of_groups(groups, revision=layout.revision, tp_size=2)
    world = [client.namespace(hybrid.replace(tp_rank=rank)) for rank in (0, 1)]
    for ns, blocks in zip(world, (8, 6), strict=True):
        full, window = ns.chains(tokens)
        assert ns.put(full[:blocks], _data(blocks)) == [PutOutcome.STORED] * blocks
        ns.put(window[3:blocks], _data(blocks)[3:])
        hit = ns.lookup_chains([full, window])
        assert (hit.tokens, list(hit.needed[1])) == (blocks * TOKENS, list(window[blocks - 2 : blocks]))
        assert _equal(ns.get(hit.needed[1]), _data(blocks)[-2:])
    hit = client.lookup_chains([(ns, ids) for ns in world for ids in ns.chains(tokens)])
    assert (hit.tokens, [len(ids) for ids in hit.needed]) == (6 * TOKENS, [6, 2, 6, 2])
    with pytest.raises(errors.InvalidArgument, match="chains: none given"):
        client.lookup_chains([])


def test_a_sequence_over_groups(client: Any, layout: Layout) -> None:
    """A sequence of a prompt's chains pins all of them, and calls for blocks of any of them belong to it."""
    part = (Part("x", "uint8", (SIZE,)),)
    groups = [Group("full", TOKENS, part), Group("state", 4 * TOKENS, part, "boundary")]
    ns = client.namespace(Layout.of_groups(groups, revision=layout.revision))
    full, state = chains = ns.chains(range(8 * TOKENS))
    with ns.sequence("hybrid", chains):
        before = client.admin.occupancy().step
        assert ns.put(full, _data(8)) == [PutOutcome.STORED] * 8
        assert ns.put(state, _data(2)) == [PutOutcome.STORED] * 2
        assert _equal(ns.get(state), _data(2))
        assert client.admin.occupancy().step == before
        dropped = ns.evict(state, to=None, allow_drop=True)
        assert dropped == [EvictOutcome.IN_USE] * 2
        assert [record.touches for record in client.admin.describe(state)] == [1, 1]
    assert ns.evict(state, to=None, allow_drop=True) == [EvictOutcome.DROPPED] * 2
    with ns.sequence("short", ns.chains(range(2 * TOKENS))):
        assert ns.lookup(full).prefix == 8


def test_absent_blocks_are_told(client: Any, layout: Layout) -> None:
    """A miss is None in get, MISS where outcomes are given, and ends the prefix."""
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(5 * TOKENS))
    ns.put(ids[:3], _data(3))
    assert [block is None for block in ns.get(ids)] == [False] * 3 + [True] * 2
    found = ns.lookup(ids)
    assert (found.prefix, found.presence[3]) == (3, Presence.MISS)
    with ns.acquire(ids) as lease:
        assert [one.name for one in lease.outcomes] == ["LEASED"] * 3 + ["MISS"] * 2
        assert lease.views()[4] is None
    assert ns.evict(ids[4:]) == [EvictOutcome.MISS]


def test_a_request_is_one_access(client: Any, layout: Layout) -> None:
    """Calls inside a sequence count once per block, and its attention is reported until it is closed."""
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(4 * TOKENS))
    ns.put(ids, _data(4))
    with ns.sequence("request", ids) as sequence:
        assert sequence.lookup().prefix == 4
        for _ in range(3):
            ns.get(ids)
        assert sequence.observe([0.25] * 4) > 0
        assert ns.evict(ids, to=None, allow_drop=True) == [EvictOutcome.IN_USE] * 4
    records = client.admin.describe(ids)
    assert {record.touches for record in records} <= {2, 3}
    assert ns.evict(ids, to=None, allow_drop=True) == [EvictOutcome.DROPPED] * 4


def test_a_lease_keeps_its_blocks(client: Any, layout: Layout) -> None:
    """Blocks under a lease are not dropped where they are read in place; after its release they are."""
    ns, data = client.namespace(layout), _data(4)
    ids = chain_ids(ns, range(4 * TOKENS))
    ns.put(ids, data)
    lease = ns.acquire(ids)
    if client.maps_memory:
        assert ns.evict(ids, to=None, allow_drop=True) == [EvictOutcome.IN_USE] * 4
    assert _equal(lease.arrays(), data)
    lease.release()
    lease.release()
    assert ns.evict(ids, to=None, allow_drop=True) == [EvictOutcome.DROPPED] * 4
    with pytest.raises(errors.FailedPrecondition, match="released"):
        lease.arrays()


def test_torch_tensors_keep_dtype_and_shape(client: Any) -> None:
    """bfloat16 tensors come back as they went in, as copies and under a lease."""
    torch = pytest.importorskip("torch")
    layout = Layout(
        model="m", dtype="bfloat16", layers=2, kv_heads=2, head_dim=64, block_tokens=TOKENS,
        revision=str(next(PROMPT)))
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(3 * TOKENS))
    tensors = torch.randn(3, 2, 2, TOKENS, 2, 64).to(torch.bfloat16)
    assert ns.put(ids, tensors) == [PutOutcome.STORED] * 3
    assert all(torch.equal(a, b) for a, b in zip(ns.get(ids, torch=True), tensors, strict=True))
    with ns.acquire(ids) as lease:
        assert all(torch.equal(a, b) for a, b in zip(lease.tensors(), tensors, strict=True))


def test_pinned_blocks_are_not_dropped(client: Any, layout: Layout) -> None:
    """A pin keeps blocks from being dropped until it is taken back, and is seen in their records."""
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(4 * TOKENS))
    ns.put(ids[:3], _data(3))
    assert ns.pin(ids, ttl_s=60.0) == [PinOutcome.PINNED] * 3 + [PinOutcome.MISS]
    assert 50 < client.admin.describe(ids[:1])[0].pinned_s <= 60
    assert {record.identity for record in client.admin.list_blocks(pinned=True)} >= set(ids[:3])
    assert ns.evict(ids[:3], to=None, allow_drop=True) == [EvictOutcome.IN_USE] * 3
    assert ns.unpin(ids) == 3
    assert ns.evict(ids[:3], to=None, allow_drop=True) == [EvictOutcome.DROPPED] * 3
    with pytest.raises(errors.InvalidArgument, match="ttl_ms"):
        ns.pin(ids, ttl_s=1e6)
    with pytest.raises(errors.InvalidArgument, match="ttl_s"):
        ns.pin(ids, ttl_s=-1.0)


def test_priority_and_next_use_are_recorded(client: Any, layout: Layout) -> None:
    """Blocks have the priority of the put or the sequence, and what was said when the sequence closed."""
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(4 * TOKENS))
    ns.put(ids[:2], _data(2), priority="low")
    with ns.sequence("request", ids, priority=Priority.HIGH) as sequence:
        ns.put(ids[2:], _data(2))
        sequence.close(next_use="tool_call", expected_s=40.0)
    records = client.admin.describe(ids)
    assert {record.priority for record in records} == {"high"}
    assert {record.next_use for record in records} == {"soon"} and 30 < records[0].expected_s <= 40
    sequence = ns.sequence("again", ids)
    ns.get(ids, sequence="again")
    sequence.close(stop_reason="end_turn")
    assert {record.next_use for record in client.admin.describe(ids)} == {"human"}
    with pytest.raises(errors.InvalidArgument, match="priority: 'urgent' is none of low, normal, high"):
        ns.put(ids, _data(4), priority="urgent")


def test_touches_count(client: Any, layout: Layout) -> None:
    """What the engine's own cache served is counted in the records of blocks and of ghosts."""
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(3 * TOKENS))
    ns.put(ids[:2], _data(2))
    ns.evict(ids[1:2], to=None, allow_drop=True)
    assert ns.touch(ids, counts=[3, 2, 1]) == 2
    assert [record and record.touches for record in client.admin.describe(ids)] == [4, 3, None]
    with pytest.raises(errors.InvalidArgument, match="counts: 1 for 3"):
        ns.touch(ids, counts=[1])


def test_prefetched_blocks_are_there(client: Any, layout: Layout) -> None:
    """A prefetch brings spilled blocks up while the caller does something else, and can be cancelled."""
    ns, data = client.namespace(layout), _data(6)
    ids = chain_ids(ns, range(7 * TOKENS))
    ns.put(ids[:6], data)
    assert ns.evict(ids[:6]) == [EvictOutcome.MOVED] * 6
    ticket = ns.prefetch(ids, to="host", within_s=20.0)
    found = ns.prefetch_status(ticket, timeout_s=10.0)
    assert found.done and found.outcomes == [PrefetchOutcome.READY] * 6 + [PrefetchOutcome.MISS]
    assert ns.lookup(ids[:6]).presence == [Presence.READY] * 6
    assert ns.cancel_prefetch(ticket).done
    with pytest.raises(errors.NotFound, match="ticket"):
        ns.prefetch_status(ticket)
    assert _equal(ns.get(ids[:6]), data)


def test_the_control_plane_answers(client: Any, layout: Layout) -> None:
    """Occupancy, listings page by page, explanations, a plan, verification and clearing are had by both twins."""
    ns = client.namespace(layout)
    ids = chain_ids(ns, range(5 * TOKENS))
    ns.put(ids, _data(5))
    number = client.admin.describe(ids[:1])[0].namespace
    assert client.admin.occupancy().tiers[Tier.HOST].blocks >= 5
    listed = list(client.admin.list_blocks(namespace=number, page_size=2))
    assert {record.identity for record in listed} == set(ids)
    assert len(client.admin.explain(ids).blocks) == 5
    assert client.admin.plan(1 << 40).victim_blocks >= 5
    assert client.admin.verify(ids).verified_blocks == 5
    assert client.admin.clear(namespace=number).host_blocks == 5
    assert ns.lookup(ids).prefix == 0


def test_errors_are_the_same(client: Any, layout: Layout) -> None:
    """A malformed argument, a name that is taken and a call after close raise the same errors."""
    ns = client.namespace(layout, name=layout.revision)
    with pytest.raises(errors.FailedPrecondition, match="revision"):
        client.namespace(Layout.opaque(block_bytes=2 * SIZE, block_tokens=TOKENS), name=layout.revision)
    with pytest.raises(errors.InvalidArgument, match=r"^tensors\[0\]: 5 bytes"):
        ns.put([b"one"], [b"short"])
    client.close()
    with pytest.raises(errors.ClientClosed):
        ns.lookup([b"one"])


def test_tensors_of_a_device_go_in_and_out(client: Any, layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put from a device is what a CPU reads, and is read onto the device again, in every tier's way."""
    torch = pytest.importorskip("torch")
    from fake_device import LazyCopier, from_device, on_device

    monkeypatch.setitem(staging.COPIERS, "cuda", LazyCopier)
    LazyCopier.made = []
    ns, data = client.namespace(layout), _data(9)
    ids = chain_ids(ns, range(9 * TOKENS))
    assert ns.put(ids[:5], data[:5]) == [PutOutcome.STORED] * 5
    assert ns.put(ids, on_device(torch.from_numpy(data))) == [PutOutcome.EXISTS] * 5 + [PutOutcome.STORED] * 4
    assert _equal(ns.get(ids), data)
    assert _equal([from_device(one).numpy() for one in ns.get(ids, device="cuda")], data)
    into = on_device(torch.zeros(9, SIZE, dtype=torch.uint8))
    assert ns.get_into(ids, into) == [AcquireOutcome.LEASED] * 9
    assert np.array_equal(from_device(into).numpy(), data)
    assert not any(copier.pending > 1 for copier in LazyCopier.made)


def _damage(server: ServeProcess, client: Any, identity: bytes) -> None:
    """Changes a byte of a block in host memory, as a stray write or a bad DIMM would."""
    (record,) = client.admin.describe([identity])
    (copy,) = record.copies
    segment, offset = copy.address >> 48, copy.address & (1 << 48) - 1
    (path,) = server.shm_dir.glob(f"tierd-*-seg-{segment}")
    with path.open("r+b") as file:
        file.seek(offset + 100)
        byte = file.read(1)[0]
        file.seek(offset + 100)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("way", ["get", "get_into", "acquire"])
def test_a_damaged_block_is_never_given_out(server: ServeProcess, layout: Layout, client: Any, way: str) -> None:
    """A block whose bytes changed in memory is LOST to every way of reading, counted, and dropped by the daemon;
    its neighbours are read."""
    twin = "sync" if isinstance(client, Client) else "async"
    mode = "require" if client.maps_memory else "never"
    with client_of(twin, server.address, shared_memory=mode, verify="always") as careful:
        ns, data = careful.namespace(layout), _data(3)
        ids = chain_ids(ns, range(3 * TOKENS))
        ns.put(ids, data)
        _damage(server, careful, ids[1])
        if way == "get":
            read = ns.get(ids)
        elif way == "get_into":
            read = np.zeros_like(data)
            assert ns.get_into(ids, read)[1] is AcquireOutcome.LOST
            read = [read[0], None, read[2]]
        else:
            with ns.acquire(ids) as lease:
                read = [None if one is None else one.copy() for one in lease.arrays()]
        assert read[1] is None
        assert _equal([read[0], read[2]], data[[0, 2]])
        assert careful.damaged_blocks == 1
        assert [presence.name for presence in ns.lookup(ids).presence] == ["READY", "MISS", "READY"]
        assert careful.admin.occupancy().leases == 0


def test_the_examples_of_the_clients_readme(server: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both run as they stand: cold all blocks are stored, and the event loop's twin reads them onto a device."""
    torch = pytest.importorskip("torch")
    from fake_device import LazyCopier, from_device

    monkeypatch.setitem(staging.COPIERS, "cuda", LazyCopier)
    LazyCopier.made = []
    text = (Path(__file__).parents[2] / "clients" / "README.md").read_text()
    text = text.replace("unix:///run/tierd/tierd.sock", server.address)
    text = text.replace("layers=32, kv_heads=8, head_dim=128", "layers=2, kv_heads=2, head_dim=64")
    worker, loop = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    tensors = torch.randn(3, 2, 2, TOKENS, 2, 64).to(torch.bfloat16)
    names: dict[str, Any] = {"token_ids": list(range(3 * TOKENS + 2)), "tensors": tensors}
    exec(compile(worker, "README.md", "exec"), names)
    body = "async def main():\n" + textwrap.indent(loop + "return blocks", "    ")
    names["layout"] = names["ns"].layout
    exec(compile(body, "README.md", "exec"), names)
    blocks = asyncio.run(names["main"]())
    assert all(torch.equal(from_device(one), sent) for one, sent in zip(blocks, tensors, strict=True))
