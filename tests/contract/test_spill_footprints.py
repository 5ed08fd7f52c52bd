"""What a real server says that blocks take is what its memory grows by."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from redis_contract import new_store

from tierd.adapters.spill_redis import RedisSpillStore, info_of
from tierd.core.errors import SpillRefused
from tierd.testing.spill_contract import DEADLINE_S, FINGERPRINT, identity_of, put_random
from tierd.testing.valkey import ExternalValkey

TOLD_WITHIN = 0.03


@pytest.fixture
def store(valkey: ExternalValkey) -> Iterator[RedisSpillStore]:
    store = new_store(valkey.unix_url)
    yield store
    store.close()


def used_bytes(server: ExternalValkey) -> int:
    about = server.run(b"INFO", b"memory")
    assert isinstance(about, bytes)
    return int(info_of([about])["used_memory"])


@pytest.mark.parametrize(("size", "count"), [(8192, 1024), (131_072, 128), (655_360, 32), (5 << 20, 8)])
def test_the_server_takes_what_it_says(
    valkey: ExternalValkey, store: RedisSpillStore, size: int, count: int
) -> None:
    """The footprints of stored blocks add up to the memory that the server took for them, within three percent."""
    put_random(store, 5000, size)  # connections and the first buckets of the server's table
    before = used_bytes(valkey)
    for number in range(count):
        put_random(store, number, size)
    taken = used_bytes(valkey) - before
    told = store.footprints(FINGERPRINT, [identity_of(number) for number in range(min(count, 256))], DEADLINE_S)
    mean = sum(one or 0 for one in told) / len(told)
    assert abs(mean * count - taken) <= TOLD_WITHIN * taken


def test_a_user_who_may_not_ask(valkey: ExternalValkey) -> None:
    """Without the right to ask for memory the answer is SpillRefused, and blocks are stored all the same."""
    valkey.run(b"ACL", b"SETUSER", b"plain", b"on", b">word", b"~*", b"+@all", b"-memory")
    store = new_store(valkey.tcp_url.replace("redis://", "redis://plain:word@"))
    block, _ = put_random(store, 1)
    with pytest.raises(SpillRefused, match="NOPERM"):
        store.footprints(FINGERPRINT, [block.identity], DEADLINE_S)
    store.close()
    valkey.run(b"ACL", b"DELUSER", b"plain")
