"""Mooncake Store over TCP: a master, a holder of memory as a process of its own, and a client without memory."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import numpy as np
from mooncake.store import MooncakeDistributedStore
from peer_adapter import CAPACITY_BYTES, Adapter, Block, Server, address_of, free_port

PACKAGE = "mooncake-transfer-engine-non-cuda"
LOCAL_BUFFER_BYTES = 64 << 20
LEASE_TTL_MS = 10_000

HOLDER = """
import sys, threading
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
code = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[1]), 16 << 20, "tcp", "", sys.argv[2])
assert code == 0, code
print("HOLDING", flush=True)
threading.Event().wait()
"""


class MooncakeTcp(Adapter):
    version = version(PACKAGE)

    def start(self, place: Path) -> None:
        self._servers = [self._start_master(place), self._start_holder(place)]
        self._store, self._memory = MooncakeDistributedStore(), None
        self._connect()

    def _start_master(self, place: Path) -> Server:
        port = free_port()
        self._master = f"127.0.0.1:{port}"
        master = Server([
            Path(sys.prefix) / "bin/mooncake_master", "-port", port, "-metrics_port", free_port(),
            "-default_kv_lease_ttl", LEASE_TTL_MS,
        ], place / "master.log")
        master.await_port(port)
        return master

    def _start_holder(self, place: Path) -> Server:
        holder = Server([sys.executable, "-c", HOLDER, CAPACITY_BYTES, self._master], place / "holder.log")
        holder.await_that(lambda: "HOLDING" in (place / "holder.log").read_text(errors="replace"))
        return holder

    def _connect(self) -> None:
        succeed("setup", self._store.setup(
            "127.0.0.1", "P2PHANDSHAKE", 0, LOCAL_BUFFER_BYTES, "tcp", "", self._master))

    def buffers(self, count: int, block_bytes: int) -> list[Block]:
        if self._memory is not None:
            succeed("unregister_buffer", self._store.unregister_buffer(address_of(self._memory)))
        self._memory = memory = np.zeros((count, block_bytes), np.uint8)
        succeed("register_buffer", self._store.register_buffer(address_of(memory), memory.nbytes))
        return list(memory)

    def put(self, ids: Sequence[str], blocks: Sequence[Block]) -> None:
        addresses, sizes = [address_of(block) for block in blocks], [block.size for block in blocks]
        if len(ids) == 1:
            succeed("put_from", self._store.put_from(ids[0], addresses[0], sizes[0]))
        else:
            succeed("batch_put_from", *self._store.batch_put_from(list(ids), addresses, sizes))

    def get_into(self, ids: Sequence[str], blocks: Sequence[Block]) -> bool:
        addresses, sizes = [address_of(block) for block in blocks], [block.size for block in blocks]
        if len(ids) == 1:
            return self._store.get_into(ids[0], addresses[0], sizes[0]) == sizes[0]
        return self._store.batch_get_into(list(ids), addresses, sizes) == sizes

    def exists(self, ids: Sequence[str]) -> int:
        return self._store.batch_is_exist(list(ids)).count(1)

    def clear(self) -> None:
        self._store.remove_all(force=True)

    def stop(self) -> None:
        self._store.close()
        for server in reversed(self._servers):
            server.stop()


def block_at(address: int, block_bytes: int) -> Block:
    """A block in memory that the peer allocated."""
    return np.frombuffer((ctypes.c_uint8 * block_bytes).from_address(address), np.uint8)


def succeed(what: str, *codes: int) -> None:
    if any(codes):
        raise RuntimeError(f"{what}: {sorted(set(codes))}")


ADAPTER = MooncakeTcp
