"""What sentinels and clusters may answer, and what is made of it."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierd.adapters.redis_client import TURNS_MAX, Exchange, RedisClient
from tierd.adapters.redis_faults import FAILURES
from tierd.adapters.redis_route import NODES_MAX, Pools, host_and_port, redirection, slot_map
from tierd.adapters.redis_url import parse_redis_url
from tierd.adapters.resp import Deadline, ProtocolError, Reply, ReplyError, command
from tierd.adapters.spill_redis import server_notes
from tierd.core.errors import SpillDown

SLOTS = 16384
ASKED = ("10.0.0.9", 7000)


def new_pools() -> Pools:
    return Pools(parse_redis_url("redis://u:p@10.0.0.9:7000").server, 4, 1.0)


def node(host: bytes | None, port: int, *more: Reply) -> Reply:
    return [host, port, b"id", *more]


def places(reply: Reply) -> dict[int, str]:
    """Place of the first slot of each range that a reply to CLUSTER SLOTS gives."""
    pools = new_pools()
    slots, _ = slot_map(reply, pools.at(*ASKED), pools)
    return {slot: slots[slot].address.place for slot in (0, 5000, SLOTS - 1)}


def test_slots() -> None:
    """Ranges go to their primaries, whatever the order; replicas and what newer servers add are passed over."""
    reply: Reply = [
        [5000, SLOTS - 1, node(b"b.example", 7002, [b"hostname", b"x"]), node(b"10.0.0.3", 7003)],
        [0, 4999, node(b"10.0.0.1", 7001)],
    ]
    assert places(reply) == {0: "10.0.0.1:7001", 5000: "b.example:7002", SLOTS - 1: "b.example:7002"}


@pytest.mark.parametrize("host", [b"", b"?", None])
def test_node_that_does_not_know_its_name(host: bytes | None) -> None:
    """A node without a name is at the host that was asked, at the port that it gives."""
    assert places([[0, SLOTS - 1, node(host, 7005)]])[0] == "10.0.0.9:7005"


NOT_MAPS: list[Reply] = [
    None, 7, b"OK", [], [[]], [[0, SLOTS - 1]], [[0, SLOTS, node(b"a", 1)]], [[9, 3, node(b"a", 1)]],
    [[-1, 3, node(b"a", 1)]], [[0, SLOTS - 1, node(b"a", 0)]], [[0, SLOTS - 1, node(b"a", 1 << 16)]],
    [[0, SLOTS - 1, [b"a"]]], [[0, 100, node(b"a", 1)]], [[0, SLOTS - 1, b"a"]],
]


@pytest.mark.parametrize("reply", NOT_MAPS, ids=str)
def test_not_a_map(reply: Reply) -> None:
    """An answer that gives no server for each slot is refused as a whole."""
    with pytest.raises(FAILURES):
        places(reply)


def test_too_many_nodes() -> None:
    """More servers than a cluster can have are refused, not remembered."""
    pools = new_pools()
    for n in range(NODES_MAX):
        pools.at("10.0.0.1", n + 1)
    with pytest.raises(FAILURES):
        pools.at("10.0.0.2", 1)
    pools.keep([pools.at("10.0.0.1", 1)])
    pools.at("10.0.0.2", 1)


ANSWERS = st.recursive(
    st.none() | st.integers(-9, 1 << 17) | st.binary(max_size=8), lambda inner: st.lists(inner, max_size=5),
    max_leaves=30,
)


@given(ANSWERS)
def test_any_answer(reply: Reply) -> None:
    """Whatever a cluster or a sentinel answers is understood, or one of the failures that have a meaning."""
    pools = new_pools()
    with suppress(*FAILURES):
        slot_map(reply, pools.at(*ASKED), pools)
    with suppress(*FAILURES):
        host_and_port(reply)


@given(st.binary(max_size=40) | st.from_regex(rb"\A(MOVED|ASK) -?[0-9]{0,6} .{0,9}:[0-9]{0,6}\Z"))
def test_any_redirection(line: bytes) -> None:
    """Whatever an error says is a slot and a place that can be, or refused as what does not speak the protocol."""
    with suppress(ProtocolError):
        slot, _, port = redirection(ReplyError(line))
        assert 0 <= slot < SLOTS and 0 < port < 1 << 16


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (b"MOVED 3999 127.0.0.1:6381", (3999, "127.0.0.1", 6381)),
        (b"MOVED 0 :6381", (0, "", 6381)),
        (b"ASK 3999 ::1:6381", (3999, "::1", 6381)),
        (b"ASK 16383 a.example:1", (16383, "a.example", 1)),
    ],
)
def test_redirections(line: bytes, found: tuple[int, str, int]) -> None:
    """MOVED and ASK name slot, host and port; the host may be left out."""
    assert redirection(ReplyError(line)) == found


class Node(socketserver.BaseRequestHandler):
    """A cluster of one node that owns all slots, and answers each GET and UNLINK with the next of `lines`, the last
    of them for ever. `%d` in a line is its own port."""

    lines: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        port = self.server.server_address[1]
        slots = b"*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:%d\r\n" % port
        while said := self.request.recv(10_000):
            count = said.count(b"UNLINK") + said.count(b"GET")
            answers = b"".join(self.next_line().replace(b"%d", b"%d" % port) for _ in range(count))
            asking = b"+OK\r\n" * said.count(b"ASKING")
            told = b"+PONG\r\n" if b"PING" in said else slots if b"SLOTS" in said else asking + answers
            self.request.sendall(told)

    def next_line(self) -> bytes:
        return self.lines.pop(0) if len(self.lines) > 1 else self.lines[0]


@contextmanager
def cluster_of(*lines: bytes) -> Iterator[RedisClient]:
    handler = type("Scripted", (Node,), {"lines": list(lines)})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        client = RedisClient(f"redis+cluster://127.0.0.1:{server.server_address[1]}", 2, 5.0)
        yield client
        client.close()
        server.shutdown()


def get(client: RedisClient) -> Reply:
    deadline = Deadline(30.0)
    return client.exchange(Exchange(b"x", 0, [command(b"GET", b"x")], lambda wire: wire.reply(deadline)), deadline)


def unlink(client: RedisClient) -> Reply:
    (answer,) = client.batch([(b"UNLINK", b"x")], Deadline(30.0))
    assert not isinstance(answer, ReplyError)
    return answer


BOTH = pytest.mark.parametrize("call", [get, unlink])


@BOTH
@pytest.mark.parametrize("turns", range(TURNS_MAX))
def test_redirections_are_followed(call: Callable[[RedisClient], Reply], turns: int) -> None:
    """A command arrives in TURNS_MAX turns at most, whether by MOVED or by ASK."""
    sent_on = [b"-MOVED 5 127.0.0.1:%d\r\n", b"-ASK 5 :%d\r\n"] * TURNS_MAX
    with cluster_of(*sent_on[:turns], b":1\r\n") as client:
        assert call(client) == 1


@BOTH
@pytest.mark.parametrize("line", [b"-MOVED 5 127.0.0.1:%d\r\n", b"-ASK 5 127.0.0.1:%d\r\n"])
def test_sent_in_circles(call: Callable[[RedisClient], Reply], line: bytes) -> None:
    """Servers that send a command around for ever are given up after a few turns, long before the deadline."""
    with cluster_of(line) as client, pytest.raises(SpillDown, match="from server to server"):
        call(client)


@BOTH
@pytest.mark.parametrize("line", [b"-MOVED\r\n", b"-MOVED 99999 a:1\r\n", b"-ASK 5 a\r\n"])
def test_redirection_to_nowhere(call: Callable[[RedisClient], Reply], line: bytes) -> None:
    """A redirection that cannot be meant is SpillDown and quoted."""
    with cluster_of(line) as client, pytest.raises(SpillDown, match="protocol"):
        call(client)


INFO = {"redis_version": "7.2.4", "maxmemory": "1000", "maxmemory_policy": "noeviction"}


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({}, []),
        (INFO, []),
        (INFO | {"redis_version": "6.2.5"}, []),
        (INFO | {"redis_version": "6.0.16"}, ["6.0.16"]),
        (INFO | {"redis_version": "5.0.3", "valkey_version": "8.0.0"}, []),
        (INFO | {"maxmemory_policy": "allkeys-lru"}, ["evicts"]),
        (INFO | {"maxmemory": "0", "maxmemory_policy": "allkeys-lru"}, ["no maxmemory"]),
        (INFO | {"redis_version": "5.0.3", "maxmemory_policy": "volatile-ttl"}, ["5.0.3", "volatile-ttl"]),
    ],
)
def test_notes_about_a_server(info: dict[str, str], words: list[str]) -> None:
    """A server that is too old, evicts by itself or has no limit is named so, and others are not."""
    notes = server_notes(info)
    assert len(notes) == len(words)
    assert all(word in note for word, note in zip(words, notes, strict=True))
