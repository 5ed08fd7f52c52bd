"""The spill server goes away under load, in each way in which servers go: costs hits, never blocks or time."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import pytest
from block_pattern import pattern, wrong_bytes
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, EvictOutcome, Layout, Presence, PutOutcome, Tiers
from tierd_client.namespace import Namespace

BLOCK_BYTES = 16 << 10
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES)
TIMEOUT_S = 0.5
"""Given with every call of the load."""
SLACK_S = 1.0
"""For RPC, copies and a busy machine."""
BACK_WITHIN_S = 2.0
NOTICED_WITHIN_S = 10.0
ROUNDS_IN_OUTAGE = 15
SPILLED = range(1_000_000, 1_000_060)
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def name(number: int) -> bytes:
    return b"block-%d" % number


class Load(threading.Thread):
    """Puts new blocks and gets earlier ones, all the time; remembers what came of it and how long it took."""

    def __init__(self, address: str, first: int) -> None:
        super().__init__(daemon=True)
        self.stored: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.wrong = 0
        self.longest_s = 0.0
        self.error: BaseException | None = None
        self._address = address
        self._numbers = itertools.count(first)
        self._stopping = threading.Event()
        self._news = threading.Condition()
        self._rounds = 0

    def run(self) -> None:
        try:
            with Client(self._address) as client:
                ns = client.namespace(LAYOUT)
                while not self._stopping.is_set():
                    self._round(ns)
                    with self._news:
                        self._rounds += 1
                        self._news.notify_all()
        except BaseException as error:
            self.error = error

    def progress(self, rounds: int) -> None:
        """Waits until it has done so many more rounds."""
        with self._news:
            target = self._rounds + rounds
            self._news.wait_for(lambda: self._rounds >= target or self.error, rounds * (TIMEOUT_S + SLACK_S))
        assert self.error is None and self._rounds >= target, (self.error, self._rounds, self.outcomes)

    def stop(self) -> None:
        self._stopping.set()
        self.join(30)
        assert not self.is_alive()

    def _round(self, ns: Namespace) -> None:
        number = next(self._numbers)
        block = pattern(number, BLOCK_BYTES)
        (outcome,) = self._timed(lambda: ns.put([name(number)], [block], timeout_s=TIMEOUT_S))
        self.outcomes[outcome.name] += 1
        if outcome is PutOutcome.STORED:
            self.stored.append(number)
        if self.stored:
            earlier = self.stored[(number * 7919) % len(self.stored)]
            (block,) = self._timed(lambda: ns.get([name(earlier)], timeout_s=TIMEOUT_S))
            self.outcomes["read" if block is not None else "not now"] += 1
            self.wrong += 0 if block is None else wrong_bytes(block, earlier)

    def _timed(self, call: Callable[[], Any]) -> Any:
        began = time.monotonic()
        result = call()
        self.longest_s = max(self.longest_s, time.monotonic() - began)
        return result


@dataclass
class Outage:
    """A way to take the spill server away and to bring it back, and whether it then still knows its blocks."""

    url: str
    begin: Callable[[], None]
    end: Callable[[], None]
    forgets: bool = False


@pytest.fixture(params=["frozen", "killed", "black hole"])
def outage(request: pytest.FixtureRequest, valkey: ExternalValkey) -> Iterator[Outage]:
    if request.param == "frozen":
        yield Outage(valkey.unix_url, valkey.freeze, valkey.thaw)
    elif request.param == "killed":
        yield Outage(valkey.unix_url, valkey.stop, valkey.start, forgets=True)
    else:
        with RedisProxy(valkey.unix_url) as proxy:
            yield Outage(proxy.url, lambda: proxy.switch(Mode.BLACK_HOLE), lambda: proxy.switch(Mode.PASS))


@contextmanager
def under_load(server: ServeProcess) -> Iterator[list[Load]]:
    loads = [Load(server.address, first) for first in (0, 500_000)]
    for load in loads:
        load.start()
    yield loads
    for load in loads:
        load.stop()
        assert load.error is None
        assert load.wrong == 0
        assert load.longest_s < TIMEOUT_S + SLACK_S, load.outcomes
        print("load", dict(load.outcomes), f"longest call {load.longest_s:.3f} s")


def await_health(server: ServeProcess, wanted: int, within_s: float) -> float:
    """Waits until the service `tierd.spill` has this health; how long that took."""
    began = time.monotonic()
    with grpc.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="tierd.spill"), timeout=within_s)
        for reply in watch:
            if reply.status == wanted:
                return time.monotonic() - began
    raise AssertionError("the stream of health ended")


def host_blocks(client: Client) -> set[bytes]:
    return {block.identity for block in client.admin.list_blocks(tier="host") if block.tiers & Tiers.HOST}


def put(ns: Namespace, numbers: range) -> None:
    outcomes = ns.put([name(n) for n in numbers], [pattern(n, BLOCK_BYTES) for n in numbers])
    assert set(outcomes) == {PutOutcome.STORED}


def put_and_spill(ns: Namespace, numbers: range) -> None:
    put(ns, numbers)
    assert set(ns.evict([name(n) for n in numbers], to="spill")) == {EvictOutcome.MOVED}


def assert_readable(ns: Namespace, numbers: list[int], least: int) -> None:
    """Of these blocks at least so many are read, none with wrong bytes."""
    blocks = ns.get([name(number) for number in numbers], timeout_s=20.0)
    found = [(n, one) for n, one in zip(numbers, blocks, strict=True) if one is not None]
    assert len(found) >= least
    assert sum(wrong_bytes(block, number) for number, block in found) == 0


@pytest.mark.slow
def test_an_outage_costs_hits_and_nothing_else(daemon: StartDaemon, outage: Outage) -> None:
    """While the spill server is away health says so, each call ends in its time, no block leaves the host tier;
    a demotion that fails leaves the block where it is; and within two seconds of its return the server is used.
    What it forgot meanwhile is a miss."""
    server = daemon(spill=outage.url, host_bytes="4MiB", spill_bytes_max="256MiB", spill_grace_s=300)
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, SPILLED)
        with under_load(server) as loads:
            for load in loads:
                load.progress(100)
            outage.begin()
            await_health(server, NOT_SERVING, NOTICED_WITHIN_S)
            held = host_blocks(client)
            for load in loads:
                load.progress(ROUNDS_IN_OUTAGE)
            assert_nothing_moves(client, ns, held)
            outage.end()
            came_back_at = time.monotonic()
            await_health(server, SERVING, BACK_WITHIN_S)
            assert_demotes(client, ns, came_back_at + BACK_WITHIN_S)
            for load in loads:
                load.progress(50)
        assert_what_was_spilled(client, ns, outage)
        for load in loads:
            assert_readable(ns, load.stored, least=0 if outage.forgets else len(load.stored))


def test_a_start_during_an_outage_waits_for_nobody(daemon: StartDaemon, outage: Outage) -> None:
    """A daemon that is killed and restarted while the spill server is away is ready, serves what it holds and
    takes new blocks; what it had spilled it knows, and serves once the server is back, if that kept it."""
    server = daemon(spill=outage.url, host_bytes="4MiB", spill_bytes_max="256MiB")
    above, new = range(60), range(60, 80)
    with Client(server.address, connect_timeout_s=20.0) as client:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, SPILLED)
        put(ns, above)
        outage.begin()
        server.restart()
        assert await_health(server, NOT_SERVING, NOTICED_WITHIN_S) < NOTICED_WITHIN_S
        assert_readable(ns, list(above), least=len(above))
        put(ns, new)
        assert set(ns.lookup([name(number) for number in SPILLED]).presence) == {Presence.BELOW}
        outage.end()
        await_health(server, SERVING, BACK_WITHIN_S)
        assert_what_was_spilled(client, ns, outage)
        assert_readable(ns, [*above, *new], least=len(above) + len(new))


def assert_nothing_moves(client: Client, ns: Namespace, held: set[bytes]) -> None:
    """All that was in host is there still, demotions fail at once, and what only the server has is not now."""
    still = host_blocks(client)
    assert held <= still
    began = time.monotonic()
    some = sorted(held)[:20]
    packed = np.frombuffer(b"".join(some), np.uint8).reshape(-1, 32)
    outcomes = set(ns.evict(packed, to="spill", timeout_s=TIMEOUT_S))
    assert outcomes <= {EvictOutcome.FAILED, EvictOutcome.IN_USE, EvictOutcome.PENDING}, outcomes
    assert held <= host_blocks(client)
    assert all(block is not None for block in ns.get(packed, timeout_s=TIMEOUT_S))
    spilled = [name(number) for number in SPILLED]
    assert set(ns.lookup(spilled).presence) <= {Presence.BELOW, Presence.READY}
    assert set(map(type, ns.get(spilled[:5], timeout_s=TIMEOUT_S))) == {type(None)}
    assert time.monotonic() - began < 2 * TIMEOUT_S + 2 * SLACK_S
    verified = client.admin.verify(tier="host")
    assert verified.damaged == () and verified.verified_blocks >= len(held)


def assert_demotes(client: Client, ns: Namespace, deadline: float) -> None:
    """A block that lies only in host can be moved to the server before the deadline."""
    for record in client.admin.list_blocks(tier="host"):
        if record.tiers == Tiers.HOST:
            packed = np.frombuffer(record.identity, np.uint8)[None, :]
            (outcome,) = ns.evict(packed, to="spill", timeout_s=max(0.0, deadline - time.monotonic()))
            if outcome is EvictOutcome.MOVED:
                return
            assert time.monotonic() < deadline, outcome
    raise AssertionError("no block of the host tier could be moved")


def assert_what_was_spilled(client: Client, ns: Namespace, outage: Outage) -> None:
    spilled = list(SPILLED)
    if not outage.forgets:
        assert_readable(ns, spilled, least=len(spilled))
        return
    assert set(ns.lookup([name(number) for number in spilled]).presence) == {Presence.MISS}
    assert set(map(type, ns.get([name(number) for number in spilled]))) == {type(None)}
    put_and_spill(ns, SPILLED)
    assert_readable(ns, spilled, least=len(spilled))
