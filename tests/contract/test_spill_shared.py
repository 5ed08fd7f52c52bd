"""What several instances make of one Redis: one content per identity, newest statistics, each its own blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tierd.adapters.envelope import block_key, marker_key, statistics_key
from tierd.adapters.spill_redis import RedisSpillStore
from tierd.core.errors import SpillDown
from tierd.core.messages import Record
from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.spill_contract import (
    DEADLINE_S,
    FINGERPRINT,
    block_of,
    get_new,
    identity_of,
    payload_of,
    put_random,
)
from tierd.testing.valkey import ExternalValkey

PREFIX = "shared"


def store_of(url: str, name: bytes, **settings: object) -> RedisSpillStore:
    return RedisSpillStore(
        url, instance=name * 16, marker=name.upper() * 16, prefix=PREFIX, shared=True,
        **settings,  # type: ignore[arg-type]
    )


@pytest.fixture
def two(valkey: ExternalValkey) -> Iterator[tuple[RedisSpillStore, RedisSpillStore]]:
    stores = store_of(valkey.unix_url, b"a"), store_of(valkey.tcp_url, b"b")
    yield stores
    for store in stores:
        store.close()


def key_of(number: int) -> bytes:
    return block_key(PREFIX.encode(), FINGERPRINT, identity_of(number))


def test_one_content(valkey: ExternalValkey, two: tuple[RedisSpillStore, RedisSpillStore]) -> None:
    """The second writer of an identity with the same bytes writes no payload and is told that it is another's;
    the first one's repeated put is its own. Newer statistics are kept beside it."""
    a, b = two
    block, payload = put_random(a, 1)
    before = valkey.run(b"GET", key_of(1))
    newer = replace(block, record=Record(touches=9, wall=5.0))
    assert not b.put(newer, payload, DEADLINE_S)
    assert a.put(block, payload, DEADLINE_S)
    assert valkey.run(b"GET", key_of(1)) == before
    seen = a.look(FINGERPRINT, [block.identity], DEADLINE_S)[0]
    assert seen is not None and seen.own and seen.record == newer.record
    seen = b.look(FINGERPRINT, [block.identity], DEADLINE_S)[0]
    assert seen is not None and not seen.own


def test_other_content(two: tuple[RedisSpillStore, RedisSpillStore]) -> None:
    """Of two contents of one identity the later one stands, whole, and its checksum tells them apart."""
    a, b = two
    first, _ = put_random(a, 2)
    payload = payload_of(99, 4096)
    second = block_of(2, payload)
    assert b.put(second, payload, DEADLINE_S)
    found, out = get_new(a, 2)
    assert found == second.checksum != first.checksum
    assert np.array_equal(out, payload)


def test_stored_already_on_a_full_server(
    valkey: ExternalValkey, two: tuple[RedisSpillStore, RedisSpillStore]
) -> None:
    """A block that is there is stored, even where the server has no room left for its newer statistics."""
    a, b = two
    block, payload = put_random(a, 9)
    valkey.run(b"CONFIG", b"SET", b"maxmemory", b"1mb")
    try:
        newer = replace(block, record=Record(touches=9, wall=5.0))
        assert not b.put(newer, payload, DEADLINE_S)
    finally:
        valkey.run(b"CONFIG", b"SET", b"maxmemory", b"512mb")


@pytest.mark.parametrize("value", [b"", b"half a record", bytes(64), b"x" * 64, b"x" * (2 << 20)])
def test_statistics_that_are_none(
    valkey: ExternalValkey, two: tuple[RedisSpillStore, RedisSpillStore], value: bytes
) -> None:
    """A damaged statistics record costs nothing but itself, and is written anew."""
    a, b = two
    block, _ = put_random(a, 3)
    valkey.run(b"SET", statistics_key(key_of(3)), value)
    assert b.look(FINGERPRINT, [block.identity], DEADLINE_S) == [replace(block, own=False)]
    record = Record(touches=2, last=7, wall=1.0)
    b.restate(FINGERPRINT, {block.identity: record}, DEADLINE_S)
    seen = a.look(FINGERPRINT, [block.identity], DEADLINE_S)[0]
    assert seen is not None and seen.record == record


def test_keys_of_another_type(valkey: ExternalValkey, two: tuple[RedisSpillStore, RedisSpillStore]) -> None:
    """Keys that hold no string are no blocks and no statistics, and disturb none of those asked for beside them."""
    a, _ = two
    block, _ = put_random(a, 4)
    valkey.run(b"LPUSH", key_of(5), b"x")
    valkey.run(b"LPUSH", statistics_key(key_of(4)), b"x")
    identities = [identity_of(5), block.identity, identity_of(6)]
    assert a.look(FINGERPRINT, identities, DEADLINE_S) == [None, block, None]


def test_look_that_is_cut_off(valkey: ExternalValkey) -> None:
    """A look that meets its deadline in the middle is SpillDown, and the call after it has its own answer."""
    with RedisProxy(valkey.unix_url) as proxy:
        store = store_of(proxy.url, b"a")
        block, _ = put_random(store, 7)
        proxy.switch(Mode.BLACK_HOLE)
        with pytest.raises(SpillDown):
            store.look(FINGERPRINT, [identity_of(number) for number in range(200)], 0.1)
        proxy.switch(Mode.PASS)
        assert store.look(FINGERPRINT, [identity_of(8), block.identity], DEADLINE_S) == [None, block]
        store.close()


def test_epochs(valkey: ExternalValkey) -> None:
    """A new epoch begins when the marker is missing or of another epoch, so that a server that comes back as it
    was before is not taken for the one that was used meanwhile; each epoch is kept for the next start."""
    epochs: list[int] = []
    store = store_of(valkey.unix_url, b"a", epoch=3, save_epoch=epochs.append)
    assert [store.probe(DEADLINE_S).same, store.probe(DEADLINE_S).same] == [False, True]
    key = marker_key(PREFIX.encode(), b"a" * 16)
    of_before = valkey.run(b"GET", key)
    assert isinstance(of_before, bytes)
    valkey.run(b"DEL", key)
    assert not store.probe(DEADLINE_S).same
    valkey.run(b"SET", key, of_before)
    health = store.probe(DEADLINE_S)
    assert not health.same and "another epoch" in health.detail
    assert store.probe(DEADLINE_S).same
    assert epochs == [4, 5, 6]
    store.close()
    again = store_of(valkey.unix_url, b"a", epoch=6)
    assert again.probe(DEADLINE_S).same
    again.close()
