"""The contract of spill stores for stores on Redis or Valkey, whatever the way to the servers."""

from __future__ import annotations

from collections.abc import Callable

from tierd.adapters.envelope import block_key
from tierd.adapters.spill_redis import RedisSpillStore
from tierd.ports import SpillStore
from tierd.testing.spill_contract import FINGERPRINT, SpillContract, identity_of

INSTANCE, MARKER = bytes(range(16)), bytes(range(16, 32))
PREFIX = "contract"


def new_store(url: str, pool_size: int = 8) -> RedisSpillStore:
    return RedisSpillStore(url, instance=INSTANCE, marker=MARKER, prefix=PREFIX, pool_size=pool_size)


class RedisContract(SpillContract):
    """`run`: runs a command on the server that it belongs to, past the store."""

    run: Callable[..., object]

    def tamper(self, store: SpillStore, number: int, change: Callable[[bytes], bytes]) -> None:
        key = block_key(PREFIX.encode(), FINGERPRINT, identity_of(number))
        value = self.run(b"GET", key)
        assert isinstance(value, bytes)
        self.run(b"SET", key, change(value))
