"""The spill server goes away under load, in each way in which servers go: costs hits, never blocks or time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from block_pattern import pattern
from spill_load import (
    BLOCK_BYTES,
    BUSY_S,
    LAYOUT,
    NOT_SERVING,
    SERVING,
    SLACK_S,
    TIMEOUT_S,
    assert_readable,
    await_health,
    name,
    put,
    put_and_spill,
    under_load,
)

from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, EvictOutcome, Presence, PutOutcome, Tiers
from tierd_client.namespace import Namespace

BACK_WITHIN_S = 2.0 + BUSY_S
NOTICED_WITHIN_S = 10.0
ROUNDS_IN_OUTAGE = 15
SPILLED = range(1_000_000, 1_000_060)
NEW = 2_000_000


@dataclass
class Outage:
    """A way to take the spill server away and to bring it back, and whether it then still knows its blocks."""

    url: str
    begin: Callable[[], None]
    end: Callable[[], None]
    forgets: bool = False


@pytest.fixture(params=["frozen", "killed", "black hole"])
def outage(request: pytest.FixtureRequest, valkey: ExternalValkey) -> Iterator[Outage]:
    if request.param == "frozen":
        yield Outage(valkey.unix_url, valkey.freeze, valkey.thaw)
    elif request.param == "killed":
        yield Outage(valkey.unix_url, valkey.stop, valkey.start, forgets=True)
    else:
        with RedisProxy(valkey.unix_url) as proxy:
            yield Outage(proxy.url, lambda: proxy.switch(Mode.BLACK_HOLE), lambda: proxy.switch(Mode.PASS))


def host_blocks(client: Client) -> set[bytes]:
    return {block.identity for block in client.admin.list_blocks(tier="host") if block.tiers & Tiers.HOST}


@pytest.mark.slow
def test_an_outage_costs_hits_and_nothing_else(daemon: StartDaemon, outage: Outage) -> None:
    """While the spill server is away health says so, each call ends in its time, no block leaves the host tier;
    a demotion that fails leaves the block where it is; and within two seconds of its return the server is used.
    What it forgot meanwhile is a miss."""
    server = daemon(
        spill=outage.url, host_bytes="4MiB", spill_bytes_max="1GiB", catalog_rows=1 << 16, spill_grace_s=300)
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, SPILLED)
        with under_load(server) as loads:
            for load in loads:
                load.progress(100)
            outage.begin()
            await_health(server, NOT_SERVING, NOTICED_WITHIN_S)
            held = host_blocks(client)
            for load in loads:
                load.progress(ROUNDS_IN_OUTAGE)
            assert_nothing_moves(client, ns, held)
            outage.end()
            came_back_at = time.monotonic()
            await_health(server, SERVING, BACK_WITHIN_S)
            assert_demotes(ns, came_back_at + BACK_WITHIN_S + SLACK_S)
            for load in loads:
                load.progress(50)
        assert_what_was_spilled(client, ns, outage)
        for load in loads:
            assert_readable(ns, load.stored, least=0 if outage.forgets else len(load.stored))


def test_a_start_during_an_outage_waits_for_nobody(daemon: StartDaemon, outage: Outage) -> None:
    """A daemon that is killed and restarted while the spill server is away is ready, serves what it holds and
    takes new blocks; what it had spilled it knows, and serves once the server is back, if that kept it."""
    server = daemon(spill=outage.url, host_bytes="4MiB", spill_bytes_max="256MiB")
    above, new = range(60), range(60, 80)
    with Client(server.address, connect_timeout_s=20.0) as client:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, SPILLED)
        put(ns, above)
        outage.begin()
        server.restart()
        assert await_health(server, NOT_SERVING, NOTICED_WITHIN_S) < NOTICED_WITHIN_S
        assert_readable(ns, list(above), least=len(above))
        put(ns, new)
        assert set(ns.lookup([name(number) for number in SPILLED]).presence) == {Presence.BELOW}
        outage.end()
        await_health(server, SERVING, BACK_WITHIN_S)
        assert_what_was_spilled(client, ns, outage)
        assert_readable(ns, [*above, *new], least=len(above) + len(new))


def assert_nothing_moves(client: Client, ns: Namespace, held: set[bytes]) -> None:
    """All that was in host is there still, demotions fail at once, and what only the server has is not now."""
    still = host_blocks(client)
    assert held <= still
    began = time.monotonic()
    some = sorted(held)[:20]
    packed = np.frombuffer(b"".join(some), np.uint8).reshape(-1, 32)
    outcomes = set(ns.evict(packed, to="spill", timeout_s=TIMEOUT_S))
    assert outcomes <= {EvictOutcome.FAILED, EvictOutcome.IN_USE, EvictOutcome.PENDING}, outcomes
    assert held <= host_blocks(client)
    assert all(block is not None for block in ns.get(packed, timeout_s=TIMEOUT_S))
    spilled = [name(number) for number in SPILLED]
    assert set(ns.lookup(spilled).presence) <= {Presence.BELOW, Presence.READY}
    assert set(map(type, ns.get(spilled[:5], timeout_s=TIMEOUT_S))) == {type(None)}
    assert time.monotonic() - began < 2 * TIMEOUT_S + 2 * SLACK_S
    verified = client.admin.verify(tier="host")
    assert verified.damaged == () and verified.verified_blocks >= len(held)


def assert_demotes(ns: Namespace, deadline: float) -> None:
    """A block that lies only in host can be moved to the server before the deadline."""
    (stored,) = ns.put([name(NEW)], [pattern(NEW, BLOCK_BYTES)], timeout_s=deadline - time.monotonic())
    assert stored is PutOutcome.STORED
    outcome = EvictOutcome.PENDING
    while outcome is not EvictOutcome.MOVED:
        (outcome,) = ns.evict([name(NEW)], to="spill", timeout_s=max(0.0, deadline - time.monotonic()))
        assert time.monotonic() < deadline, outcome


def assert_what_was_spilled(client: Client, ns: Namespace, outage: Outage) -> None:
    spilled = list(SPILLED)
    if not outage.forgets:
        assert_readable(ns, spilled, least=len(spilled))
        return
    assert set(ns.lookup([name(number) for number in spilled]).presence) == {Presence.MISS}
    assert set(map(type, ns.get([name(number) for number in spilled]))) == {type(None)}
    put_and_spill(ns, SPILLED)
    assert_readable(ns, spilled, least=len(spilled))
