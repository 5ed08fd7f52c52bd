"""tierd as its users run it: `tierd serve`, and the blocking client on the same host."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from peer_adapter import CAPACITY_BYTES, Adapter, Block, Server

from tierd_client import AcquireOutcome, Client, Identities, Layout, PutOutcome, plain_ids

ELEMENT_BYTES = 2
TOKENS = 16


class Tierd(Adapter):
    version = version("tierd")
    can_queue = True

    def start(self, place: Path) -> None:
        socket = place / "tierd.sock"
        self._memory = tempfile.mkdtemp(prefix="tierd-peers-", dir="/dev/shm")
        self._server = Server([
            sys.executable, "-m", "tierd.cli", "serve", "--state-dir", place, "--shm-dir", self._memory,
            "--host-bytes", CAPACITY_BYTES, "--spill", "none", "--http-address", "off",
        ], place / "tierd.log")
        self._server.await_that(socket.exists)
        self._client = Client(f"unix://{socket}", connect_timeout_s=20.0, direct_reads=True)

    def use(self, block_bytes: int) -> None:
        head_dim = block_bytes // (2 * TOKENS * ELEMENT_BYTES)  # keys and values of one head of one layer
        self._namespace = self._client.namespace(Layout(
            model="peers", dtype="float16", layers=1, kv_heads=1, head_dim=head_dim, block_tokens=TOKENS))

    def ids(self, numbers: Sequence[int]) -> Identities:
        return plain_ids(self._namespace, [number.to_bytes(8, "little") for number in numbers])

    def put(self, ids: Identities, blocks: Sequence[Block]) -> None:
        outcomes = self._namespace.put(ids, blocks)
        if any(outcome is not PutOutcome.STORED for outcome in outcomes):
            raise RuntimeError(f"put: {outcomes}")

    def queue(self, ids: Identities, blocks: Sequence[Block]) -> None:
        self._namespace.put(ids, blocks, wait=False)

    def flush(self) -> None:
        flushed = self._client.flush()
        if flushed.failed:
            raise RuntimeError(f"flush: {flushed.outcomes}, {flushed.errors}")

    def get_into(self, ids: Identities, blocks: Sequence[Block]) -> bool:
        outcomes = self._namespace.get_into(ids, blocks)
        return all(outcome is AcquireOutcome.LEASED for outcome in outcomes)

    def exists(self, ids: Identities) -> int:
        return self._namespace.lookup(ids).prefix

    def clear(self) -> None:
        self._client.admin.clear()

    def stop(self) -> None:
        self._client.close()
        self._server.stop()
        shutil.rmtree(self._memory)


ADAPTER = Tierd
