"""Groups of Valkey servers that fail over, for tests: a cluster, and a primary and its replica under sentinels.

They notice a lost primary within a second and put its replica in its place about two seconds after the loss.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from tierd.adapters.resp import Deadline, ReplyError
from tierd.testing.valkey import ExternalValkey, SentinelProcess, free_port

FORM_TIMEOUT_S = 30.0
NODE_TIMEOUT_MS = 500
"""Silence of a server after which the others think it lost."""
SLOTS = 16384
MASTER = "kv"
_POLL_S = 0.02
_REPLICATION = {
    "repl_diskless_sync_delay": "0", "repl_ping_replica_period": "1",
    "client_output_buffer_limit": "replica 0 0 0",
}
"""A replica follows at once, and is not cut off for what is written while it copies its primary."""


class _Group:
    """Servers that start together and end together."""

    def __init__(self) -> None:
        self._held = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as starting:
            starting.push(self._held)
            self._start()
            starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.close()

    def _start(self) -> None:
        raise NotImplementedError


class ValkeyCluster(_Group):
    """Three primaries that share the hash slots, and a replica of the first."""

    def __init__(self, directory: Path, **options: str) -> None:
        super().__init__()
        settings = _REPLICATION | {
            "cluster_enabled": "yes", "cluster_node_timeout": str(NODE_TIMEOUT_MS),
            "cluster_replica_validity_factor": "0",
        } | options
        self.nodes = [_server(directory / f"node{n}", cluster_port=str(free_port()), **settings)
                      for n in range(4)]

    @property
    def url(self) -> str:
        return f"redis+cluster://{','.join(f'127.0.0.1:{node.port}' for node in self.nodes)}"

    def primaries(self) -> list[ExternalValkey]:
        """Nodes that own slots, in the order of these."""
        return sorted((node for node in self.nodes if _slots_of(node)), key=lambda node: _slots_of(node)[0])

    def flush(self) -> None:
        for node in self.primaries():
            node.run(b"FLUSHALL")

    def run(self, *words: bytes) -> object:
        """Runs a command on the node that takes it."""
        for node in self.nodes:
            with contextlib.suppress(ReplyError):
                return node.run(*words)
        raise AssertionError(f"no node takes {words[0]!r}")

    def takes_over(self, heir: ExternalValkey) -> bool:
        """Whether it is a primary now."""
        return bool(_slots_of(heir))

    def bring_back(self, lost: ExternalValkey) -> None:
        """A node that was stopped or frozen becomes a replica by itself."""
        lost.come_back()

    def wait_whole(self) -> None:
        """Until every node knows all, every slot has a primary, and the replica follows its own."""
        deadline = Deadline(FORM_TIMEOUT_S)
        for node in self.nodes:
            await_true(lambda node=node: _is_whole(node, len(self.nodes)), deadline)  # type: ignore[misc]

    def _start(self) -> None:
        for node in self.nodes:
            self._held.enter_context(node)
        first, *others = self.nodes
        for n, node in enumerate(self.nodes):
            node.run(b"CLUSTER", b"SET-CONFIG-EPOCH", b"%d" % (n + 1))
        for node in others:
            bus = node.options["cluster_port"].encode()
            first.run(b"CLUSTER", b"MEET", b"127.0.0.1", b"%d" % node.port, bus)
        for n, node in enumerate(self.nodes[:3]):
            node.run(b"CLUSTER", b"ADDSLOTSRANGE", b"%d" % (n * SLOTS // 3), b"%d" % ((n + 1) * SLOTS // 3 - 1))
        deadline = Deadline(FORM_TIMEOUT_S)
        for node in self.nodes:
            await_true(lambda node=node: _knows(node) == len(self.nodes), deadline)  # type: ignore[misc]
        name = first.run(b"CLUSTER", b"MYID")
        assert isinstance(name, bytes)
        self.nodes[3].run(b"CLUSTER", b"REPLICATE", name)
        self.wait_whole()


class SentinelGroup(_Group):
    """A primary, a replica, and three sentinels that know the primary as `kv`."""

    def __init__(self, directory: Path, **options: str) -> None:
        super().__init__()
        self.servers = [_server(directory / f"server{n}", **_REPLICATION, **options) for n in range(2)]
        self.sentinels = [SentinelProcess(directory / f"sentinel{n}", MASTER, NODE_TIMEOUT_MS) for n in range(3)]

    @property
    def url(self) -> str:
        return f"redis+sentinel://{','.join(f'127.0.0.1:{one.port}' for one in self.sentinels)}/{MASTER}"

    def flush(self) -> None:
        self.primary().run(b"FLUSHALL")

    def primary(self) -> ExternalValkey:
        """The server that takes writes."""
        return next(server for server in self.servers if server.alive and _info(server)["role"] == "master")

    def takes_over(self, heir: ExternalValkey) -> bool:
        """Whether all sentinels hold it for the primary, and think no fail-over under way."""
        about = [one.about() for one in self.sentinels]
        return all((one[b"port"], one[b"flags"]) == (b"%d" % heir.port, b"master") for one in about)

    def bring_back(self, lost: ExternalValkey) -> None:
        """A server that was stopped or frozen becomes a replica. The sentinels would see to that in some 15 s; on a
        busy machine they may make it the primary again meanwhile, and are not contradicted."""
        lost.come_back()
        primary = self.sentinels[0].about()[b"port"]
        if primary != b"%d" % lost.port:
            lost.run(b"REPLICAOF", b"127.0.0.1", primary)

    def wait_whole(self) -> None:
        """Until the replica follows, and each sentinel knows it and the other sentinels."""
        deadline = Deadline(FORM_TIMEOUT_S)
        await_true(lambda: any(_info(one).get("master_link_status") == "up" for one in self.servers), deadline)
        await_true(lambda: self.takes_over(self.primary()), deadline)
        for one in self.sentinels:
            await_true(lambda one=one: _peers(one) == (b"1", b"2"), deadline)  # type: ignore[misc]

    def _start(self) -> None:
        for server in self.servers:
            self._held.enter_context(server)
        first, second = self.servers
        second.run(b"REPLICAOF", b"127.0.0.1", b"%d" % first.port)
        for one in self.sentinels:
            one.watch(first.port)
            self._held.enter_context(one)
        self.wait_whole()


def await_true(condition: Callable[[], bool], deadline: Deadline) -> None:
    """Asks again and again; TimeoutError at the deadline. A server that does not answer makes it false."""
    while True:
        with contextlib.suppress(OSError):
            if condition():
                return
        time.sleep(min(_POLL_S, deadline.left_s()))


def _server(directory: Path, **options: str) -> ExternalValkey:
    directory.mkdir(parents=True, exist_ok=True)
    return ExternalValkey(directory, **options)


def _info(server: ExternalValkey, *words: bytes) -> dict[str, str]:
    text = server.run(*(words or (b"INFO", b"replication")))
    assert isinstance(text, bytes)
    return dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)


def _peers(sentinel: SentinelProcess) -> tuple[bytes, bytes]:
    """How many replicas and other sentinels it knows."""
    about = sentinel.about()
    return about[b"num-slaves"], about[b"num-other-sentinels"]


def _knows(node: ExternalValkey) -> int:
    return int(_info(node, b"CLUSTER", b"INFO")["cluster_known_nodes"])


def _is_whole(node: ExternalValkey, nodes: int) -> bool:
    state = _info(node, b"CLUSTER", b"INFO")
    follows = _info(node).get("master_link_status", "up") == "up"
    return state["cluster_state"] == "ok" and int(state["cluster_known_nodes"]) == nodes and follows


def _slots_of(node: ExternalValkey) -> list[int]:
    """First slots of the ranges that the node owns by its own account."""
    if not node.alive:
        return []
    text = node.run(b"CLUSTER", b"NODES")
    assert isinstance(text, bytes)
    own = next(line.split() for line in text.decode().splitlines() if "myself" in line)
    return sorted(int(word.split("-")[0]) for word in own[8:] if word[0].isdigit()) if "master" in own[2] else []
