"""Load on a daemon whose spill server goes away, and what must hold of each call meanwhile."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from block_pattern import pattern, wrong_bytes
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tierd.testing.serve import ServeProcess
from tierd_client import Client, EvictOutcome, Layout, PutOutcome
from tierd_client.namespace import Namespace

BLOCK_BYTES = 16 << 10
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES)
TIMEOUT_S = 0.5
"""Given with every call of the load."""
SLACK_S = 1.0
"""For RPC, copies and a busy machine: less than a call of the spill store may take."""
BUSY_S = 2.0
"""More that a busy machine may be late by before what runs by itself has ended."""
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
