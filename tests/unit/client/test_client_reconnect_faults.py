"""A connection that breaks while it is being made: the error says what happened, and no session is left behind."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from scripted_daemon import ScriptedDaemon

from tierd_client import Client, ConnectFailed, Layout, errors

LAYOUT = Layout.opaque(block_bytes=64)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    daemon = ScriptedDaemon(tmp_path / "s.sock")
    daemon.start()
    yield daemon
    daemon.stop()


class AttachSocket:
    """Takes one connection at a time, lets the test do what it wants, and closes it without an answer."""

    def __init__(self, path: Path, meanwhile: Callable[[], None]) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._meanwhile = meanwhile
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        connection.recv(4096)
        self._meanwhile()
        connection.close()


def test_a_daemon_that_dies_during_attach_is_away(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    """A client that must map memory and whose daemon dies before it could raises ConnectFailed, as for any
    daemon that is away, and not that memory cannot be shared."""
    daemon.attach_path = str(tmp_path / "attach.sock")
    AttachSocket(tmp_path / "attach.sock", meanwhile=daemon.stop)
    with pytest.raises(ConnectFailed):
        Client(daemon.target, shared_memory="require")
    daemon.start()


def test_an_attach_that_fails_leaves_no_session(daemon: ScriptedDaemon, tmp_path: Path) -> None:
    """A session whose memory could not be mapped, and is not used for that, is given up in so many words."""
    daemon.attach_path = str(tmp_path / "attach.sock")
    AttachSocket(tmp_path / "attach.sock", meanwhile=lambda: None)
    with pytest.raises(errors.SharedMemoryUnavailable):
        Client(daemon.target, shared_memory="require")
    assert daemon.detached == [1]


def test_a_sequence_that_cannot_be_reopened_leaves_no_session(daemon: ScriptedDaemon) -> None:
    """When a running sequence is refused by a restarted daemon, each attempt gives up the session it made."""

    def refuse(request: Any, context: Any) -> None:
        context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "max_sequences: all 1 are open")

    with Client(daemon.target) as client:
        ns = client.namespace(LAYOUT)
        with ns.sequence("running", [b"a"]):
            daemon.stop()
            daemon.start()
            daemon.hooks["OpenSequence"] = refuse
            opened = daemon.sessions
            with pytest.raises(errors.LimitReached):
                _until_it_answers(lambda: ns.lookup([b"a"]))
            assert daemon.sessions > opened
            assert sorted(daemon.detached) == list(range(opened + 1, daemon.sessions + 1))
            daemon.hooks.clear()
            assert ns.lookup([b"a"]).prefix == 0


def _until_it_answers(call: Callable[[], Any]) -> Any:
    """Repeats a call while no daemon is found, which it may be told for a second after a failed attempt."""
    ends_at = time.monotonic() + 10
    while True:
        try:
            return call()
        except errors.Unavailable:
            assert time.monotonic() < ends_at
