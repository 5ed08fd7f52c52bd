"""Fail-overs of a cluster and under sentinels while calls are under way: no wrong byte, no late call, soon back."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from redis_contract import new_store

from tierd.adapters.resp import Deadline
from tierd.adapters.spill_redis import RedisSpillStore
from tierd.core.errors import BlockVanished, SpillError
from tierd.testing.spill_contract import FINGERPRINT, block_of, identity_of, payload_of
from tierd.testing.valkey import ExternalValkey
from tierd.testing.valkey_groups import SentinelGroup, ValkeyCluster, await_true

DEADLINE_S = 0.5
GRACE_S = 1.0
"""By so much a busy machine may be late; ports.py allows 100 ms."""
BLOCK_BYTES = 64 << 10
BLOCKS = 300
"""That each thread of the load stores, again and again: what a replica has to copy is bounded."""
BACK_WITHIN_S = 5.0
FAILS_OVER_WITHIN_S = 20.0
PAUSE_S = 0.01
"""After a failed call: the daemon's breaker would pause for longer."""
THREADS = 4
STEADY_CALLS = 40

Group = ValkeyCluster | SentinelGroup


class Load(threading.Thread):
    """Stores and reads blocks with a deadline, and remembers what became of it."""

    def __init__(self, store: RedisSpillStore, first: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self.outcomes: Counter[str] = Counter()
        self.wrong = 0
        self.longest_s = 0.0
        self._store = store
        self._numbers = itertools.cycle(range(first, first + BLOCKS))
        self._stored: list[int] = []
        self._over = stop

    def run(self) -> None:
        while not self._over.is_set():
            number = next(self._numbers)
            self._timed("put", lambda number=number: self._put(number))  # type: ignore[misc]
            self._timed("get", self._get)

    def _put(self, number: int) -> None:
        payload = payload_of(number, BLOCK_BYTES)
        self._store.put(block_of(number, payload), payload, DEADLINE_S)
        self._stored.append(number)

    def _get(self) -> None:
        if not self._stored:
            return
        number = self._stored[(len(self._stored) * 7919) // 2 % len(self._stored)]
        out = np.empty(BLOCK_BYTES, np.uint8)
        self._store.get(FINGERPRINT, identity_of(number), out, DEADLINE_S)
        self.wrong += not np.array_equal(out, payload_of(number, BLOCK_BYTES))

    def _timed(self, name: str, call: Callable[[], None]) -> None:
        began = time.monotonic()
        try:
            call()
        except SpillError as error:
            self.outcomes[f"{name} {type(error).__name__}"] += 1
            if not isinstance(error, BlockVanished):
                self._over.wait(PAUSE_S)
        else:
            self.outcomes[name] += 1
        self.longest_s = max(self.longest_s, time.monotonic() - began)


@contextmanager
def under_load(store: RedisSpillStore) -> Iterator[list[Load]]:
    stop = threading.Event()
    loads = [Load(store, 1_000_000 * (n + 1), stop) for n in range(THREADS)]
    for load in loads:
        load.start()
    try:
        yield loads
    finally:
        stop.set()
        for load in loads:
            load.join(10.0)
    total = sum((load.outcomes for load in loads), Counter[str]())
    print(dict(total), f"longest call {max(load.longest_s for load in loads):.3f} s")
    assert not any(load.is_alive() for load in loads)
    assert sum(load.wrong for load in loads) == 0
    assert max(load.longest_s for load in loads) < DEADLINE_S + GRACE_S
    assert total["put"] > 100 and total["get"] > 100, total


@pytest.fixture(params=["cluster", "sentinels"])
def group(request: pytest.FixtureRequest) -> Iterator[Group]:
    """A group that is whole before and after."""
    group: Group = request.getfixturevalue(request.param)
    yield group
    group.wait_whole()


def primary_of(group: Group) -> ExternalValkey:
    """The primary that has a replica."""
    if isinstance(group, SentinelGroup):
        return group.primary()
    return next(node for node in group.primaries() if b"connected_slaves:1" in replication(node))


def replica_of(group: Group) -> ExternalValkey:
    members = group.servers if isinstance(group, SentinelGroup) else group.nodes
    return next(node for node in members if b"role:slave" in replication(node))


def replication(node: ExternalValkey) -> bytes:
    text = node.run(b"INFO", b"replication")
    assert isinstance(text, bytes)
    return text


def await_success(store: RedisSpillStore, within_s: float) -> None:
    """Waits until many blocks in a row, of all slots, can be stored and read."""
    payload = payload_of(0, 100)
    out = payload.copy()
    limit = time.monotonic() + within_s
    done = 0
    while done < STEADY_CALLS:
        try:
            store.put(block_of(done, payload), payload, DEADLINE_S)
            store.get(FINGERPRINT, identity_of(done), out, DEADLINE_S)
            store.probe(DEADLINE_S)
            done += 1
        except SpillError:
            assert time.monotonic() < limit, f"not back within {within_s} s"
            done = 0


def fail_over(group: Group, lose: Callable[[ExternalValkey], object]) -> ExternalValkey:
    """Loses the primary and waits until its replica has taken its place; the one that was lost."""
    lost, heir = primary_of(group), replica_of(group)
    lose(lost)
    await_true(lambda: group.takes_over(heir), Deadline(FAILS_OVER_WITHIN_S))
    return lost


def test_frozen_primary(group: Group) -> None:
    """When a primary hangs under load no call passes its deadline and no byte is wrong, and once its replica has
    taken its place all blocks can be stored and read again, also while the old primary comes back as what it was.
    (One that is killed: e2e/test_failover.py.)"""
    store = new_store(group.url)
    with under_load(store):
        await_success(store, BACK_WITHIN_S)
        lost = fail_over(group, ExternalValkey.freeze)
        await_success(store, BACK_WITHIN_S)
        group.bring_back(lost)
        group.wait_whole()
        await_success(store, BACK_WITHIN_S)
    store.close()


def test_planned_fail_over(group: Group) -> None:
    """When primary and replica change places under load, the new primary is used at once: the old one is up and
    says that it is none any more."""
    store = new_store(group.url)
    with under_load(store):
        await_success(store, BACK_WITHIN_S)
        if isinstance(group, SentinelGroup):
            former = fail_over(group, lambda _: group.sentinels[0].run(b"SENTINEL", b"FAILOVER", b"kv"))
        else:
            former = fail_over(group, lambda _: replica_of(group).run(b"CLUSTER", b"FAILOVER"))
        await_success(store, BACK_WITHIN_S)
        group.bring_back(former)
    store.close()
