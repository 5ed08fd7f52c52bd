"""What users of other systems met with bytes that were not those of their block: docs/field-reports.md, section A.

Blocks have bytes that follow from their number (block_pattern.py): what is read is either those, or not given out.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_pattern import pattern, wrong_bytes
from rpc_daemon import Daemon, block_ids, identity, payload, run

from tierd.adapters.envelope import block_key
from tierd.core import messages as m
from tierd.testing.fake_device import FakeDevice
from tierd.testing.faulty import EveryNth, Fault, Operation
from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import (
    AcquireOutcome,
    AsyncClient,
    Client,
    EvictOutcome,
    Layout,
    Presence,
    PutOutcome,
    Tier,
    Tiers,
    chain_ids,
    errors,
)
from tierd_client.namespace import Namespace
from tierd_client.v1 import blocks_pb2 as pb

SIZE = 64 << 10
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=16)
UP_WITHIN_S = 5.0


@pytest.fixture
def proxy(valkey: ExternalValkey) -> Iterator[RedisProxy]:
    """In front of a real server."""
    with RedisProxy(valkey.unix_url) as one:
        yield one


def ids_of(ns: Any, count: int, seed: int = 0) -> Any:
    return chain_ids(ns, range(seed, seed + 16 * count))


def bytes_of(numbers: range) -> list[Any]:
    return [pattern(number, SIZE) for number in numbers]


def wrong(blocks: list[Any], first: int = 0) -> list[int | None]:
    """Wrong bytes of each block that was read; None where none was."""
    return [None if one is None else wrong_bytes(one, first + number) for number, one in enumerate(blocks)]


def until(condition: Callable[[], bool], within_s: float = UP_WITHIN_S) -> None:
    """Asks again and again until it is so."""
    ends = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends


def spill_is_up(client: Client) -> bool:
    return client.admin.occupancy().tiers[Tier.SPILL].serving


# --- a store that failed is no hit -------------------------------------------------------------------

FAILURES: list[tuple[Mode, dict[str, Any]]] = [
    (Mode.CUT_UPLOAD, {"count": SIZE // 2}), (Mode.READ_ONLY, {}),
    (Mode.FAIL_SET, {"error": "ERR disk is gone"}), (Mode.FAIL_SET, {"error": "LOADING try later"}),
    (Mode.BLACK_HOLE, {}), (Mode.STALL, {}), (Mode.REFUSE, {}),
]


@pytest.mark.slow
def test_a_block_that_was_not_stored_is_no_hit_there(daemon: StartDaemon, proxy: RedisProxy) -> None:
    """However a store fails (cut off in the middle, read-only, refused, unanswered), no block of
    the call is said to be moved, each is a hit in host alone with its bytes, and the failure is counted; when
    the server works again they are stored, and are read back from there, also by the next daemon after kill
    -9."""
    server = daemon(host_bytes="4MiB", spill=proxy.url, spill_bytes_max="64MiB", spill_timeout_ms=400)
    server.event("spill_up")
    with Client(server.address, connect_timeout_s=20.0) as client:
        ns = client.namespace(LAYOUT)
        for turn, (mode, how) in enumerate(FAILURES):
            ids, blocks = ids_of(ns, 4, 1_000 * turn), bytes_of(range(10 * turn, 10 * turn + 4))
            assert ns.put(ids, blocks) == [PutOutcome.STORED] * 4
            until(lambda: spill_is_up(client))
            failed = client.admin.occupancy().tiers[Tier.HOST].failed_moves_total
            proxy.switch(mode, **how)
            assert EvictOutcome.MOVED not in ns.evict(ids, to="spill", timeout_s=3.0), mode
            assert ns.lookup(ids).tiers == [Tiers.HOST] * 4, mode
            assert wrong(ns.get(ids), 10 * turn) == [0] * 4, mode
            assert client.admin.occupancy().tiers[Tier.HOST].failed_moves_total > failed, mode
            proxy.switch(Mode.PASS)
            until(partial(_moved, ns, ids), 10.0)
            assert ns.lookup(ids).tiers == [Tiers.SPILL] * 4, mode
        server.restart()
        for turn in range(len(FAILURES)):
            assert wrong(ns.get(ids_of(ns, 4, 1_000 * turn), timeout_s=10.0), 10 * turn) == [0] * 4


def test_a_server_without_memory_keeps_what_it_has(daemon: StartDaemon, proxy: RedisProxy) -> None:
    """A server that has no memory left takes nothing: a block that should go there is a hit in host with its bytes,
    one that lies there already is read or makes room; once it has memory again, it takes blocks."""
    server = daemon(host_bytes="4MiB", spill=proxy.url, spill_bytes_max="64MiB")
    server.event("spill_up")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        ids = ids_of(ns, 6)
        assert ns.put(ids, bytes_of(range(6))) == [PutOutcome.STORED] * 6
        assert set(ns.evict(ids[:3])) == {EvictOutcome.MOVED}
        proxy.switch(Mode.OUT_OF_MEMORY)
        assert ns.evict(ids[5:], to="spill", timeout_s=1.0) == [EvictOutcome.FAILED]
        assert ns.lookup(ids).tiers[3:] == [Tiers.HOST] * 3
        got = wrong(ns.get(ids, timeout_s=5.0))
        assert set(got[:3]) <= {0, None} and got[:3].count(0) >= 2 and got[3:] == [0] * 3
        proxy.switch(Mode.PASS)
        until(partial(_moved, ns, ids[5:]))
        assert wrong(ns.get(ids[5:], timeout_s=5.0), 5) == [0]


def _moved(ns: Namespace, ids: Any) -> bool:
    return set(ns.evict(ids, to="spill", timeout_s=1.0)) == {EvictOutcome.MOVED}


def test_of_a_batch_those_that_failed_are_told(daemon: StartDaemon, proxy: RedisProxy) -> None:
    """Of thirty blocks of which the server refuses each third, ten are FAILED and still in host, twenty are
    moved; the index says the same, and all have their bytes."""
    server = daemon(host_bytes="4MiB", spill=proxy.url, spill_bytes_max="64MiB", mover_threads=1)
    server.event("spill_up")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        ids = ids_of(ns, 30)
        assert set(ns.put(ids, bytes_of(range(30)))) == {PutOutcome.STORED}
        proxy.switch(Mode.FAIL_SET, count=3)
        outcomes = ns.evict(ids, to="spill", timeout_s=5.0)
        proxy.switch(Mode.PASS)
        assert Counter(outcomes) == {EvictOutcome.MOVED: 20, EvictOutcome.FAILED: 10}
        expected = [Tiers.SPILL if one is EvictOutcome.MOVED else Tiers.HOST for one in outcomes]
        assert ns.lookup(ids).tiers == expected
        assert wrong(ns.get(ids, timeout_s=10.0)) == [0] * 30


# --- a batch load that gets only so far --------------------------------------------------------------


def test_a_load_of_more_than_fits_says_so_for_each_block(daemon: StartDaemon, proxy: RedisProxy) -> None:
    """Of four spilled blocks that are wanted in a host tier with two free slots, two are leased with their
    bytes and two are FULL, no block is leased without having been read, and afterwards nothing is held."""
    server = daemon(host_bytes=4 * SIZE, spill=proxy.url, spill_bytes_max="64MiB")
    server.event("spill_up")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        below, above = [b"b%d" % n for n in range(4)], [b"a%d" % n for n in range(2)]
        assert ns.put(below, bytes_of(range(4))) == [PutOutcome.STORED] * 4
        assert set(ns.evict(below)) == {EvictOutcome.MOVED}
        assert ns.put(above, bytes_of(range(10, 12))) == [PutOutcome.STORED] * 2
        with ns.acquire(above) as held:
            asked = proxy.commands[b"GET"] + proxy.commands[b"GETRANGE"]
            with ns.acquire(below, timeout_s=5.0) as lease:
                outcomes = Counter(lease.outcomes)
                assert outcomes == {AcquireOutcome.LEASED: 2, AcquireOutcome.FULL: 2}
                leased = [n for n, one in enumerate(lease.outcomes) if one is AcquireOutcome.LEASED]
                assert [wrong_bytes(lease.views()[n], n) for n in leased] == [0, 0]
                assert proxy.commands[b"GET"] + proxy.commands[b"GETRANGE"] >= asked + 2
            assert wrong(held.views(), 10) == [0, 0]
        row = client.admin.occupancy().tiers[Tier.HOST]
        reserved = row.reserved_bytes - row.stocked_bytes
        assert (row.leased_blocks, reserved, row.evictable_blocks) == (0, 0, row.blocks)
        assert wrong(ns.get(below, timeout_s=5.0)) == [0] * 4, "read in rounds they all fit"


def test_a_load_that_is_cut_off_gives_nothing_and_keeps_nothing(daemon: StartDaemon, proxy: RedisProxy) -> None:
    """When the connection ends in the middle of a value, before or after its header, no block of the call has other
    bytes than its own, none is lost, and nothing stays reserved; later all are read."""
    server = daemon(host_bytes="4MiB", spill=proxy.url, spill_bytes_max="64MiB", spill_timeout_ms=400)
    server.event("spill_up")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        ids = ids_of(ns, 8)
        assert set(ns.put(ids, bytes_of(range(8)))) == {PutOutcome.STORED}
        assert set(ns.evict(ids)) == {EvictOutcome.MOVED}
        for count in (1, 200, SIZE // 2, SIZE):
            proxy.switch(Mode.CUT_DOWNLOAD, count=count)
            assert set(wrong(ns.get(ids, timeout_s=0.5))) <= {0, None}
            proxy.switch(Mode.PASS)
            until(lambda: spill_is_up(client))
            row = client.admin.occupancy().tiers[Tier.HOST]
            assert (row.leased_blocks, row.reserved_bytes - row.stocked_bytes) == (0, 0)
            assert Presence.MISS not in ns.lookup(ids).presence
        assert wrong(ns.get(ids, timeout_s=5.0)) == [0] * 8


# --- conversations do not mix ------------------------------------------------------------------------


@pytest.mark.slow
def test_tenants_under_churn_read_their_own_bytes(daemon: StartDaemon, proxy: RedisProxy) -> None:
    """Six tenants that put, read, demote and promote their eight blocks each from four threads, through four
    slots of host and a server whose connections are cut now and then, never read a byte of another block."""
    server = daemon(host_bytes=4 * SIZE, hbm_bytes=2 * SIZE, spill=proxy.url, spill_bytes_max="64MiB")
    server.event("spill_up")
    layouts = [Layout.opaque(block_bytes=SIZE, block_tokens=16, tenant_salt=b"t%d" % tenant) for tenant in range(6)]
    ends, seen, failures = time.monotonic() + 4.0, Counter[str](), list[BaseException]()

    def work(thread: int) -> None:
        draw = random.Random(thread)
        try:
            with Client(server.address) as client:
                spaces = [client.namespace(layout) for layout in layouts]
                while time.monotonic() < ends:
                    seen[_one_verb(draw, spaces)] += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        threads[0].join(0.3)
        proxy.cut_connections()
    assert not failures
    assert seen["wrong"] == 0 and seen["read"] > 50, seen
    with Client(server.address) as client:
        assert client.admin.verify().damaged == ()


def _one_verb(draw: random.Random, spaces: list[Namespace]) -> str:
    tenant, block = draw.randrange(6), draw.randrange(8)
    number, ns = 8 * tenant + block, spaces[tenant]
    ids = ids_of(ns, 8)[block : block + 1]
    verb = draw.choice(["put", "get", "get", "evict", "readmit"])
    if verb == "put":
        ns.put(ids, [pattern(number, SIZE)], timeout_s=0.3)
    elif verb == "evict":
        ns.evict(ids, to=draw.choice(["host", "spill"]), timeout_s=0.3)
    elif verb == "readmit":
        ns.readmit(ids, to=draw.choice(["host", "hbm"]), timeout_s=0.3)
    else:
        (found,) = ns.get(ids, timeout_s=0.3)
        return "miss" if found is None else "wrong" if wrong_bytes(found, number) else "read"
    return verb


# --- copies and their sources ------------------------------------------------------------------------


def test_sources_of_slow_stores_are_not_used_again_meanwhile(tmp_path: Path) -> None:
    """Blocks that are demoted from a device one after the other, while the store takes its time with each, are
    stored with their own bytes, though their slots in hbm were wanted by others meanwhile."""

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        for number in range(6):
            await d.store_blocks(session, block_ids(number))
            assert await d.readmit(block_ids(number), m.Tier.HBM) == [pb.READMIT_OUTCOME_READY]
        moving = [asyncio.ensure_future(d.evict(block_ids(number))) for number in (3, 4, 5)]
        await asyncio.sleep(0)
        for number in range(10, 16):
            await d.store_blocks(session, block_ids(number))
            await d.readmit(block_ids(number), m.Tier.HBM, timeout_ms=50)
        d.faulty.resume.set()
        assert await asyncio.gather(*moving) == [[pb.EVICT_OUTCOME_MOVED]] * 3
        reply = await d.acquire(session, block_ids(3, 4, 5), timeout_ms=5000)
        for number, address in zip((3, 4, 5), reply.addresses, strict=True):
            assert np.array_equal(d.view(address), payload(identity(number)))
        await d.check_balance()

    script = EveryNth(1, Fault.DELAY, [Operation.PUT])
    run(body, tmp_path, device=FakeDevice(), hbm_blocks=3, host_blocks=12, script=script, op_timeout_s=10.0)


# --- a block is one ----------------------------------------------------------------------------------


def stored(server: ExternalValkey, ns: Namespace, identity_: bytes) -> bytes:
    """The key of a stored block."""
    key = block_key(b"tierd", ns.fingerprint, identity_)
    assert server.run(b"EXISTS", key) == 1
    return key


def _damage(server: ExternalValkey, how: str, key: bytes, other: bytes) -> None:
    value, foreign = server.run(b"GET", key), server.run(b"GET", other)
    assert isinstance(value, bytes) and isinstance(foreign, bytes)
    if how == "deleted":
        server.run(b"DEL", key)
    elif how == "a list":
        server.run(b"DEL", key)
        server.run(b"RPUSH", key, b"x")
    else:
        flipped = bytearray(value)
        flipped[-SIZE // 2] ^= 1
        new = {
            "second half missing": value[: -SIZE // 2], "first part only": value[: len(value) - SIZE], "empty": b"",
            "another block's": foreign, "another block's second half": value[: -SIZE // 2] + foreign[-SIZE // 2 :],
            "one bit": bytes(flipped), "longer": value + b"x", "pickle": b"cos\nsystem\n(S'true'\ntR.",
        }
        server.run(b"SET", key, new[how])


DAMAGE = [
    "deleted", "a list", "second half missing", "first part only", "empty", "another block's",
    "another block's second half", "one bit", "longer", "pickle",
]


def test_a_block_is_whole_or_not_at_all(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """Of six spilled blocks of two parts, of which the fourth is deleted or damaged in the server in any way,
    that one is not given out, the others are; afterwards the hit ends before it, and when it is stored anew it
    is whole."""
    server = daemon(host_bytes="16MiB", spill=valkey.unix_url, spill_bytes_max="64MiB")
    server.event("spill_up")
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        for turn, how in enumerate(DAMAGE):
            ids, first = ids_of(ns, 6, 1_000 * turn), 10 * turn
            assert set(ns.put(ids, bytes_of(range(first, first + 6)))) == {PutOutcome.STORED}
            assert set(ns.evict(ids)) == {EvictOutcome.MOVED}
            _damage(valkey, how, *(stored(valkey, ns, ids[number]) for number in (3, 5)))
            got = wrong(ns.get(ids, timeout_s=5.0), first)
            assert got == [0, 0, 0, None, 0, 0], how
            assert (ns.lookup(ids).prefix, ns.lookup(ids).presence[3]) == (3, Presence.MISS), how
            assert ns.put(ids[3:4], [pattern(first + 3, SIZE)]) == [PutOutcome.STORED], how
            assert set(ns.evict(ids)) == {EvictOutcome.MOVED}, how
            assert wrong(ns.get(ids, timeout_s=5.0), first) == [0] * 6, how


# --- memory that was mapped before -------------------------------------------------------------------


def test_memory_of_an_earlier_daemon_is_not_taken_for_the_new_ones(daemon: StartDaemon) -> None:
    """A client that goes on while daemons of other sizes take each other's place, with segments of the same
    numbers, reads its old lease as it was and new blocks as they are, and misses what the new daemon does not
    have."""
    server = daemon(host_bytes="2MiB", segment_bytes="1MiB")
    with Client(server.address, shared_memory="require", connect_timeout_s=20.0) as client:
        ns = client.namespace(LAYOUT)
        assert ns.put([b"old"], [pattern(7, SIZE)]) == [PutOutcome.STORED]
        lease = ns.acquire([b"old"])
        for turn, size in enumerate(("3MiB", "2MiB"), 1):
            server.settings["host_bytes"] = size
            server.restart()
            names = [b"new-%d-%d" % (turn, number) for number in range(16)]
            assert ns.get([b"old", *names]) == [None] * 17
            assert set(ns.put(names, bytes_of(range(100 * turn, 100 * turn + 16)))) == {PutOutcome.STORED}
            assert wrong(ns.get(names), 100 * turn) == [0] * 16
            assert wrong(lease.views(), 7) == [0]
        lease.release()
        with pytest.raises(errors.FailedPrecondition, match="released"):
            lease.views()


# --- calls that are cancelled ------------------------------------------------------------------------


def test_cancelled_loads_leave_no_reply_for_the_next(daemon: StartDaemon, proxy: RedisProxy) -> None:
    """Two hundred loads through a slow server, each cancelled at another moment, leave nothing held; all two
    hundred blocks then have their own bytes, one by one."""
    server = daemon(host_bytes="2MiB", spill=proxy.url, spill_bytes_max="64MiB")
    server.event("spill_up")
    size, count = 4096, 200
    layout = Layout.opaque(block_bytes=size)
    names = [b"block-%d" % number for number in range(count)]

    async def main() -> None:
        async with AsyncClient(server.address) as client:
            ns = await client.namespace(layout)
            await ns.put(names, [pattern(number, size) for number in range(count)])
            assert set(await ns.evict(names, timeout_s=20)) == {EvictOutcome.MOVED}
            proxy.switch(Mode.DELAY, delay_s=0.01)
            await asyncio.gather(*(_cancelled(ns, name, number % 6) for number, name in enumerate(names)))
            proxy.switch(Mode.PASS)
            for number, name in enumerate(names):
                (block,) = await ns.get([name], timeout_s=10)
                assert block is not None and wrong_bytes(block, number) == 0
            found = await client.admin.occupancy()
            host = found.tiers[Tier.HOST]
            assert (found.leases, host.reserved_bytes - host.stocked_bytes, found.moves_in_flight) == (0, 0, 0)

    asyncio.run(main())


async def _cancelled(ns: Any, name: bytes, after_ms: int) -> None:
    task = asyncio.ensure_future(ns.get([name], timeout_s=5))
    await asyncio.sleep(after_ms / 1000)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
