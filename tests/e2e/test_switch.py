"""Switches of weights with a real daemon: nobody reads the old ones' blocks, and they go, whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tierd_client import Client, Layout, PutOutcome, errors
from tierd_client.deadline import Deadline

SIZE = 16 << 10
BLOCKS = 64
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=16, model="rl")
CONNECT_S = 20.0


def until(condition: Callable[[], bool]) -> None:
    """Asks the daemon again and again, within a deadline."""
    wait = Deadline(20.0)
    while not condition():
        assert not wait.passed()


def blocks_of(client: Client, epoch: int) -> int:
    return sum(1 for _ in client.admin.list_blocks(weights_epoch=epoch))


def data_of(epoch: int) -> Any:
    return np.random.default_rng(epoch).integers(0, 256, (BLOCKS, SIZE), np.uint8)


def test_a_trainer_switches_the_weights(daemon: Any) -> None:
    """The same prompt under the new weights is a miss, then has the new bytes; the old blocks go by themselves; a
    worker that did not hear of it is told the field when it registers."""
    server = daemon(host_bytes="16MiB", spill="none")
    with Client(server.address) as client:
        old = client.namespace(LAYOUT, "policy")
        tokens = np.arange(16 * BLOCKS)
        assert set(old.put(old.chains(tokens)[0], data_of(0))) == {PutOutcome.STORED}
        with old.acquire(old.chains(tokens)[0][:3]) as straggling:
            switched = client.admin.switch_epoch("policy", 1)
            assert (switched.weights_epoch_before, client.admin.switch_epoch("policy", 1).namespace) == (
                0, switched.namespace)
            new = client.namespace(LAYOUT.replace(weights_epoch=1), "policy")
            ids = new.chains(tokens)[0]
            assert new.lookup(ids).prefix == 0 and new.get(ids) == [None] * BLOCKS
            assert set(new.put(ids, data_of(1))) == {PutOutcome.STORED}
            until(lambda: blocks_of(client, 0) == 3)
            assert [one.tobytes() for one in straggling.arrays()] == [one.tobytes() for one in data_of(0)[:3]]
        until(lambda: blocks_of(client, 0) == 0)
        assert [one.tobytes() for one in new.get(ids)] == [one.tobytes() for one in data_of(1)]
        with pytest.raises(errors.FailedPrecondition, match="weights_epoch"):
            client.namespace(LAYOUT, "policy")


def test_a_kill_between_switch_and_sweep(daemon: Any) -> None:
    """A switch that was answered holds after kill -9: the next daemon sweeps what the last one left, also
    what was in use then, and gives the number to somebody else only after that."""
    server = daemon(host_bytes="16MiB", spill="none")
    with Client(server.address, connect_timeout_s=CONNECT_S) as client:
        old = client.namespace(LAYOUT, "policy")
        tokens = np.arange(16 * BLOCKS)
        old.put(old.chains(tokens)[0], data_of(0))
        lease = old.acquire(old.chains(tokens)[0])
        switched = client.admin.switch_epoch("policy", 1)
        server.kill()
        server.start()
        new = client.namespace(LAYOUT.replace(weights_epoch=1), "policy")
        ids = new.chains(tokens)[0]
        assert new.lookup(ids).prefix == 0
        assert set(new.put(ids, data_of(1))) == {PutOutcome.STORED}
        assert blocks_of(client, 0) == BLOCKS
        assert {one.namespace for one in client.admin.namespaces()} == {
            switched.namespace_before, switched.namespace}
        lease.release()
        until(lambda: blocks_of(client, 0) == 0)
        server.kill()
        server.start()
        assert [one.names for one in client.admin.namespaces()] == [("policy",)]
        assert [one.tobytes() for one in new.get(ids)] == [one.tobytes() for one in data_of(1)]
        assert client.admin.switch_epoch("policy", 2).namespace_before == switched.namespace
