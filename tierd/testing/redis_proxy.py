"""A proxy in front of a Redis or Valkey server that fails on demand, for tests of whatever talks through it.

It understands commands and replies, so that it can fail in the middle of a value, answer in the server's
place, or swallow a command. One command of a connection is under way at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

CONTROL_TIMEOUT_S = 5.0
"""For starting, stopping and switching; each is the work of an instant."""
_BUFFER_BYTES = 1 << 20
_STALL_POLL_S = 0.01
_WRITES = frozenset((b"SET", b"UNLINK", b"DEL"))
_OOM = b"OOM command not allowed when used memory > 'maxmemory'."
_READONLY = b"READONLY You can't write against a read only replica."


class Mode(Enum):
    PASS = "pass"
    DELAY = "delay"
    """Each reply comes `delay_s` late."""
    TRICKLE = "trickle"
    """Replies come in pieces of `count` bytes, `delay_s` apart."""
    CUT_UPLOAD = "cut_upload"
    """The connections end after `count` bytes of the value of a SET."""
    CUT_DOWNLOAD = "cut_download"
    """The connections end after `count` bytes of a value in a reply."""
    FAIL_SET = "fail_set"
    """Every `count`th SET is answered with an error; the server does not see it."""
    BLACK_HOLE = "black_hole"
    """Connections are accepted and read, and nothing is answered."""
    STALL = "stall"
    """Connections are accepted and not even read, so that large commands get stuck on their way."""
    REFUSE = "refuse"
    """Nobody listens; open connections are reset."""
    OUT_OF_MEMORY = "out_of_memory"
    """Each SET is answered as by a full server."""
    READ_ONLY = "read_only"
    """Writes are answered as by a replica."""


@dataclass(frozen=True, slots=True)
class _Behaviour:
    mode: Mode = Mode.PASS
    count: int = 1
    delay_s: float = 0.0
    error: bytes = b"ERR injected"


class _Cut(Exception):
    """The connection ends here; `so_far` still goes on to the server."""

    def __init__(self, so_far: bytes = b"") -> None:
        super().__init__("cut")
        self.so_far = so_far


class RedisProxy:
    """Passes commands on to `upstream` (`redis://host:port` or `unix:///path`), or fails as `switch` says.

    Listens on a port of 127.0.0.1 that the system chooses, or on the Unix socket `listen`; with `tls`, the
    server side of TLS. A context manager; `commands` counts what arrived, by upper-case name.
    """

    def __init__(self, upstream: str, listen: Path | None = None, tls: ssl.SSLContext | None = None) -> None:
        self._upstream = upstream
        self._listen = listen
        self._tls = tls
        self._port = 0
        self._behaviour = _Behaviour()
        self._sets = 0
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._ready = threading.Event()
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), name="redis-proxy", daemon=True)
        self.commands: Counter[bytes] = Counter()

    @property
    def url(self) -> str:
        """Where to connect instead of the server."""
        if self._listen is not None:
            return f"unix://{quote(str(self._listen))}"
        return f"{'redis' if self._tls is None else 'rediss'}://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._thread.start()
        if not self._ready.wait(CONTROL_TIMEOUT_S):
            raise TimeoutError("the proxy did not start")

    def stop(self) -> None:
        """Closes everything. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(CONTROL_TIMEOUT_S)

    def __enter__(self) -> RedisProxy:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def switch(self, mode: Mode, *, count: int = 1, delay_s: float = 0.0, error: str = "ERR injected") -> None:
        """What happens from the next command on; REFUSE and its end take effect before this returns."""
        self._behaviour = _Behaviour(mode, count, delay_s, error.encode())
        self._sets = 0
        self._call(self._refuse() if mode is Mode.REFUSE else self._accept())

    def cut_connections(self) -> None:
        """Ends all open connections, once."""
        self._call(self._abort_all())

    def wait_for(self, name: bytes, count: int, timeout_s: float) -> bool:
        """Waits until `count` commands of that name have arrived since the start."""
        with self._arrived:
            return self._arrived.wait_for(lambda: self.commands[name] >= count, timeout_s)

    def _call(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(CONTROL_TIMEOUT_S)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await self._accept()
        self._ready.set()
        await self._stopping.wait()
        await self._refuse()

    async def _accept(self) -> None:
        if self._server is not None:
            return
        if self._listen is not None:
            self._listen.unlink(missing_ok=True)
            self._server = await asyncio.start_unix_server(
                self._serve, self._listen, limit=_BUFFER_BYTES, ssl=self._tls
            )
        else:
            self._server = await asyncio.start_server(
                self._serve, "127.0.0.1", self._port, limit=_BUFFER_BYTES, ssl=self._tls
            )
            self._port = self._server.sockets[0].getsockname()[1]

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._listen is not None:
            self._listen.unlink(missing_ok=True)
        await self._abort_all()

    async def _abort_all(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, _Cut)
        with self._tracked(writer), contextlib.suppress(*ends):
            up_reader, up_writer = await self._connect()
            with self._tracked(up_writer):
                while True:
                    await self._exchange(reader, writer, up_reader, up_writer)

    @contextlib.contextmanager
    def _tracked(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        parts = urlsplit(self._upstream)
        if parts.scheme == "unix":
            return await asyncio.open_unix_connection(unquote(parts.path), limit=_BUFFER_BYTES)
        return await asyncio.open_connection(parts.hostname, parts.port, limit=_BUFFER_BYTES)

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
    ) -> None:
        """One command and its reply."""
        try:
            name, command = await self._read_command(reader)
        except _Cut as cut:
            up_writer.write(cut.so_far)
            await up_writer.drain()
            raise
        behaviour = self._behaviour
        self._count(name)
        error = self._error_for(name, behaviour)
        if error is not None:
            writer.write(b"-%b\r\n" % error)
        elif behaviour.mode is not Mode.BLACK_HOLE:
            up_writer.write(command)
            await _send_reply(await _read_reply(up_reader), writer, behaviour)

    async def _read_command(self, reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
        """Name and bytes of the next command. _Cut in the middle of a SET's value when the mode says so."""
        line = await reader.readuntil(b"\r\n")
        parts, name = [line], b""
        for word in range(int(line[1:])):
            await self._while_stalled()
            length_line = await reader.readuntil(b"\r\n")
            length = int(length_line[1:])
            behaviour = self._behaviour
            if behaviour.mode is Mode.CUT_UPLOAD and name == b"SET" and word == 2 and length > behaviour.count:
                parts += [length_line, await reader.readexactly(behaviour.count)]
                raise _Cut(b"".join(parts))
            body = await reader.readexactly(length + 2)
            parts += [length_line, body]
            name = name or body[:-2].upper()
        return name, b"".join(parts)

    async def _while_stalled(self) -> None:
        while self._behaviour.mode is Mode.STALL:
            await asyncio.sleep(_STALL_POLL_S)

    def _count(self, name: bytes) -> None:
        with self._arrived:
            self.commands[name] += 1
            self._arrived.notify_all()

    def _error_for(self, name: bytes, behaviour: _Behaviour) -> bytes | None:
        """What is answered in the server's place, if anything."""
        if behaviour.mode is Mode.READ_ONLY and name in _WRITES:
            return _READONLY
        if name != b"SET":
            return None
        if behaviour.mode is Mode.OUT_OF_MEMORY:
            return _OOM
        if behaviour.mode is Mode.FAIL_SET:
            self._sets += 1
            return behaviour.error if self._sets % behaviour.count == 0 else None
        return None


async def _send_reply(reply: bytes, writer: asyncio.StreamWriter, behaviour: _Behaviour) -> None:
    if behaviour.mode is Mode.DELAY:
        await asyncio.sleep(behaviour.delay_s)
    if behaviour.mode is Mode.TRICKLE:
        for first in range(0, len(reply), behaviour.count):
            writer.write(reply[first : first + behaviour.count])
            await writer.drain()
            await asyncio.sleep(behaviour.delay_s)
        return
    value_at = reply.index(b"\r\n") + 2
    if behaviour.mode is Mode.CUT_DOWNLOAD and reply.startswith(b"$") and len(reply) > value_at + behaviour.count:
        writer.write(reply[: value_at + behaviour.count])
        await writer.drain()
        raise _Cut
    writer.write(reply)
    await writer.drain()


async def _read_reply(reader: asyncio.StreamReader) -> bytes:
    line = await reader.readuntil(b"\r\n")
    kind, rest = line[:1], line[1:-2]
    if kind == b"$" and rest != b"-1":
        return line + await reader.readexactly(int(rest) + 2)
    if kind == b"*" and rest != b"-1":
        return line + b"".join([await _read_reply(reader) for _ in range(int(rest))])
    return line
