"""Reads by the catalog without an RPC, and the reports of them: which calls are made, and what is counted."""

from __future__ import annotations

import os
import platform
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import pytest
from twins import TWINS, client_of

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import (
    AcquireOutcome,
    Client,
    ConnectFailed,
    InvalidArgument,
    Layout,
    Presence,
    Tier,
    Tiers,
    chain_ids,
    direct,
)
from tierd_client.connection import RETRY_PAUSE_S

pytestmark = pytest.mark.skipif(
    platform.machine() not in direct.ORDERED_MACHINES, reason="optimistic reads need a machine that keeps order")

SIZE, BLOCKS = 64 << 10, 12
PROMPT = count(1)


@pytest.fixture(scope="module")
def server(module_daemon: StartDaemon) -> ServeProcess:
    served = module_daemon(host_bytes="32MiB", spill="embedded", spill_bytes_max="32MiB")
    served.event("spill_up")
    return served


@pytest.fixture(params=TWINS)
def client(server: ServeProcess, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(direct, "REPORT_EVERY_S", 3600.0)  # only when a test wants it
    with client_of(request.param, server.address, shared_memory="require") as client:
        yield client


def _stored(client: Any) -> tuple[Any, Any, Any]:
    ns = client.namespace(Layout.opaque(block_bytes=SIZE, block_tokens=16, revision=str(next(PROMPT))))
    ids = chain_ids(ns.layout, range(16 * BLOCKS))
    data = np.random.default_rng(2).integers(0, 256, (BLOCKS, SIZE), np.uint8)
    ns.put(ids, data)
    return ns, ids, data


def _touches(client: Any, ids: Any) -> list[int]:
    return [record.touches for record in client.admin.describe(ids)]


def _until(true: Callable[[], bool]) -> None:
    for _ in range(250):
        if true():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it did not come to be true")


def _equal(got: Any, sent: Any) -> bool:
    return all(one is not None and np.array_equal(one, other) for one, other in zip(got, sent, strict=True))


def test_what_is_mapped_is_read_without_a_call(client: Any, calls: Counter[str]) -> None:
    """Blocks in memory are read with no RPC at all; what lies below is asked for, and only that."""
    ns, ids, data = _stored(client)
    calls.clear()
    out = np.zeros_like(data)
    assert _equal(ns.get(ids), data)
    assert ns.get_into(ids, out) == [AcquireOutcome.LEASED] * BLOCKS
    assert np.array_equal(out, data)
    assert not calls
    ns.evict(ids[6:])
    calls.clear()
    assert _equal(ns.get(ids), data)
    assert calls == {"Acquire": 1, "Release": 1}
    assert ns.get([b"nobody"]) == [None]


def test_accesses_are_counted_when_they_are_reported(client: Any, calls: Counter[str]) -> None:
    """Reads count once each, in one call for all of them; and what was not reported is at the client's end."""
    ns, ids, _ = _stored(client)
    before = _touches(client, ids)
    for _ in range(3):
        ns.get(ids[:4])
    assert _touches(client, ids) == before
    calls.clear()
    client.flush_accesses()
    assert calls == {"Touch": 1}
    assert _touches(client, ids) == [one + 3 for one in before[:4]] + before[4:]


def test_a_request_counts_once_and_is_reported_before_it_closes(client: Any) -> None:
    """However often a sequence reads a block it is one access, and none is lost with its end."""
    ns, ids, _ = _stored(client)
    before = _touches(client, ids)
    with ns.sequence("request", ids):
        for _ in range(3):
            ns.get(ids)
    assert _touches(client, ids) == [one + 1 for one in before]


def test_the_end_of_a_client_reports_the_rest(server: ServeProcess, client: Any) -> None:
    """close() reports what still waits."""
    ns, ids, _ = _stored(client)
    before = _touches(client, ids)
    ns.get(ids)
    client.close()
    with Client(server.address) as other:
        assert _touches(other, ids) == [one + 1 for one in before]


def test_reports_are_sent_by_the_clock(server: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any other call the daemon hears of accesses."""
    monkeypatch.setattr(direct, "REPORT_EVERY_S", 0.02)
    with Client(server.address) as client, Client(server.address) as watcher:
        ns, ids, _ = _stored(client)
        before = _touches(watcher, ids)
        ns.get(ids)
        _until(lambda: _touches(watcher, ids) != before)
        assert _touches(watcher, ids) == [one + 1 for one in before]


def test_reports_of_the_clock_leave_connecting_to_callers(
    daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While no daemon runs and accesses wait to be reported, a call tries to connect for as long as it was told to;
    the first one that finds the next daemon has them reported there."""
    monkeypatch.setattr(direct, "REPORT_EVERY_S", 0.02)
    server = daemon(host_bytes="8MiB", spill="none")
    with Client(server.address, connect_timeout_s=2.0) as client:
        ns, ids, _ = _stored(client)
        before = _touches(client, ids)
        os.kill(server.pid, signal.SIGSTOP)
        ns.get(ids)
        server.kill()
        threading.Event().wait(0.6)
        with pytest.raises(ConnectFailed, match="no daemon answered"):
            client.namespace(ns.layout)
        server.start()
        threading.Event().wait(RETRY_PAUSE_S)
        _until(lambda: _touches(client, ids) == [one + 1 for one in before])


def test_what_waits_is_bounded(server: ServeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who reads when too many accesses wait reports them all first: none is lost, however many there are."""
    monkeypatch.setattr(direct, "REPORT_EVERY_S", 3600.0)
    monkeypatch.setattr(direct, "NOTED_MAX", 5)
    with Client(server.address) as client:
        ns, ids, data = _stored(client)
        before = _touches(client, ids)
        for _ in range(2):
            assert _equal(ns.get(ids), data)
        assert _touches(client, ids) == [one + 2 for one in before]
        for _ in range(7):
            ns.get_into(ids[:1], [np.empty(SIZE, np.uint8)])
        assert _touches(client, ids[:1])[0] >= before[0] + 2 + 5
        client.flush_accesses()
        assert _touches(client, ids) == [before[0] + 9] + [one + 2 for one in before[1:]]
        assert client.reports is not None and client.reports.dropped == 0


def test_many_accesses_of_one_block_are_all_counted(client: Any) -> None:
    """More reads of one block than one report may tell of are told in several."""
    ns, ids, _ = _stored(client)
    before = _touches(client, ids[:1])
    out = np.empty(SIZE, np.uint8)
    for _ in range(2 * direct.COUNT_MAX + 1):
        assert ns.get_into(ids[:1], [out]) == [AcquireOutcome.LEASED]
    client.flush_accesses()
    assert _touches(client, ids[:1]) == [before[0] + 2 * direct.COUNT_MAX + 1]


class _Stopped(BaseException):
    """An interrupt, or the end of a task."""


def test_an_interrupted_report_is_all_that_is_lost(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an interrupt meets under way counts as dropped; what comes after it is told by the next one."""
    ways = [_stored(client) for _ in range(2)]
    before, hits = [_touches(client, ids) for _, ids, _ in ways], _hits(client)
    for ns, ids, _ in ways:
        ns.get(ids)

    async def interrupted(*_: Any) -> int:
        raise _Stopped

    with monkeypatch.context() as patched:
        patched.setattr(direct, "report", interrupted)
        with pytest.raises(_Stopped):
            client.flush_accesses()
    assert client.flush_accesses() == 0
    more = [[now - then for now, then in zip(_touches(client, ids), touches, strict=True)]
            for (_, ids, _), touches in zip(ways, before, strict=True)]
    assert more == [[0] * BLOCKS, [1] * BLOCKS]
    assert _hits(client) == hits + BLOCKS


@pytest.mark.parametrize("direct_reads", [True, False])
def test_an_id_named_twice_in_a_call_is_one_access(server: ServeProcess, direct_reads: bool) -> None:
    """A block that one call names several times is accessed once, whichever way it is read; two calls are two
    accesses."""
    with Client(server.address, direct_reads=direct_reads) as client:
        ns, ids, _ = _stored(client)
        before = _touches(client, ids[:2])
        for _ in range(2):
            assert all(one is not None for one in ns.get([ids[0], ids[1], ids[0], ids[0]]))
        client.flush_accesses()
        assert _touches(client, ids[:2]) == [one + 2 for one in before]


def test_hits_of_a_report_that_timed_out_are_not_told_twice(server: ServeProcess, client: Any) -> None:
    """A daemon that was late has counted them."""
    with Client(server.address, rpc_timeout_s=1.0) as hasty:
        ns, ids, _ = _stored(hasty)
        before = _hits(client)
        ns.get(ids)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            hasty.flush_accesses()
        finally:
            os.kill(server.pid, signal.SIGCONT)
        ns.get(ids[:1])
        hasty.flush_accesses()
        assert _hits(client) <= before + BLOCKS + 1


def test_hits_are_those_of_the_tier_that_was_read(client: Any) -> None:
    """What is read without a call counts as a hit of its tier once it is reported, however often, in a sequence or
    not."""
    ns, ids, _ = _stored(client)
    before = _hits(client)
    ns.get(ids)
    ns.get_into(ids[:1], [np.empty(SIZE, np.uint8)])
    client.flush_accesses()
    assert _hits(client) == before + BLOCKS + 1
    with ns.sequence("counted", ids):
        ns.get(ids)
        ns.get(ids)
    assert _hits(client) == before + 3 * BLOCKS + 1


def _hits(client: Any) -> int:
    hits: int = client.admin.occupancy().tiers[Tier.HOST].hits_total
    return hits


def test_one_block_into_a_plain_array(client: Any, calls: Counter[str]) -> None:
    """The shortest way gives a block's bytes without a call; what does not fit it is read, or refused, as ever."""
    ns, ids, data = _stored(client)
    calls.clear()
    out = np.zeros(SIZE, np.uint8)
    assert ns.get_into(ids[3:4], [out]) == [AcquireOutcome.LEASED]
    assert np.array_equal(out, data[3])
    assert not calls
    with pytest.raises(InvalidArgument, match="buffers"):
        ns.get_into(ids[3:4], [np.zeros(SIZE - 1, np.uint8)])
    out.flags.writeable = False
    with pytest.raises(InvalidArgument, match="read-only"):
        ns.get_into(ids[3:4], [out])
    strided = np.zeros(2 * SIZE, np.uint8)[::2]
    with pytest.raises(InvalidArgument, match="contiguous"):
        ns.get_into(ids[3:4], [strided])
    with pytest.raises(InvalidArgument, match="ids"):
        ns.get_into(chain_ids(Layout.opaque(block_bytes=SIZE, block_tokens=16), range(16)), [strided])


def test_what_is_mapped_is_found_without_a_call(client: Any, calls: Counter[str]) -> None:
    """Lookup of what is in memory makes no call; it asks for the rest, and both together make the answer."""
    ns, ids, _ = _stored(client)
    calls.clear()
    found = ns.lookup(ids)
    assert (found.prefix, found.presence) == (BLOCKS, [Presence.READY] * BLOCKS)
    assert found.tiers == [Tiers.HOST] * BLOCKS
    assert not calls
    ns.evict(ids[9:])
    calls.clear()
    found = ns.lookup(ids)
    assert calls == {"Lookup": 1}
    assert found.prefix == BLOCKS
    assert found.presence == [Presence.READY] * 9 + [Presence.BELOW] * 3
    assert found.tiers == [Tiers.HOST] * 9 + [Tiers.SPILL] * 3


def test_reads_that_ask_are_there_for_who_wants_them(server: ServeProcess, calls: Counter[str]) -> None:
    """Without direct reads each read is told when it is made."""
    with Client(server.address, direct_reads=False) as client:
        ns, ids, data = _stored(client)
        before = _touches(client, ids)
        calls.clear()
        assert _equal(ns.get(ids), data)
        assert calls == {"Acquire": 1, "Release": 1}
        assert _touches(client, ids) == [one + 1 for one in before]


def test_direct_reads_see_no_other_bytes_under_churn(server: ServeProcess) -> None:
    """While blocks are dropped and their slots stored anew, every block that is given out has its own bytes."""
    layout = Layout.opaque(block_bytes=SIZE, block_tokens=16, revision=str(next(PROMPT)))
    ids = [b"%d" % number for number in range(40)]
    stop = threading.Event()
    wrong: list[int] = []
    read = 0

    def churn() -> None:
        with Client(server.address) as writer:
            ns = writer.namespace(layout)
            while not stop.is_set():
                for start in range(0, 40, 8):
                    part = ids[start : start + 8]
                    ns.put(part, [np.full(SIZE, number, np.uint8) for number in range(start, start + 8)])
                    ns.evict(part, to=None, allow_drop=True)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        with Client(server.address, verify="never") as client:
            ns = client.namespace(layout)
            for _ in range(150):
                for number, block in enumerate(ns.get(ids, timeout_s=0)):
                    read += block is not None
                    if block is not None and not (block == number).all():
                        wrong.append(number)
    finally:
        stop.set()
        thread.join(30)
    assert not wrong
    assert read > 0
