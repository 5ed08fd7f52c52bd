"""Calls by the lane: a client takes it where it can, and gRPC where it cannot."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from tierd.testing.serve import StartDaemon
from tierd_client import Client, Layout, PutOutcome
from tierd_client.errors import InvalidArgument, TimedOut
from tierd_client.lane import Lane
from tierd_client.session import Session
from tierd_client.v1 import blocks_pb2

SIZE = 4096
LAYOUT = Layout.opaque(block_bytes=SIZE)
DATA = np.ones((1, SIZE), np.uint8)
LOOKUP = blocks_pb2.LookupRequest(blocks=blocks_pb2.BlockIds(namespace=1, ids=bytes(range(32))))


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[Lane]:
    """Those that clients open."""
    opened: list[Lane] = []
    attach = Session.attach

    def noted(session: Session, *rest: object) -> None:
        attach(session, *rest)  # type: ignore[arg-type]
        if session.lane is not None:
            opened.append(session.lane)

    monkeypatch.setattr(Session, "attach", noted)
    return opened


def test_what_the_lane_does_not_take_goes_by_grpc(daemon: StartDaemon, lanes: list[Lane]) -> None:
    """A call of the data plane is answered or refused by the lane; where it is in use, or does not know the call, a
    client calls all the same."""
    with Client(daemon().address) as client:
        ns = client.namespace(LAYOUT)
        assert ns.put([b"a"], DATA) == [PutOutcome.STORED]
        (lane,) = lanes
        assert list(lane.ask("Lookup", LOOKUP, 5.0).presence) == [blocks_pb2.PRESENCE_MISS]
        with pytest.raises(InvalidArgument, match=r"blocks\.ids"):
            lane.ask("Lookup", blocks_pb2.LookupRequest(blocks=blocks_pb2.BlockIds(namespace=1, ids=b"x")), 5.0)
        assert lane.ask("Session", blocks_pb2.SessionRequest(), 5.0) is None
        with lane._lock:
            assert ns.put([b"b"], DATA) == [PutOutcome.STORED]


def test_a_lane_without_an_answer_is_given_up(daemon: StartDaemon, lanes: list[Lane]) -> None:
    """A call to a daemon that is stopped is TimedOut; an answer that comes later is nobody's, and puts go on."""
    server = daemon()
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        os.kill(server.pid, signal.SIGSTOP)
        try:
            with pytest.raises(TimedOut):
                lanes[0].ask("Lookup", LOOKUP, 0.05)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert lanes[0].ask("Lookup", LOOKUP, 5.0) is None
        assert ns.put([b"a"], DATA) == [PutOutcome.STORED]


def test_a_restart_brings_another_lane(daemon: StartDaemon, lanes: list[Lane]) -> None:
    """A client finds a new daemon again though its lane hung up in the middle, and calls it by a lane."""
    server = daemon()
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        ns.put([b"a"], DATA)
        server.restart()
        assert ns.put([b"b"], DATA) == [PutOutcome.STORED]
        assert list(lanes[-1].ask("Lookup", LOOKUP, 5.0).presence) == [blocks_pb2.PRESENCE_MISS]
        assert lanes[0] is not lanes[-1]
