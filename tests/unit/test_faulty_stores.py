"""Stores that fail by script: the script decides, the seed repeats, and the contract of the real store holds."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import xxhash

from tierd.adapters.spill_memory import MemorySpillStore
from tierd.core.errors import BlockDamaged, BlockVanished, SpillDown, SpillError, SpillFull
from tierd.core.messages import Tier
from tierd.ports import SpillStore
from tierd.testing.faulty import EveryNth, Fault, FaultyArenaStore, FaultySpillStore, Operation, Scripted, Seeded
from tierd.testing.spill_contract import (
    DEADLINE_S,
    FINGERPRINT,
    SpillContract,
    block_of,
    get_new,
    identity_of,
    payload_of,
    put_random,
)
from tierd_client.format import U8Array


class TestWithoutFaults(SpillContract):
    """A faulty store whose script is empty is the store inside."""

    @pytest.fixture
    def store(self) -> FaultySpillStore:
        self.inner = MemorySpillStore(128 << 20)
        return FaultySpillStore(self.inner, Scripted([]))

    def tamper(self, store: SpillStore, number: int, change: Callable[[bytes], bytes]) -> None:
        key = (FINGERPRINT, identity_of(number))
        self.inner.values[key] = change(self.inner.values[key])


class BytesArena:
    """One segment in this process's memory."""

    tier = Tier.HOST
    mappable = True

    def __init__(self, size: int) -> None:
        self.bytes = np.zeros(size, np.uint8)

    def view(self, address: int, size: int) -> U8Array:
        return self.bytes[address : address + size]

    def read(self, address: int, out: U8Array) -> None:
        out[:] = self.view(address, out.size)

    def write(self, address: int, data: U8Array) -> None:
        self.view(address, data.size)[:] = data

    def close(self) -> None:
        pass


def faulty(*faults: Fault) -> FaultySpillStore:
    return FaultySpillStore(MemorySpillStore(1 << 20), Scripted(faults))


def test_put_that_fails_before_or_after() -> None:
    """A put that is down before is not stored, one that is down after is, and a full one is not."""
    store = faulty(Fault.DOWN, Fault.NONE, Fault.DOWN_AFTER, Fault.FULL)
    with pytest.raises(SpillDown):
        put_random(store, 1)
    with pytest.raises(BlockVanished):
        get_new(store, 1)
    with pytest.raises(SpillDown):
        put_random(store, 2)
    with pytest.raises(SpillFull):
        put_random(store, 3)
    get_new(store, 2)
    with pytest.raises(BlockVanished):
        get_new(store, 3)


@pytest.mark.parametrize(
    ("fault", "error"),
    [(Fault.DOWN, SpillDown), (Fault.DOWN_AFTER, SpillDown), (Fault.VANISHED, BlockVanished),
     (Fault.DAMAGED, BlockDamaged)],
)
def test_gets_that_fail(fault: Fault, error: type[SpillError]) -> None:
    """A get fails as scripted, once, and the block is still there."""
    store = faulty(Fault.NONE, fault)
    _, payload = put_random(store, 1)
    with pytest.raises(error):
        get_new(store, 1)
    assert np.array_equal(get_new(store, 1)[1], payload)
    assert store.injected[fault] == 1


def test_corrupt_read() -> None:
    """A corrupted get leaves other bytes, and is BlockDamaged."""
    store = faulty(Fault.NONE, Fault.CORRUPT)
    block, _ = put_random(store, 1)
    out = np.empty(4096, np.uint8)
    with pytest.raises(BlockDamaged):
        store.get(FINGERPRINT, identity_of(1), out, DEADLINE_S)
    assert xxhash.xxh3_64_intdigest(out.data) != block.checksum


def test_delay() -> None:
    """A delayed call is down at its deadline, or goes on when it is resumed."""
    store = faulty(Fault.NONE, Fault.DELAY, Fault.DELAY)
    put_random(store, 1)
    with pytest.raises(SpillDown, match="deadline"):
        store.get(FINGERPRINT, identity_of(1), np.empty(4096, np.uint8), 0.01)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(get_new, store, 1)
        store.resume.set()
        assert np.array_equal(waiting.result(DEADLINE_S)[1], payload_of(1, 4096))


def test_every_nth() -> None:
    """Every nth of the named operations fails, others do not count."""
    store = FaultySpillStore(MemorySpillStore(1 << 20), EveryNth(3, Fault.DOWN, [Operation.PUT]))
    failed = []
    for number in range(9):
        store.probe(1.0)
        try:
            put_random(store, number)
        except SpillDown:
            failed.append(number)
    assert failed == [2, 5, 8]


def test_seed_repeats() -> None:
    """The same seed fails the same calls; another seed others; each fault comes about as often as asked."""
    rates = {Fault.DOWN: 0.2, Fault.VANISHED: 0.1}

    def drawn(seed: int) -> list[Fault]:
        script = Seeded(seed, rates)
        return [script.next(Operation.GET) for _ in range(2000)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 300 < drawn(1).count(Fault.DOWN) < 500
    with pytest.raises(ValueError, match="add up"):
        Seeded(1, {Fault.DOWN: 0.7, Fault.FULL: 0.7})


def test_seeded_storm_keeps_the_contract() -> None:
    """Under any mix of faults only spill errors come out, and what is read is what was put."""
    rates = dict.fromkeys((Fault.DOWN, Fault.DOWN_AFTER, Fault.FULL, Fault.VANISHED, Fault.DAMAGED), 0.1)
    store = FaultySpillStore(MemorySpillStore(1 << 22), Seeded(7, rates))
    reads = 0
    for step in range(2000):
        number = step % 50
        payload = payload_of(number, 1000)
        try:
            store.put(block_of(number, payload), payload, DEADLINE_S)
            reads += np.array_equal(get_new(store, number, 1000)[1], payload)
        except SpillError:
            continue
    assert reads > 500


def test_arena() -> None:
    """Copies of an arena fail, corrupt or wait as scripted, and a failed write changes nothing."""
    script = Scripted([Fault.DOWN, Fault.CORRUPT, Fault.NONE, Fault.CORRUPT, Fault.DELAY])
    arena = FaultyArenaStore(BytesArena(8192), script, delay_limit_s=0.01)
    data, out = payload_of(1, 4096), np.empty(4096, np.uint8)
    with pytest.raises(OSError, match="injected"):
        arena.write(0, data)
    assert not arena.view(0, 8192).any()
    arena.write(0, data)
    assert (arena.view(0, 4096) != data).sum() == 1
    assert np.array_equal(data, payload_of(1, 4096))
    arena.write(0, data)
    arena.read(0, out)
    assert (out != data).sum() == 1
    with pytest.raises(OSError, match="never resumed"):
        arena.read(0, out)
    arena.read(0, out)
    assert np.array_equal(out, data)
    assert arena.tier is Tier.HOST and arena.mappable
