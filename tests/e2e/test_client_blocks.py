"""The client library and a real daemon: the bytes that come back are those that went in, by either way."""

from __future__ import annotations

import contextlib
import hashlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tierd_client import (
    AcquireOutcome,
    CatalogReader,
    Client,
    EvictOutcome,
    Layout,
    Presence,
    PutOutcome,
    ReadmitOutcome,
    Tier,
    Tiers,
    chain_ids,
    errors,
    plain_ids,
)
from tierd_client.routine import run

MIB = 1 << 20
SIZE = 64 << 10
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=16)


def _data(count: int, size: int = SIZE, seed: int = 3) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (count, size), np.uint8)


def _equal(got: list[Any], sent: Any) -> bool:
    return len(got) == len(sent) and all(
        one is not None and np.array_equal(one, other) for one, other in zip(got, sent, strict=True))


@pytest.fixture
def served(daemon: Any) -> Iterator[Client]:
    """A client of a daemon with host and spill."""
    server = daemon(host_bytes="64MiB", spill="embedded", spill_bytes_max="64MiB")
    server.event("spill_up")
    with Client(server.address) as client:
        yield client


@pytest.fixture
def served_all(daemon: Any) -> Iterator[Client]:
    """A client of a daemon with all three tiers."""
    server = daemon(hbm_bytes="16MiB", host_bytes="64MiB", spill="embedded", spill_bytes_max="64MiB")
    server.event("spill_up")
    with Client(server.address) as client:
        yield client


def test_the_example_of_the_readme(served_all: Client) -> None:
    """The worker's round trip works as it is written: sequence, lookup, lease, put, get, observe, evict,
    readmit, occupancy, describe."""
    torch = pytest.importorskip("torch")
    client = served_all
    token_ids = list(range(100, 100 + 16 * 12 + 5))
    ns = client.namespace(
        Layout(model="m", dtype="bfloat16", layers=4, kv_heads=2, head_dim=64, block_tokens=16))
    ids = chain_ids(ns, token_ids)
    tensors = torch.randn(len(ids), 2, 4, 16, 2, 64).to(torch.bfloat16)
    assert ns.put(ids[:5], tensors[:5]) == [PutOutcome.STORED] * 5
    ns.evict(ids[:5], to="spill")

    with ns.sequence("req-1", ids) as seq:
        n = seq.lookup().prefix
        assert n == 5
        with ns.acquire(ids[:n], timeout_s=2.0) as lease:
            for index, view in enumerate(lease.tensors()):
                assert view.dtype == torch.bfloat16
                assert torch.equal(view, tensors[index])
        outcomes = ns.put(ids[n:], tensors[n:])
        assert outcomes == [PutOutcome.STORED] * (len(ids) - n)
    blocks = ns.get(ids)
    assert [block.tobytes() for block in blocks] == [t.view(torch.uint8).numpy().tobytes() for t in tensors]
    assert all(torch.equal(a, b) for a, b in zip(ns.get(ids, torch=True), tensors, strict=True))
    mass = torch.full((len(ids),), 1 / len(ids))
    assert ns.observe("req-1", attention=mass, steps=1) > 0
    assert ns.evict(ids, to="spill") == [EvictOutcome.MOVED] * len(ids)
    assert ns.readmit(ids, to="hbm", wait=True) == [ReadmitOutcome.READY] * len(ids)
    assert client.admin.occupancy().tiers[Tier.HBM].blocks == len(ids)
    (record,) = client.admin.describe(ids[:1])
    assert record is not None
    assert Tiers.HBM in record.tiers
    assert record.touches >= 2
    assert record.last_step > 0
    assert 0 < record.ema <= 1
    assert record.crf > 0
    assert Tier.HBM in record.rank


@pytest.mark.parametrize("mode", ["require", "never"])
def test_bytes_come_back_from_every_tier(served_all: Client, mode: Any) -> None:
    """What is put into a tier is read back from it, from below it, and after its way up again, to the byte."""
    with Client(served_all.connection.target, shared_memory=mode) as client:
        assert client.maps_memory is (mode == "require")
        ns = client.namespace(LAYOUT)
        for tier in ("hbm", "host"):
            data = _data(40)
            ids = chain_ids(ns, range(len(tier), 16 * 40 + len(tier)))
            assert set(ns.put(ids, data, tier=tier)) == {PutOutcome.STORED}
            assert set(ns.put(ids, data, tier=tier)) == {PutOutcome.EXISTS}
            assert ns.lookup(ids).tiers == [Tiers[tier.upper()]] * 40
            assert _equal(ns.get(ids), data)
            assert set(ns.evict(ids)) == {EvictOutcome.MOVED}
            assert ns.lookup(ids).presence == [Presence.BELOW] * 40
            assert ns.lookup(ids).prefix == 40
            assert _equal(ns.get(ids), data)
            out = np.zeros_like(data)
            assert set(ns.get_into(ids, out)) == {AcquireOutcome.LEASED}
            assert np.array_equal(out, data)


def test_absent_blocks_are_told(served: Client) -> None:
    """A miss is None in get, MISS in acquire, get_into and evict, and not part of the prefix."""
    ns, data = served.namespace(LAYOUT), _data(3)
    ids = chain_ids(ns, range(16 * 5))
    ns.put(ids[:3], data)
    assert [block is None for block in ns.get(ids)] == [False] * 3 + [True] * 2
    found = ns.lookup(ids)
    assert (found.prefix, found.presence[3]) == (3, Presence.MISS)
    with ns.acquire(ids) as lease:
        assert [one.name for one in lease.outcomes] == ["LEASED"] * 3 + ["MISS"] * 2
    assert ns.evict(ids[4:]) == [EvictOutcome.MISS]


def test_plain_ids_name_blocks_of_their_own(served: Client) -> None:
    """Plain ids work wherever ids do, one or several, and never meet a chain's."""
    ns, data = served.namespace(LAYOUT), _data(2)
    assert ns.put([b"doc-1", b"doc-2"], data) == [PutOutcome.STORED] * 2
    assert _equal(ns.get([b"doc-2", b"doc-1"]), data[::-1])
    assert _equal(ns.get(b"doc-1"), data[:1])
    assert ns.put([b"doc-3", b"doc-3"], data) == [PutOutcome.STORED, PutOutcome.DUPLICATE]


def test_identities_from_a_list_or_a_record_find_their_blocks(served: Client) -> None:
    """Blocks that were put by a chain are got by a list of its identities, by one of them, and by what a listing
    says of them."""
    ns = served.namespace(LAYOUT)
    ids, data = chain_ids(ns, range(16 * 3)), _data(3)
    assert ns.put(ids, data) == [PutOutcome.STORED] * 3
    records = [record.identity for record in served.admin.describe(ids) if record is not None]
    assert _equal(ns.get(list(ids)), data) and _equal(ns.get(ids[1]), data[1:2]) and _equal(ns.get(records), data)


def test_a_lease_keeps_its_blocks(served: Client) -> None:
    """Leased blocks cannot be dropped and are read in place, read-only; released ones can."""
    ns, data = served.namespace(LAYOUT), _data(4)
    ids = chain_ids(ns, range(16 * 4))
    ns.put(ids, data)
    lease = ns.acquire(ids)
    arrays = lease.arrays()
    assert _equal(arrays, data)
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][0] = 1
    assert set(ns.evict(ids, to=None, allow_drop=True)) == {EvictOutcome.IN_USE}
    lease.release()
    lease.release()
    assert served.admin.occupancy().leases == 0
    assert set(ns.evict(ids, to=None, allow_drop=True)) == {EvictOutcome.DROPPED}
    assert ns.get(ids) == [None] * 4


def test_a_name_stands_for_one_layout(served: Client) -> None:
    """Binding a name to another layout raises FailedPrecondition that names the field."""
    served.namespace(LAYOUT, name="prod")
    served.namespace(LAYOUT, name="prod")
    with pytest.raises(errors.FailedPrecondition, match="block_tokens"):
        served.namespace(Layout.opaque(block_bytes=SIZE, block_tokens=32), name="prod")


def test_layouts_never_share_blocks(served: Client) -> None:
    """The same tokens under another layout are a miss."""
    one, data = served.namespace(LAYOUT), _data(2)
    other = served.namespace(Layout.opaque(block_bytes=SIZE, block_tokens=16, revision="2"))
    one.put(chain_ids(one, range(32)), data)
    assert other.lookup(chain_ids(other, range(32))).prefix == 0


def test_more_blocks_than_a_tier_holds_are_read_in_rounds(daemon: Any) -> None:
    """get gives all blocks that are spilled although only some have room above at a time."""
    server = daemon(host_bytes="4MiB", spill="embedded", spill_bytes_max="64MiB")
    server.event("spill_up")
    with Client(server.address) as client:
        ns, data = client.namespace(LAYOUT), _data(160)
        ids = plain_ids(ns, [b"%d" % number for number in range(160)])
        for start in range(0, 160, 40):
            part = slice(start, start + 40)
            assert set(ns.put(ids[part], data[part], timeout_s=10)) == {PutOutcome.STORED}
        assert _equal(ns.get(ids, timeout_s=20), data)


def test_what_does_not_fit_is_full(daemon: Any) -> None:
    """Of a chain larger than the tier the leading part is stored and the rest FULL, not an error."""
    server = daemon(host_bytes="2MiB")
    with Client(server.address) as client:
        ns, data = client.namespace(LAYOUT), _data(48)
        outcomes = ns.put(chain_ids(ns, range(16 * 48)), data, timeout_s=0.5)
        stored = outcomes.count(PutOutcome.STORED)
        assert 0 < stored <= 32
        assert outcomes == [PutOutcome.STORED] * stored + [PutOutcome.FULL] * (48 - stored)


def test_threads_share_a_client(served: Client) -> None:
    """Puts and gets of several threads on one client mix up no bytes."""
    ns, data = served.namespace(LAYOUT), _data(64)
    ids = chain_ids(ns, range(16 * 64))

    def work(thread: int) -> bool:
        mine = [ids.take([i]) for i in range(thread, 64, 4)]
        for own, index in zip(mine, range(thread, 64, 4), strict=True):
            assert ns.put(own, [data[index]]) == [PutOutcome.STORED]
        return all(
            _equal(ns.get(own), data[index : index + 1])
            for own, index in zip(mine, range(thread, 64, 4), strict=True))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_the_catalog_leads_to_the_bytes(served: Client) -> None:
    """What was put is found and read by the catalog in shared memory without asking the daemon, and is no
    longer found when it has gone."""
    ns, data = served.namespace(LAYOUT), _data(20)
    ids = chain_ids(ns, range(16 * 20))
    ns.put(ids, data)
    memory = served.connection.current().memory
    assert memory is not None
    table = memory.catalog()
    assert table is not None
    reader, out = CatalogReader(table), np.empty(SIZE, np.uint8)
    number = run(ns._routines.registered(served.connection.current())).number
    for identity, block in zip(ids, data, strict=True):
        assert reader.read_into(identity, out, memory.views.get, (number, 0))
        assert np.array_equal(out, block)
        assert not reader.read_into(identity, out, memory.views.get, (number + 1, 0))
    ns.evict(ids[10:], to="spill")
    bits = reader.lookup(ids.array)
    assert bits.tolist() == [Tiers.HOST] * 10 + [Tiers.SPILL] * 10
    assert not reader.read_into(ids[12], out, memory.views.get)


def test_a_local_client_over_tcp_maps_memory_too(daemon: Any) -> None:
    """Which address a client on the daemon's host uses does not matter: it shares memory, and the bytes are
    the same."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    daemon(listen=[address])
    with Client(address, shared_memory="require") as client:
        ns, data = client.namespace(LAYOUT), _data(4)
        ids = chain_ids(ns, range(64))
        assert set(ns.put(ids, data)) == {PutOutcome.STORED}
        assert _equal(ns.get(ids), data)


class CountingProxy:
    """Passes a Unix socket's bytes on to another one and counts them, both ways."""

    def __init__(self, path: Path, target: str) -> None:
        self.address = f"unix://{path}"
        self.total = 0
        self._target = target.removeprefix("unix://")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._target)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with source, sink, contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self.total += len(data)
                sink.sendall(data)


SECOND_READER = """
import sys
from tierd_client import Client, Layout, chain_ids
import hashlib
with Client(sys.argv[1], shared_memory=sys.argv[2]) as client:
    ns = client.namespace(Layout.opaque(block_bytes=65536, block_tokens=16))
    blocks = ns.get(chain_ids(ns, range(16 * 1600)), timeout_s=10)
    print(hashlib.sha256(b"".join(blocks)).hexdigest())
"""


def test_payload_stays_off_the_channel(daemon: Any) -> None:
    """Two processes on one host move 100 MiB with under 1 MiB on the gRPC channel; a third that may not map
    memory gets the same bytes by streams."""
    server = daemon(host_bytes="128MiB")
    proxy = CountingProxy(server.state_dir / "p.sock", server.address)
    data = _data(1600)
    with Client(proxy.address, shared_memory="require") as client:
        ns = client.namespace(LAYOUT)
        assert set(ns.put(chain_ids(ns, range(16 * 1600)), data)) == {PutOutcome.STORED}
    digest = hashlib.sha256(data.tobytes()).hexdigest()
    assert _second_reader(proxy.address, "require") == digest
    assert 0 < proxy.total < MIB
    assert _second_reader(proxy.address, "never") == digest
    assert proxy.total > data.size
    proxy.close()


def _second_reader(address: str, mode: str) -> str:
    run = subprocess.run(
        [sys.executable, "-c", SECOND_READER, address, mode], capture_output=True, text=True, check=True,
        timeout=120)
    return run.stdout.strip()


def test_the_control_plane(served: Client) -> None:
    """Listings page through every block, plans and explanations name them, verify reads all their bytes, the
    policy changes, and clear removes what a dry run said."""
    ns, data, admin = served.namespace(LAYOUT), _data(30), served.admin
    ids = chain_ids(ns, range(16 * 30))
    ns.put(ids, data)
    ns.evict(ids[20:], to="spill")
    assert {block.identity for block in admin.list_blocks(page_size=7)} == set(ids)
    ranked = [block.rank[Tier.HOST] for block in admin.list_blocks(tier="host", by_rank=True, page_size=7)]
    assert len(ranked) == 20
    assert ranked == sorted(ranked, reverse=True)
    explained = admin.explain(ids[19:20]).blocks[0]
    assert explained.rule
    assert explained.terms
    plan = admin.plan(64 * MIB)
    assert plan.victim_blocks == len(plan.victims) == 20
    assert admin.describe([bytes(32)]) == [None]
    verified = admin.verify()
    assert (verified.verified_blocks, verified.damaged) == (30, ())
    assert admin.set_policy("lru").policy.startswith("lru")
    assert "state_dir" in admin.config()
    assert admin.clear(tier="host", dry_run=True).host_blocks == 20
    assert len(list(admin.list_blocks())) == 30
    assert admin.clear().host_blocks == 20
    assert list(admin.list_blocks()) == []
