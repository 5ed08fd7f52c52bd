"""Connecting, losing the daemon and finding it again; streams; what is retried and what is not."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from scripted_daemon import ScriptedDaemon
from twins import TWINS, client_of

from tierd_client import AcquireOutcome, Client, Layout, PutOutcome, chain_ids, errors
from tierd_client.connection import RETRY_PAUSE_S
from tierd_client.framing import MESSAGE_BYTES

SIZE = 300_000
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=4)
IDS = chain_ids(LAYOUT, range(80))
DATA = np.random.default_rng(1).integers(0, 256, (20, SIZE), np.uint8)


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    daemon = ScriptedDaemon(tmp_path / "s.sock")
    daemon.start()
    yield daemon
    daemon.stop()


@pytest.fixture(params=TWINS)
def twin(request: pytest.FixtureRequest) -> str:
    """Each test is one of both twins of the client."""
    return str(request.param)


@pytest.fixture
def client(daemon: ScriptedDaemon, twin: str) -> Iterator[Any]:
    with client_of(twin, daemon.target, connect_timeout_s=10.0, rpc_timeout_s=2.0) as client:
        yield client


def _abort(code: grpc.StatusCode, text: str = "scripted") -> Any:
    return lambda request, context: context.abort(code, text)


def _waits_for(event: threading.Event) -> Any:
    return lambda request, context: event.wait(10)


def _seconds(start: float) -> float:
    return time.monotonic() - start


@pytest.mark.parametrize("target", ["unix:///nowhere/tierd.sock", "localhost:1"])
def test_without_a_server_it_fails_within_the_connect_timeout(target: str, twin: str) -> None:
    """A client without a daemon raises a ConnectionError that names the target, in its connect timeout."""
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=target):
        client_of(twin, target, connect_timeout_s=0.3)
    assert _seconds(start) < 1.0


@pytest.mark.parametrize(
    "target", ["/run/t.sock", "unix://run/t.sock", "unix:", "http://localhost:9400", "localhost", "a:b", ""])
def test_a_target_that_can_lead_nowhere_is_refused_at_once(target: str, twin: str) -> None:
    """What is neither a Unix socket's URL nor host and port is an InvalidArgument that says so, at once."""
    start = time.monotonic()
    with pytest.raises(errors.InvalidArgument, match=r"target: .* is neither unix:///PATH nor HOST:PORT"):
        client_of(twin, target)
    assert _seconds(start) < 0.5


def test_why_a_socket_does_not_answer_is_said(tmp_path: Path, twin: str) -> None:
    """A socket that is not there, one that a dead daemon left, and one that somebody else has differ in words."""
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "left"))
    left.close()
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(str(tmp_path / "mute"))
        mute.listen()
        for name, why in (("none", "No such file"), ("left", "Connection refused"), ("mute", "something else")):
            with pytest.raises(errors.ConnectFailed, match=f"{name} in time: {why}"):
                client_of(twin, f"unix://{tmp_path}/{name}", connect_timeout_s=0.3)


def test_a_daemon_that_is_starting_is_waited_for(tmp_path: Path, twin: str) -> None:
    """UNAVAILABLE from a daemon that is starting is asked again within the connect timeout."""
    daemon = ScriptedDaemon(tmp_path / "s.sock")

    def starting(request: Any, context: Any) -> None:
        if daemon.calls["Session"] < 3:
            context.abort(grpc.StatusCode.UNAVAILABLE, "starting")

    daemon.hooks["Session"] = starting
    daemon.start()
    with client_of(twin, daemon.target):
        assert daemon.calls["Session"] == 3
    daemon.stop()


def test_a_refused_session_is_told_at_once(daemon: ScriptedDaemon, twin: str) -> None:
    """A daemon that refuses the protocol raises FailedPrecondition with its words, without waiting."""
    daemon.hooks["Session"] = _abort(grpc.StatusCode.FAILED_PRECONDITION, "protocol 1, mine is 9")
    with pytest.raises(errors.FailedPrecondition, match="mine is 9"):
        client_of(twin, daemon.target, connect_timeout_s=30)


def test_requiring_shared_memory_fails_where_there_is_none(daemon: ScriptedDaemon, twin: str) -> None:
    """shared_memory="require" raises where the daemon offers no attach socket; "auto" goes on by streams."""
    with pytest.raises(errors.SharedMemoryUnavailable):
        client_of(twin, daemon.target, shared_memory="require")
    with client_of(twin, daemon.target) as client:
        assert not client.maps_memory


def test_blocks_go_and_come_by_streams(daemon: ScriptedDaemon, client: Any) -> None:
    """Without shared memory put and get move the same bytes by streams, in messages of a bounded size."""
    ns = client.namespace(LAYOUT)
    assert ns.put(IDS, DATA) == [PutOutcome.STORED] * 20
    assert all(np.array_equal(got, sent) for got, sent in zip(ns.get(IDS), DATA, strict=True))
    assert max(daemon.chunk_sizes) <= MESSAGE_BYTES
    assert sum(daemon.chunk_sizes) == DATA.size
    assert daemon.calls["Put"] == daemon.calls["Get"] == 3  # 20 ids, at most 8 in a call


def test_a_block_larger_than_a_message_is_cut(daemon: ScriptedDaemon, client: Any) -> None:
    """A block of more than a message goes in several, all full but the last."""
    ns = client.namespace(Layout.opaque(block_bytes=5 * MESSAGE_BYTES // 2))
    data = bytes(range(256)) * (5 * MESSAGE_BYTES // 512)
    ns.put([b"big"], [data])
    assert daemon.chunk_sizes == [MESSAGE_BYTES, MESSAGE_BYTES, MESSAGE_BYTES // 2]
    assert ns.get([b"big"])[0].tobytes() == data


def test_a_lease_without_shared_memory_holds_copies(client: Any) -> None:
    """acquire gives read-only copies where nothing can be mapped, and None for what is a miss."""
    ns = client.namespace(LAYOUT)
    ns.put(IDS[:2], DATA[:2])
    with ns.acquire(IDS[:3]) as lease:
        assert lease.outcomes == [AcquireOutcome.LEASED, AcquireOutcome.LEASED, AcquireOutcome.MISS]
        first, second, third = lease.arrays()
        assert np.array_equal(first, DATA[0])
        assert np.array_equal(second, DATA[1])
        assert third is None
        assert not first.flags.writeable
    with pytest.raises(errors.FailedPrecondition, match="released"):
        lease.arrays()


def test_a_block_that_changed_on_the_way_is_not_given(daemon: ScriptedDaemon, client: Any) -> None:
    """Bytes from a stream that do not have their checksum are LOST, never handed out."""
    ns = client.namespace(LAYOUT)
    ns.put(IDS[:2], DATA[:2])
    daemon.corrupt_reads = True
    first, second = ns.get(IDS[:2])
    assert first is None
    assert np.array_equal(second, DATA[1])
    assert ns.get_into(IDS[:2], np.empty((2, SIZE), np.uint8)) == [AcquireOutcome.LOST, AcquireOutcome.LEASED]


@pytest.mark.parametrize("cut", [1, -1])
def test_a_stream_of_another_length_is_a_broken_peer(daemon: ScriptedDaemon, client: Any, cut: int) -> None:
    """A stream that ends inside a block, or goes on after the last, raises BrokenPeer."""
    ns = client.namespace(LAYOUT)
    ns.put(IDS[:1], DATA[:1])
    if cut > 0:
        daemon.cut_reads = cut
    else:
        daemon.blocks[IDS[0]] += b"x"
    with pytest.raises(errors.BrokenPeer, match=r"^Get: "):
        ns.get(IDS[:1])


def test_a_restart_is_survived(daemon: ScriptedDaemon, client: Any) -> None:
    """After a restart the next call works: a new session, the namespace and open sequences known to it, and
    the old session detached."""
    ns = client.namespace(LAYOUT)
    ns.put(IDS[:2], DATA[:2])
    with ns.sequence("r", IDS[:3]):
        boot = client.boot_id
        daemon.stop()
        daemon.start()
        assert ns.lookup(IDS[:3]).prefix == 2
        assert client.boot_id != boot
        assert daemon.calls["OpenSequence"] == 2
        assert daemon.calls["RegisterNamespace"] == 2
        assert daemon.detached == [1]
        lookup = daemon.requests[-1]
        assert lookup.blocks.namespace == 2
    assert daemon.calls["CloseSequence"] == 1


def test_a_call_cut_off_by_the_end_of_the_daemon_is_made_once_more(
    daemon: ScriptedDaemon, client: Any,
) -> None:
    """A lookup that the daemon dies under is answered by the next one, within the call's time."""
    ns = client.namespace(LAYOUT)
    reached = threading.Event()

    def hang(request: Any, context: Any) -> None:
        daemon.hooks.clear()
        reached.set()
        threading.Event().wait(5)

    daemon.hooks["Lookup"] = hang
    answers: list[int] = []
    caller = threading.Thread(target=lambda: answers.append(ns.lookup(IDS[:2]).prefix))
    caller.start()
    assert reached.wait(5)
    daemon.stop()
    daemon.start()
    caller.join(10)
    assert answers == [0]
    assert daemon.calls["Lookup"] == 2


def test_a_daemon_that_is_down_does_not_hold_calls_up(daemon: ScriptedDaemon, twin: str) -> None:
    """Once an attempt to reconnect has failed, calls fail without one for a while; then one finds it again."""
    with client_of(twin, daemon.target, connect_timeout_s=1.0, rpc_timeout_s=2.0) as client:
        ns = client.namespace(LAYOUT)
        daemon.stop()
        with pytest.raises(errors.ConnectFailed):
            ns.lookup(IDS)
        for _ in range(20):
            with pytest.raises(errors.ConnectFailed, match="tried less than"):
                ns.lookup(IDS)
        daemon.start()
        assert _until_answered(ns, RETRY_PAUSE_S + 2) == 0


def _until_answered(ns: Any, limit_s: float) -> int:
    """The prefix of the first lookup that is answered."""
    start = time.monotonic()
    while True:
        try:
            return int(ns.lookup(IDS).prefix)
        except errors.ConnectFailed:
            assert _seconds(start) < limit_s
            threading.Event().wait(0.02)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (grpc.StatusCode.UNAVAILABLE, errors.Unavailable),
        (grpc.StatusCode.NOT_FOUND, errors.NotFound),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, errors.LimitReached),
        (grpc.StatusCode.INTERNAL, errors.BrokenPeer),
    ],
)
def test_an_error_of_a_living_daemon_is_told_not_retried(
    daemon: ScriptedDaemon, client: Any, code: grpc.StatusCode, error: type[Exception],
) -> None:
    """While the session lives, a failed call raises its error once; no new session is opened for it."""
    ns = client.namespace(LAYOUT)
    daemon.hooks["Lookup"] = _abort(code, "said the daemon")
    with pytest.raises(error, match="said the daemon"):
        ns.lookup(IDS[:1])
    assert daemon.calls["Lookup"] == 1
    assert daemon.calls["Session"] == 1


def test_a_call_ends_at_its_deadline(daemon: ScriptedDaemon, twin: str) -> None:
    """A daemon that does not answer costs a call its deadline, and raises a TimeoutError."""
    released = threading.Event()
    daemon.hooks["Lookup"] = _waits_for(released)
    with client_of(twin, daemon.target, rpc_timeout_s=1.0) as client:
        ns = client.namespace(LAYOUT)
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            ns.lookup(IDS[:1])
        assert _seconds(start) < 5
        released.set()


def test_a_silent_connection_is_given_up(tmp_path: Path, twin: str) -> None:
    """A call that times out while signs of life are overdue loses the session; the next one opens another."""
    daemon = ScriptedDaemon(tmp_path / "s.sock", heartbeat_ms=1)
    daemon.start()
    released = threading.Event()
    with client_of(twin, daemon.target, rpc_timeout_s=1.0) as client:
        ns = client.namespace(LAYOUT)
        daemon.hooks["Lookup"] = _waits_for(released)
        with pytest.raises(TimeoutError):
            ns.lookup(IDS[:1])
        daemon.hooks.clear()
        released.set()
        assert ns.lookup(IDS[:1]).prefix == 0
        assert daemon.calls["Session"] == 2
    daemon.stop()


def test_a_lookup_in_several_calls_adds_up(client: Any) -> None:
    """The prefix of more ids than one call takes is that of the whole chain, not of its last part."""
    ns = client.namespace(LAYOUT)
    ns.put(IDS[:13], DATA[:13])
    found = ns.lookup(IDS)
    assert found.prefix == 13
    assert len(found.presence) == len(found.tiers) == 20
    ns.put(IDS[14:20], DATA[14:20])
    assert ns.lookup(IDS).prefix == 13
    assert ns.lookup(IDS[14:]).prefix == 6


def test_calls_inside_a_sequence_belong_to_it(daemon: ScriptedDaemon, client: Any) -> None:
    """In a `with` block, calls for its blocks and for what they go on with carry its name; for
    other blocks and after it they do not."""
    ns = client.namespace(LAYOUT)
    other = chain_ids(ns, range(1000, 1040))

    def name_of_get(ids: Any, **sequence: Any) -> str:
        ns.get(ids, **sequence)
        return str(daemon.requests[-1].sequence)

    with ns.sequence("outer", IDS[:5]) as outer, ns.sequence("inner", other):
        assert name_of_get(IDS[1:3]) == "outer"
        assert name_of_get(IDS[3:8]) == "outer"
        assert name_of_get(IDS[5:6]) == "outer"
        assert name_of_get(IDS[:5].take([4, 0])) == "outer"
        assert name_of_get(other[:1]) == "inner"
        assert name_of_get(IDS[6:7]) == ""
        assert name_of_get([b"plain"]) == ""
        assert name_of_get([b"plain"], sequence=outer) == "outer"
        assert name_of_get(IDS[:1], sequence="inner") == "inner"
    assert name_of_get(IDS[:1]) == ""


def test_a_sequence_is_of_its_thread(daemon: ScriptedDaemon) -> None:
    """What another thread asks for while a `with` block is open does not belong to it, nor what another client
    asks for."""
    with Client(daemon.target) as client, Client(daemon.target) as other:
        ns = client.namespace(LAYOUT)
        with ns.sequence("outer", IDS[:5]):
            thread = threading.Thread(target=lambda: ns.get(IDS[:1]))
            thread.start()
            thread.join(10)
            assert daemon.requests[-1].sequence == ""
            other.namespace(LAYOUT).get(IDS[:1])
            assert daemon.requests[-1].sequence == ""


def test_a_sequence_cannot_be_opened_twice(daemon: ScriptedDaemon, client: Any) -> None:
    """Opening a name that is open raises FailedPrecondition and leaves the first one open."""
    ns = client.namespace(LAYOUT)
    with ns.sequence("r", IDS[:1]):
        with pytest.raises(errors.FailedPrecondition, match="'r' is open"):
            ns.sequence("r", IDS[:2])
        assert daemon.calls["CloseSequence"] == 0
    assert daemon.calls["CloseSequence"] == 1
    with ns.sequence("r", IDS[:1]):
        pass


def test_a_late_report_goes_to_the_daemon_as_it_is(daemon: ScriptedDaemon, client: Any) -> None:
    """A report for a sequence that has just closed reaches the daemon; one for an unknown name is NotFound."""
    ns = client.namespace(LAYOUT)
    with ns.sequence("r", IDS[:2]):
        assert ns.observe("r", attention=[0.5, 0.5]) == 1
    assert ns.observe("r", attention=[0.5, 0.5], steps=3) == 2
    assert [daemon.calls[name] for name in ("OpenSequence", "Observe", "CloseSequence")] == [1, 2, 1]
    with pytest.raises(errors.NotFound, match="'other'"):
        ns.observe("other")


def test_a_prompt_shorter_than_a_block_needs_no_daemon(daemon: ScriptedDaemon, client: Any) -> None:
    """Every call for no blocks at all has an empty answer and asks nobody."""
    ns = client.namespace(LAYOUT)
    none = chain_ids(ns, [1, 2])
    before = sum(daemon.calls.values())
    with ns.sequence("r", none) as sequence:
        assert sequence.lookup().prefix == 0
        empty: list[list[Any]] = [ns.put(none, []), ns.get(none), ns.evict(none), ns.readmit(none)]
        assert empty == [[]] * 4
        assert ns.observe("r") == 0
        with ns.acquire(none) as lease:
            assert lease.arrays() == []
    assert sum(daemon.calls.values()) == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ns: ns.lookup(chain_ids(Layout.opaque(block_bytes=1), range(4))), "made for another layout"),
        (lambda ns: ns.lookup([b""]), r"^ids\[0\]: 0 bytes"),
        (lambda ns: ns.put(IDS[:1], DATA[:1], tier="disk"), "^tier: 'disk'"),
        (lambda ns: ns.put(IDS[:1], [b"short"]), r"^tensors\[0\]: 5 bytes, a block has 300000"),
        (lambda ns: ns.get_into(IDS[:1], [bytes(SIZE)]), r"^buffers\[0\]: read-only"),
        (lambda ns: ns.observe("r", attention=[[1.0]]), "^attention: 2 axes"),
        (lambda ns: ns.observe("r", steps=-1), "^steps: -1 is not from 1 to 1,000,000"),
        (lambda ns: ns.observe("r", steps=1.5), r"^steps: 1\.5 is no whole number"),
        (lambda ns: ns.observe("r", policy_epoch=2**64), "^policy_epoch: 1844"),
        (lambda ns: ns.sequence("x" * 257, IDS), "^name: 257 bytes"),
        (lambda ns: ns.sequence("\udcff", IDS), "^name: .* UTF-8"),
        (lambda ns: ns.lookup([1]), r"^ids\[0\]: int"),
        (lambda ns: ns.lookup(7), "^ids: "),
        (lambda ns: ns.lookup(np.zeros((1, 31), np.uint8)), "^ids: "),
    ],
)
def test_a_malformed_argument_is_named(client: Any, call: Any, message: str) -> None:
    """What cannot be meant raises a ValueError that names the argument, before the daemon is asked."""
    with pytest.raises(errors.InvalidArgument, match=message):
        call(client.namespace(LAYOUT))


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), -1.0, 1e9, "2", None, True])
def test_a_time_that_is_none_is_named(client: Any, seconds: Any) -> None:
    """No call waits for a time that is negative, endless or no number, or for more than 600 s."""
    ns = client.namespace(LAYOUT)
    calls = [
        lambda: ns.put(IDS[:1], DATA[:1], timeout_s=seconds), lambda: ns.get(IDS, timeout_s=seconds),
        lambda: ns.get_into(IDS[:1], [bytearray(SIZE)], timeout_s=seconds),
        lambda: ns.acquire(IDS, timeout_s=seconds), lambda: ns.evict(IDS, timeout_s=seconds),
        lambda: ns.readmit(IDS, timeout_s=seconds), lambda: ns.readmit(IDS, timeout_s=seconds, wait=False),
        lambda: client.admin.verify(IDS, timeout_s=seconds),
    ]
    for call in calls:
        with pytest.raises(errors.InvalidArgument, match=r"^timeout_s: "):
            call()
    for name in ("connect_timeout_s", "rpc_timeout_s"):
        with pytest.raises(errors.InvalidArgument, match=f"^{name}: "):
            Client("unix:///nowhere", **{name: seconds})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda admin: admin.plan(-1), "^needed_bytes: -1"),
        (lambda admin: admin.plan(1, limit=-1), "^limit: -1"),
        (lambda admin: list(admin.list_blocks(page_size=2**40)), "^page_size: "),
        (lambda admin: list(admin.list_blocks(namespace=-1)), "^namespace: -1"),
        (lambda admin: list(admin.list_blocks(prefix="00")), "^prefix: '00'"),
        (lambda admin: admin.clear(group=-1), "^group: -1"),
        (lambda admin: admin.describe([b"short"]), r"^ids\[0\]"),
        (lambda admin: admin.set_policy(None), "^policy: None"),
    ],
)
def test_a_malformed_argument_of_the_control_plane_is_named(client: Any, call: Any, message: str) -> None:
    """The same for the control plane, also where a number does not fit the wire."""
    with pytest.raises(errors.InvalidArgument, match=message):
        call(client.admin)


def test_dropping_needs_to_be_allowed(client: Any) -> None:
    """evict(to=None) without allow_drop raises before anything is dropped."""
    with pytest.raises(errors.FailedPrecondition, match="allow_drop"):
        client.namespace(LAYOUT).evict(IDS, to=None)


def test_a_closed_client_says_so(daemon: ScriptedDaemon, twin: str) -> None:
    """After close() every call raises ClientClosed; close() may be called again; the session is given up."""
    client = client_of(twin, daemon.target)
    ns = client.namespace(LAYOUT)
    client.close()
    client.close()
    assert daemon.detached == [1]
    with pytest.raises(errors.ClientClosed):
        ns.lookup(IDS)
