"""A proxy between two Unix stream sockets that counts what passes, for tests of what goes over a channel."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from pathlib import Path

CHUNK_BYTES = 1 << 16
STOPS_WITHIN_S = 10.0


class CountingProxy:
    """Listens on `path`, passes bytes on to `upstream` and back; a context manager. `bytes`: both ways so far."""

    def __init__(self, path: Path, upstream: Path) -> None:
        self.address = f"unix://{path}"
        self.bytes = 0
        self.connections = 0
        self._upstream = upstream
        self._lock = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> CountingProxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        self._thread.join(STOPS_WITHIN_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                far.connect(str(self._upstream))
                self._open += [near, far]
                self.connections += 1
                threading.Thread(target=self._pass, args=(near, far), daemon=True).start()

    def _pass(self, near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError, ValueError), selectors.DefaultSelector() as ready:
            ready.register(near, selectors.EVENT_READ, far)
            ready.register(far, selectors.EVENT_READ, near)
            while True:
                for key, _ in ready.select():
                    source, target = key.fileobj, key.data
                    assert isinstance(source, socket.socket)
                    data = source.recv(CHUNK_BYTES)
                    if not data:
                        raise OSError("closed")
                    target.sendall(data)
                    with self._lock:
                        self.bytes += len(data)
        for one in (near, far):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
