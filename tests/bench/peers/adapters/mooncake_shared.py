"""Mooncake Store through shared memory: `mooncake_client` owns memory and transfers, ours is its dummy client,
which takes and gives blocks only in a pool that it shares with it."""

from __future__ import annotations

import sys
from pathlib import Path

from mooncake_store import LOCAL_BUFFER_BYTES, MooncakeTcp, block_at, succeed
from peer_adapter import CAPACITY_BYTES, Block, Server, free_port

POOL_BYTES = 384 << 20
"""For the blocks of the largest round and the buffers that they are read into."""


class MooncakeShared(MooncakeTcp):
    def _start_holder(self, place: Path) -> Server:
        port = free_port()
        self._client_address = f"127.0.0.1:{port}"
        client = Server([
            Path(sys.prefix) / "bin/mooncake_client", "-host", "127.0.0.1", "-global_segment_size",
            f"{CAPACITY_BYTES >> 20} MB", "-local_buffer_size", f"{LOCAL_BUFFER_BYTES >> 20} MB",
            "-master_server_address", self._master, "-metadata_server", "P2PHANDSHAKE", "-port", port,
            "-protocol", "tcp",
        ], place / "client.log")
        client.await_port(port)
        return client

    def _connect(self) -> None:
        succeed("setup_dummy", self._store.setup_dummy(POOL_BYTES, LOCAL_BUFFER_BYTES, self._client_address))
        self._pool = self._store.alloc_from_mem_pool(POOL_BYTES)
        succeed("register_buffer", self._store.register_buffer(self._pool, POOL_BYTES))

    def buffers(self, count: int, block_bytes: int) -> list[Block]:
        return [block_at(self._pool + at * block_bytes, block_bytes) for at in range(count)]


ADAPTER = MooncakeShared
