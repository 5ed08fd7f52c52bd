"""The memory spill passes the contract of spill stores, and is bounded."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tierd.adapters.envelope import HEADER_BYTES
from tierd.adapters.spill_memory import MemorySpillStore
from tierd.core.errors import BlockVanished, SpillFull
from tierd.ports import SpillStore
from tierd.testing.spill_contract import DEADLINE_S, FINGERPRINT, SpillContract, get_new, identity_of, put_random


class TestMemorySpill(SpillContract):
    @pytest.fixture
    def store(self) -> MemorySpillStore:
        return MemorySpillStore(128 << 20)

    def tamper(self, store: SpillStore, number: int, change: Callable[[bytes], bytes]) -> None:
        assert isinstance(store, MemorySpillStore)
        key = (FINGERPRINT, identity_of(number))
        store.values[key] = change(store.values[key])


def test_bounded() -> None:
    """A put that does not fit is SpillFull and changes nothing; room that was given back is used again."""
    store = MemorySpillStore(2 * (4096 + HEADER_BYTES))
    put_random(store, 1)
    put_random(store, 2)
    put_random(store, 2)
    with pytest.raises(SpillFull):
        put_random(store, 3)
    with pytest.raises(BlockVanished):
        get_new(store, 3)
    store.unlink(FINGERPRINT, [identity_of(1)], DEADLINE_S)
    put_random(store, 3)
    get_new(store, 2)


def test_flush() -> None:
    """A flushed store holds nothing, has room again, and does not pass for the one that was probed."""
    store = MemorySpillStore(4096 + HEADER_BYTES)
    store.probe(DEADLINE_S)
    put_random(store, 1)
    store.flush()
    assert not store.probe(DEADLINE_S).same
    put_random(store, 2)
