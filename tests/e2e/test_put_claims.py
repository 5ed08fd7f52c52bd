"""Puts of which the daemon hears before they are written: what may happen until they are committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from stock_holder import LAYOUT, SIZE
from test_put_ahead import nothing_held, until
from worker_process import WorkerProcess

from tierd.testing.serve import StartDaemon
from tierd_client import Client, Presence, PutOutcome, Tier, granting, storing

IDS = [b"%d" % number for number in range(4)]
DATA = np.random.default_rng(3).integers(0, 256, (4, SIZE), np.uint8)
STORED = [PutOutcome.STORED] * 4


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Every put that can is told of early; what is given is done once, between what is written and its Commit."""
    monkeypatch.setattr(storing, "CLAIM_BYTES", 1)
    commit, due = granting.commit, list[Callable[[], None]]()

    async def interrupted(*call: Any) -> list[int]:
        while due:
            due.pop()()
        return await commit(*call)

    monkeypatch.setattr(granting, "commit", interrupted)
    return due.append


def warmed(client: Client) -> Any:
    """A namespace that has slots ahead."""
    ns = client.namespace(LAYOUT)
    assert ns.put([b"w%d" % number for number in range(8)], np.zeros((8, SIZE), np.uint8)) == STORED * 2
    return ns


def whole(client: Client) -> None:
    """What was put is there with its bytes."""
    for block, sent in zip(client.namespace(LAYOUT).get(IDS), DATA, strict=True):
        assert np.array_equal(block, sent)


def test_a_put_is_told_of_first_and_committed_last(
    daemon: StartDaemon, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    """Until the Commit others see nothing and may not write; then all is there, and slots for the next put are."""
    with Client((server := daemon(host_bytes="16MiB")).address) as client, Client(server.address) as other:
        ns, theirs = warmed(client), other.namespace(LAYOUT)
        seen: list[Any] = []

        def look() -> None:
            seen.append([int(one) for one in theirs.lookup(IDS).presence])
            seen.append(theirs.put(IDS, np.zeros_like(DATA)))

        meanwhile(look)
        assert ns.put(IDS, DATA) == STORED
        assert seen == [[int(Presence.MISS)] * 4, [PutOutcome.BUSY] * 4]
        assert theirs.put(IDS, np.zeros_like(DATA)) == [PutOutcome.EXISTS] * 4
        whole(other)
        tier = client.admin.occupancy().tiers[Tier.HOST]
        assert tier.stocked_bytes == tier.reserved_bytes >= 4 * SIZE


def test_what_is_there_twice_or_too_much_is_not_claimed(
    daemon: StartDaemon, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    """EXISTS and DUPLICATE keep their bytes, what fits is stored, the rest is FULL."""
    del meanwhile
    with Client(daemon(host_bytes="2MiB", stock_share=0.5, segment_bytes="2MiB").address) as client:
        ns = client.namespace(LAYOUT)
        data = np.random.default_rng(2).integers(0, 256, (40, SIZE), np.uint8)
        ids = [b"%d" % number for number in range(39)]
        ns.put(ids[:4], data[:4])
        outcomes = ns.put([*ids[:8], ids[7], *ids[8:]], data)
        assert outcomes == (
            [PutOutcome.EXISTS] * 4 + [PutOutcome.STORED] * 4 + [PutOutcome.DUPLICATE] + [PutOutcome.STORED] * 24
            + [PutOutcome.FULL] * 7)
        for block, sent in zip(ns.get(ids[:32]), np.delete(data, 8, 0), strict=False):
            assert np.array_equal(block, sent)


def test_a_client_that_dies_before_its_commit_leaves_nothing(daemon: StartDaemon) -> None:
    """After kill -9 between the writing and the Commit all is free, and another client stores the blocks."""
    server = daemon(host_bytes="16MiB")
    worker = WorkerProcess("stock_holder.py", server.address)
    try:
        worker.ask("put")
        worker.ask("half")
    finally:
        worker.kill()
    with Client(server.address) as client:
        until(client, nothing_held)
        ids = [f"1-{place}".encode() for place in range(4)]
        assert client.namespace(LAYOUT).put(ids, DATA) == STORED


def test_a_daemon_that_dies_before_the_commit_stores_what_is_put_again(
    daemon: StartDaemon, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    """The put goes on with the next daemon, and nothing half-written is found there; old slots go back."""
    server = daemon(host_bytes="16MiB")
    with Client(server.address, connect_timeout_s=30.0) as client:
        ns = warmed(client)

        def restart() -> None:
            server.restart()
            with Client(server.address) as other:
                assert all(block is None for block in other.namespace(LAYOUT).get(IDS))

        meanwhile(restart)
        assert ns.put(IDS, DATA, timeout_s=30.0) == STORED
        whole(client)
        until(client, lambda tier: tier.quarantined_bytes == 0 and tier.reserved_bytes == tier.stocked_bytes)


def test_a_put_that_fails_before_its_commit_gives_its_slots_back(
    daemon: StartDaemon, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    """Whatever is raised while blocks are written, they are free, and can be put again."""
    with Client(daemon(host_bytes="16MiB").address) as client:
        ns = warmed(client)

        def fail() -> None:
            raise KeyboardInterrupt

        meanwhile(fail)
        with pytest.raises(KeyboardInterrupt):
            ns.put(IDS, DATA)
        tier = client.admin.occupancy().tiers[Tier.HOST]
        assert tier.reserved_bytes == tier.stocked_bytes
        assert ns.put(IDS, DATA) == STORED
        whole(client)


def test_an_evict_before_the_commit_changes_nothing(
    daemon: StartDaemon, meanwhile: Callable[[Callable[[], None]], None]
) -> None:
    """Blocks that are evicted while they are written are committed all the same, with their bytes."""
    with Client((server := daemon(host_bytes="16MiB")).address) as client, Client(server.address) as other:
        ns = warmed(client)
        evict = other.namespace(LAYOUT).evict
        meanwhile(lambda: [evict(IDS, to=None, allow_drop=True, timeout_s=0.0)].clear())
        assert ns.put(IDS, DATA) == STORED
        whole(other)
