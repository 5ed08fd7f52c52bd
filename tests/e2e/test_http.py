"""Metrics and probes of a real daemon, whose Valkey is frozen, whose port is taken, whose host tier is full."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import numpy as np

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, Layout

SEEN_WITHIN_S = 2.0 + 2.0
"""The promise, and what a busy machine may be late by."""
BLOCK_BYTES = 1 << 20
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES)


def fetch(daemon: ServeProcess, path: str) -> tuple[int, str]:
    """Status and body of a GET."""
    url = daemon.event("http")["address"] + path
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def readyz(daemon: ServeProcess, path: str = "/readyz") -> tuple[int, Any]:
    status, body = fetch(daemon, path)
    return status, json.loads(body)


def within(seconds: float, condition: Callable[[], bool]) -> None:
    """Asks again and again, as a probe does; fails when the time is over."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        threading.Event().wait(0.05)


def test_frozen_spill_server(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """A Valkey that stops answering is told within two seconds: the daemon is degraded, spill is named and
    unavailable; it is ready again once Valkey goes on."""
    one = daemon(spill=valkey.unix_url)
    within(10, lambda: readyz(one)[1]["status"] == "ready")
    valkey.freeze()
    try:
        within(SEEN_WITHIN_S, lambda: readyz(one)[1]["failed"] == ["spill"])
        status, told = readyz(one)
        assert (status, told["status"]) == (200, "degraded")
        assert readyz(one, "/readyz/spill")[0] == 503
        assert fetch(one, "/healthz")[0] == 200
        within(10, lambda: 'tierd_tier_serving{tier="spill"} 0.0' in fetch(one, "/metrics")[1])
    finally:
        valkey.thaw()
    within(10, lambda: readyz(one)[1]["status"] == "ready")


def test_full_host_tier(daemon: StartDaemon) -> None:
    """A host tier full of leased blocks cannot take a put: 503 within two seconds, naming it; ready after the
    release."""
    one = daemon(host_bytes="8MiB")
    assert readyz(one)[0] == 200
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        names = [b"%d" % number for number in range(8)]
        ns.put(names, [np.zeros(BLOCK_BYTES, np.uint8)] * 8)
        with ns.acquire(names):
            within(SEEN_WITHIN_S, lambda: readyz(one)[0] == 503)
            assert readyz(one)[1]["failed"] == ["host"]
        within(SEEN_WITHIN_S, lambda: readyz(one)[0] == 200)


def test_silent_connections_end(daemon: StartDaemon) -> None:
    """Connections that ask nothing are closed after two seconds, so that they keep nobody out for long."""
    one = daemon()
    host, port = one.event("http")["address"].removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port)), timeout=5) for _ in range(70)]
    try:
        within(5, lambda: fetch(one, "/healthz")[0] == 200)
        assert all(connection.recv(100) == b"" for connection in silent)
    finally:
        for connection in silent:
            connection.close()


def test_ports(daemon: StartDaemon) -> None:
    """A port that was asked for and is taken keeps the daemon from starting, naming the setting; `off` listens on
    nothing; by default each of several daemons has a port."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = daemon(start=False, http_address=f"127.0.0.1:{port}").start(wait=False)
        assert refused.wait() == 1 and "http_address" in refused.log
    first, second, off = daemon(http_address=""), daemon(http_address=""), daemon(http_address="off")
    assert first.event("http")["address"] != second.event("http")["address"]
    assert {fetch(one, "/healthz")[0] for one in (first, second)} == {200}
    assert "http" not in [json.loads(line)["event"] for line in off.lines]
