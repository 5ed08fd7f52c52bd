"""What all integrations share, against a real daemon: it is found, searched and loaded from without a wait."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import (
    AccessDenied,
    BrokenPeer,
    Client,
    EvictOutcome,
    FailedPrecondition,
    InvalidArgument,
    Layout,
    LeasedReader,
    NextUse,
    PagedKV,
    Places,
    Priority,
    SharedMemoryUnavailable,
    Tier,
    TierdClientError,
    TimedOut,
    Unavailable,
)
from tierd_client.integrations import prompts, transfers
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import PROMOTIONS, Link, advice
from tierd_client.integrations.options import Options
from tierd_client.integrations.prompts import Answer, Prompt
from tierd_client.integrations.rates import KEPT, TRIED_AGAIN, Rates, Way
from tierd_client.integrations.reports import report
from tierd_client.integrations.request_hints import Hints
from tierd_client.integrations.search import Patience
from tierd_client.integrations.transfers import Transfers
from tierd_client.integrations.weights import SAMPLE_BYTES, weights_digest
from tierd_client.layout import Group, Part

BLOCKS, LAYERS, PAGE_BYTES = 6, 3, 512
LAYOUTS = [
    Layout.of_groups(
        [Group("0", 16, (Part("pages", "uint8", (LAYERS, PAGE_BYTES)),))], model="m", tp_rank=rank, tp_size=2)
    for rank in range(2)
]
PAUSE = threading.Event()
KEYS = [b"key %d" % number for number in range(BLOCKS)]
BYTES = np.random.default_rng(0).integers(0, 256, (BLOCKS, LAYERS * PAGE_BYTES), np.uint8)


@pytest.fixture
def server(daemon: StartDaemon) -> ServeProcess:
    return daemon(host_bytes="8MiB")


@pytest.fixture
def link(server: ServeProcess) -> Iterator[Link]:
    link = Link(Options(address=server.address, answer_ms=2_000), "engine", LAYOUTS)
    assert link.wait_up(10.0)
    yield link
    link.close()


def prompt_of(
    link: Link, keys: list[bytes], rates: Rates | None = None, wait_s: float = 0.0, layouts: int = 2,
) -> Prompt:
    prompt = Prompt(link, LAYOUTS[:layouts], 1, rates or Rates(), Patience(wait_s))
    prompt.extend((0, key) for key in keys)
    return prompt


def store(link: Link, keys: list[bytes], ranks: int = 2) -> None:
    for layout in LAYOUTS[:ranks]:
        ids = Run(tuple(KEYS)).identities(layout)
        for key in keys:
            number = KEYS.index(key)
            link.namespace(layout).put(ids[number : number + 1], BYTES[number : number + 1])


def settled(ask: Callable[[], Answer]) -> Answer:
    """The answer that follows PENDING."""
    until = time.monotonic() + 10.0
    while (answer := ask()) is Answer.PENDING and time.monotonic() < until:
        PAUSE.wait(0.001)
    return answer


def answers(prompt: Prompt) -> list[Answer]:
    settled(lambda: prompt.answer(KEYS[0]))
    return [prompt.answer(key) for key in KEYS]


def leases(server: ServeProcess) -> int:
    with Client(server.address) as client:
        return client.admin.occupancy().tiers[Tier.HOST].leased_blocks


def test_only_what_is_leased_on_all_ranks_can_be_loaded(server: ServeProcess, link: Link) -> None:
    """Blocks count up to the first that any rank lacks; they are leased from the answer until they are released,
    and their bytes are there for a worker."""
    store(link, [*KEYS[:4], KEYS[5]])
    store(link, [KEYS[4]], ranks=1)
    prompt = prompt_of(link, KEYS)
    assert prompt.answer(KEYS[0]) is Answer.PENDING
    assert answers(prompt) == [Answer.LEASED] * 4 + [Answer.MISS] * 2
    pages = np.zeros((LAYERS, 8, PAGE_BYTES), np.uint8)
    worker = Transfers(link, [PagedKV(LAYOUTS[1], pages)])
    ((group, places),) = prompt.load(KEYS[1:4])[1]
    worker.load(7, [(group, places, np.array([5, 2, 3]))])
    worker.wait({7})
    assert [(one.job, one.bytes, one.error) for one in worker.finished()] == [(7, 3 * BYTES.shape[1], "")]
    assert np.array_equal(pages[:, [5, 2, 3]].swapaxes(0, 1).reshape(3, -1), BYTES[1:4])
    assert leases(server) == 2 * 4
    prompt.release()
    settled(lambda: Answer.PENDING if leases(server) else Answer.MISS)
    assert not leases(server)
    worker.close()


def test_a_question_is_answered_at_once_where_the_daemon_does_so(server: ServeProcess, link: Link) -> None:
    """The first question waits for the search that it begins, for as long as a step may; a daemon that takes longer
    is asked again."""
    store(link, KEYS)
    assert prompt_of(link, KEYS, wait_s=10.0).answer(KEYS[0]) is Answer.LEASED
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert prompt_of(link, [b"unknown"], wait_s=0.01).answer(b"unknown") is Answer.PENDING
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_what_a_worker_stores_another_engine_finds(link: Link) -> None:
    """Blocks stored out of pages are not offered again, and another request finds them at once."""
    pages = np.zeros((LAYERS, 8, PAGE_BYTES), np.uint8)
    order = np.array([6, 1, 4, 3, 0, 2])
    pages[:, order] = BYTES.reshape(BLOCKS, LAYERS, PAGE_BYTES).swapaxes(0, 1)
    prompt = prompt_of(link, KEYS)
    (run,) = prompt.missing(KEYS, set())
    assert [one.keys for one in prompt.missing(KEYS, {KEYS[2]})] == [tuple(KEYS[:2]), tuple(KEYS[3:])]
    for layout in LAYOUTS:
        worker = Transfers(link, [PagedKV(layout, pages)])
        worker.store(1, layout, [(run, order)], Priority.HIGH)
        worker.wait({1})
        worker.close()
    assert not prompt.missing(KEYS, set())
    assert answers(prompt_of(link, KEYS)) == [Answer.LEASED] * BLOCKS


def test_a_search_goes_back_when_an_earlier_block_is_asked_for(link: Link) -> None:
    """An engine that has lost the start of a prompt from its own cache is answered from there on."""
    store(link, KEYS)
    prompt = prompt_of(link, KEYS)
    assert settled(lambda: prompt.answer(KEYS[3])) is Answer.LEASED
    assert settled(lambda: prompt.answer(KEYS[1])) is Answer.LEASED
    assert prompt.answer(b"of another request") is Answer.MISS
    prompt.release()


def test_an_engine_without_a_daemon_computes(
    daemon: StartDaemon, caplog: pytest.LogCaptureFixture,
) -> None:
    """Before the daemon runs, and after it was killed, every block is a MISS at once and nothing is to be stored;
    one line says so and what to do; afterwards blocks are found again."""
    server = daemon(host_bytes="8MiB", start=False)
    link = Link(Options(address=server.address, answer_ms=5_000), "engine", LAYOUTS)
    with caplog.at_level(logging.WARNING, "tierd"):
        prompt = prompt_of(link, KEYS)
        assert prompt.answer(KEYS[0]) is Answer.MISS and not prompt.missing(KEYS, set())
        server.start()
        assert link.wait_up(10.0)
        store(link, KEYS)
        server.kill()
        assert settled(lambda: prompt.answer(KEYS[0])) is Answer.MISS
        server.start()
        assert link.wait_up(10.0)
        assert answers(prompt_of(link, KEYS)) == [Answer.LEASED] * BLOCKS
    lines = [one for one in caplog.messages if "is away" in one]
    assert len(lines) == 1 and "tierd serve" in lines[0] and server.address in lines[0]
    link.close()


def test_a_daemon_that_hangs_costs_one_wait(server: ServeProcess, caplog: pytest.LogCaptureFixture) -> None:
    """A request whose search is not answered in time is computed, the next ones do not wait at all, and a daemon
    that answers again is used again."""
    link = Link(Options(address=server.address, answer_ms=50), "engine", LAYOUTS)
    assert link.wait_up(10.0)
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert settled(lambda: prompt_of(link, KEYS[:1]).answer(KEYS[0])) is Answer.PENDING or not link.is_up
        prompt = prompt_of(link, KEYS)
        assert settled(lambda: prompt.answer(KEYS[0])) is Answer.MISS
        assert not link.is_up and prompt_of(link, KEYS).answer(KEYS[0]) is Answer.MISS
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert link.wait_up(10.0)
    link.close()


def test_what_a_request_says_reaches_the_daemon(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    """A time to live pins the request's blocks; hints that mean nothing are left out with a line in the log."""
    store(link, KEYS)
    assert Hints.of({"other": 1}) == Hints.of(None) == Hints()
    assert Hints.of({"tierd": {"priority": "urgent"}}) == Hints()
    assert Hints.of({"tierd": {"ttl": 3}}) == Hints()
    assert caplog.text.count("a request's hints are ignored") == 2
    hints = Hints.of({"tierd": {"priority": "high", "ttl_s": 60, "next_use": "tool_call", "expected_s": 2}})
    report(link, LAYOUTS, "request", prompt_of(link, KEYS), hints)
    namespace, ids = link.namespace(LAYOUTS[1]), Run(tuple(KEYS)).identities(LAYOUTS[1])
    until = time.monotonic() + 10.0
    while not (ended := namespace.unpin(ids)) and time.monotonic() < until:
        PAUSE.wait(0.01)
    assert ended == BLOCKS


def test_blocks_that_load_more_slowly_than_they_are_computed_are_computed(link: Link) -> None:
    """A prompt is cut where loading loses, which is counted; now and then it is tried all the same, and what was
    not measured is loaded."""
    store(link, KEYS)
    rates = Rates()
    rates.note(Way.HOST, 100, 10.0)
    assert answers(prompt_of(link, KEYS, rates)) == [Answer.LEASED] * BLOCKS
    rates.note(Way.COMPUTED, 100, 1.0)
    prompt = prompt_of(link, KEYS, rates)
    assert answers(prompt) == [Answer.MISS] * BLOCKS
    prompt.release()
    assert prompt.cut_blocks == BLOCKS
    assert [rates.is_worth(Way.HOST) for _ in range(2 * TRIED_AGAIN)].count(True) == 2
    for _ in range(KEPT):
        rates.note(Way.HOST, 100, 0.1)
    assert rates.is_worth(Way.HOST) and rates.is_worth(Way.SPILL)


def test_groups_are_searched_each_for_itself(link: Link) -> None:
    """Of several groups every block counts that is there, also after a gap; a load names the places by group."""
    layout = Layout.of_groups(
        [Group(name, 16, (Part("pages", "uint8", (LAYERS, size)),)) for name, size in (("0", 512), ("1", 256))],
        model="hybrid")
    prompt = Prompt(link, [layout], 2, Rates(), Patience())
    window = [b"window %d" % number for number in range(BLOCKS)]
    prompt.extend([*((0, key) for key in KEYS), *((1, key) for key in window)])
    namespace = link.namespace(layout)
    namespace.put(Run(tuple(KEYS[:2]), chained=False).identities(layout), BYTES[:2])
    half = np.ascontiguousarray(BYTES[:, : LAYERS * 256])
    namespace.put(Run(tuple(window[3:5]), 1, chained=False).identities(layout), half[3:5])
    assert answers(prompt) == [Answer.LEASED] * 2 + [Answer.MISS] * 4
    assert settled(lambda: prompt.answer(window[5])) is Answer.MISS
    assert [prompt.answer(key) for key in window[:5]] == [Answer.MISS] * 3 + [Answer.LEASED] * 2
    (groups,) = prompt.load([window[4], KEYS[1], window[3]])
    reader = LeasedReader(link.client())
    assert [group for group, _ in groups] == [0, 1]
    assert [view.tobytes() for _, places in groups for view in reader.views(places)] == [
        BYTES[1].tobytes(), half[3].tobytes(), half[4].tobytes()]
    prompt.release()


def test_blocks_come_up_from_the_spill_tier(daemon: StartDaemon) -> None:
    """What lies in the spill tier alone is brought up while the engine goes on, and is leased then."""
    server = daemon(host_bytes="8MiB", spill="embedded", spill_bytes_max="8MiB")
    server.event("spill_up")
    link = Link(Options(address=server.address, answer_ms=5_000, promote_ms=10_000), "engine", LAYOUTS)
    assert link.wait_up(10.0)
    store(link, KEYS)
    for layout in LAYOUTS:
        moved = link.namespace(layout).evict(Run(tuple(KEYS)).identities(layout), timeout_s=10.0)
        assert moved == [EvictOutcome.MOVED] * BLOCKS
    assert answers(prompt_of(link, KEYS)) == [Answer.LEASED] * BLOCKS
    link.close()


def test_blocks_that_do_not_come_up_keep_no_other_request_waiting(
    daemon: StartDaemon, valkey: ExternalValkey,
) -> None:
    """However many requests wait for a Redis that does not answer: what is in host is found, requests that wait for
    their turn are computed in the end, and the daemon is not taken to be away."""
    server, here = daemon(host_bytes="8MiB", spill=valkey.unix_url), b"in host"
    server.event("spill_up")
    link = Link(Options(address=server.address, answer_ms=1_000, promote_ms=1_500), "engine", LAYOUTS[:1])
    assert link.wait_up(10.0)
    below, above = (Run((key,)).identities(LAYOUTS[0]) for key in (KEYS[0], here))
    link.namespace(LAYOUTS[0]).put(below, BYTES[:1])
    assert link.namespace(LAYOUTS[0]).evict(below, timeout_s=10.0) == [EvictOutcome.MOVED]
    link.namespace(LAYOUTS[0]).put(above, BYTES[1:2])
    valkey.freeze()
    try:
        waiting = [prompt_of(link, [KEYS[0]], layouts=1) for _ in range(PROMOTIONS + 4)]
        assert {prompt.answer(KEYS[0]) for prompt in waiting} == {Answer.PENDING}
        other = prompt_of(link, [here], layouts=1)
        assert settled(lambda: other.answer(here)) is Answer.LEASED
        assert {settled(partial(prompt.answer, KEYS[0])) for prompt in waiting} == {Answer.MISS}
        assert link.is_up
    finally:
        valkey.thaw()
    link.close()


def test_a_search_that_nobody_waits_for_leaves_nothing_leased(server: ServeProcess, link: Link) -> None:
    """A request that ends while its blocks are searched gives back what the search comes to lease, also when the
    engine ends with it."""
    store(link, KEYS)
    ending = Link(link.options, "ending", LAYOUTS)
    assert ending.wait_up(10.0)
    prompt = prompt_of(ending, KEYS)
    assert answers(prompt) == [Answer.LEASED] * BLOCKS
    prompt.release()
    ending.close()
    for _ in range(20):
        prompt = prompt_of(link, KEYS)
        prompt.answer(KEYS[0])
        prompt.release()
    settled(lambda: Answer.PENDING if leases(server) else Answer.MISS)
    assert not leases(server)


def test_a_load_that_cannot_be_done_says_why(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places in memory that is no daemon's end as an error of the job, and no page is touched; a store without the
    daemon ends as done, with nothing stored."""
    monkeypatch.setattr(transfers, "LOAD_WITHIN_S", 0.0)
    pages = np.zeros((LAYERS, 4, PAGE_BYTES), np.uint8)
    worker = Transfers(link, [PagedKV(LAYOUTS[0], pages)])
    nowhere = Places(LAYERS * PAGE_BYTES, (1 << 48,), {1 << 8: (0, 0)})
    worker.load(1, [(0, nowhere, np.array([2]))])
    link.lost(Unavailable("for the test"))
    worker.store(2, LAYOUTS[0], [(Run((b"never stored",)), np.array([1]))], None)
    worker.wait({1, 2})
    load, stored = sorted(worker.finished(), key=lambda one: one.job)
    assert load.error and not pages.any()
    assert (stored.error, stored.bytes) in (("", 0), ("", LAYERS * PAGE_BYTES))  # the link may be up again
    worker.close()


def test_what_the_engine_had_itself_counts_as_an_access(link: Link) -> None:
    """Blocks before the first that was loaded or stored were served by the engine's own cache: they are touched."""
    store(link, KEYS)
    prompt = prompt_of(link, KEYS)
    prompt.missing(KEYS[4:], set())
    assert [run.keys for run in prompt.served_elsewhere()] == [tuple(KEYS[:4])]
    admin, ids = link.client().admin, Run(tuple(KEYS)).identities(LAYOUTS[1])
    before = [record.touches for record in admin.describe(ids) if record]
    report(link, LAYOUTS, "request", prompt, Hints())

    def touched() -> list[int]:
        return [record.touches - old for record, old in zip(admin.describe(ids), before, strict=True) if record]

    settled(lambda: Answer.MISS if any(touched()) else Answer.PENDING)
    assert touched() == [1] * 4 + [0] * 2


@pytest.mark.parametrize(("error", "word"), [
    (AccessDenied("x"), "token"), (SharedMemoryUnavailable("x"), "host"), (Unavailable("x"), "tierd serve"),
    (TimedOut("x"), "load"), (FailedPrecondition("x"), "release"), (BrokenPeer("x"), "release"),
])
def test_the_log_says_what_to_do(error: TierdClientError, word: str) -> None:
    """Each way in which a daemon can be of no use has advice of its own."""
    assert word in advice(error)


def test_parts_of_a_run_have_the_identities_of_the_whole() -> None:
    """A block has one identity, whatever part of its prompt it is named in, and knows its place in the chain."""
    whole = Run(tuple(KEYS)).identities(LAYOUTS[0])
    parts = Run(tuple(KEYS)).parts(np.array([False, True, True, False, False, True]))
    assert [part.identities(LAYOUTS[0]) for part in parts] == [whole[1:3], whole[5:6]]
    single = Run(tuple(KEYS[1:3]), chained=False).identities(LAYOUTS[0])
    assert np.array_equal(single.array, whole[1:3].array) and not single.chain


def test_weights_are_told_apart(tmp_path: Path) -> None:
    """A copy of a model has the same digest; other weights of the same size have not; without files it is empty."""
    weights = np.random.default_rng(0).bytes(40 * SAMPLE_BYTES)
    for name, content in (("a", weights), ("b", weights), ("c", bytes(byte ^ 1 for byte in weights)), ("d", b"")):
        (tmp_path / name).mkdir()
        (tmp_path / name / ("model.safetensors" if content else "readme.md")).write_bytes(content)
    digests = [weights_digest(tmp_path / name) for name in "abcd"]
    assert digests[0] == digests[1] != digests[2] and not digests[3]


def test_training_of_one_matrix_tells(tmp_path: Path) -> None:
    """Of two files of 64 MiB that differ in one 128 KiB of them, wherever, the digests differ."""
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(64 << 20)
        digests = {weights_digest(tmp_path)}
        for place in (5 << 20, 37 << 20):
            file.seek(place)
            file.write(b"x" * (128 << 10))
            file.flush()
            digests.add(weights_digest(tmp_path))
    assert len(digests) == 3


@pytest.mark.parametrize(("given", "named"), [
    ({"adress": "unix:///x"}, "tierd.adress"), ({"answer_ms": 0}, "tierd.answer_ms"), (3, "tierd: 3"),
    ({"address": "nowhere"}, "tierd.address"), ({"promote_ms": "soon"}, "tierd.promote_ms"),
])
def test_options_are_checked(given: object, named: str) -> None:
    """An option that does not exist or is out of range is refused by its name."""
    with pytest.raises(InvalidArgument, match=named):
        Options.of(given)


def test_the_address_comes_from_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option goes before the environment, and that before the place of a daemon of root."""
    monkeypatch.delenv("TIERD_ADDRESS", raising=False)
    assert Options.of({}).address == "unix:///run/tierd/tierd.sock"
    monkeypatch.setenv("TIERD_ADDRESS", "unix:///elsewhere/tierd.sock")
    assert Options.of({}).address == "unix:///elsewhere/tierd.sock"
    assert Options.of({"address": "unix:///here/tierd.sock"}).address == "unix:///here/tierd.sock"
    assert (Options.of({"answer_ms": 50}).answer_s, Options.of({}).promote_s) == (0.05, 2.0)


def test_what_goes_between_processes_can_be_pickled() -> None:
    """A scheduler tells its workers in other processes what to store, and from where to load."""
    run = Run(tuple(KEYS), position=3, parent=b"before")
    places = Places(512, (1 << 40, (1 << 40) + 512), {256: (1, 2)})
    assert pickle.loads(pickle.dumps((run, places))) == (run, places)
    assert places.take([1]).addresses == ((1 << 40) + 512,)
    assert np.array_equal(run.identities(LAYOUTS[0]).array, Run(tuple(KEYS)).identities(LAYOUTS[0]).array)
    assert run.identities(LAYOUTS[0]).position == 3


def test_a_namespace_is_known_once_the_daemon_was_told_of_it(link: Link) -> None:
    """Layouts that come up later are made known on demand, and none is known while the daemon is away."""
    later = LAYOUTS[0].replace(revision="later")
    assert link.known(LAYOUTS[0]) is not None
    assert link.known(later) is None
    namespace = link.namespace(later)
    assert link.known(later) is namespace
    assert link.namespace(later) is namespace
    link.lost(Unavailable("for the test"))
    assert link.known(later) is None or link.is_up
    assert link.wait_up(10.0)
    assert link.known(later) is namespace


def test_jobs_are_told_once_each(link: Link) -> None:
    """Every job is told when it has ended, once, whichever of them somebody has waited for."""
    pages = np.zeros((LAYERS, BLOCKS, PAGE_BYTES), np.uint8)
    worker = Transfers(link, [PagedKV(LAYOUTS[0], pages)])
    for job, key in enumerate(KEYS):
        worker.store(job, LAYOUTS[0], [(Run((key,)), np.array([job]))], None)
    worker.wait({2, 4})
    worker.wait(set())
    told = [one.job for one in worker.finished()]
    assert {2, 4} <= set(told)
    worker.wait(set(range(BLOCKS)))
    told += [one.job for one in worker.finished()]
    assert sorted(told) == list(range(BLOCKS))
    assert not worker.finished()
    worker.close()


def test_blocks_that_a_request_gets_later_are_its_own(link: Link) -> None:
    """What a running request adds is no part of the search that was made before, is offered for storing with its
    place in the chain, and is found when the request is searched anew."""
    store(link, KEYS[:4])
    prompt = prompt_of(link, KEYS[:4])
    assert settled(lambda: prompt.answer(KEYS[0])) is Answer.LEASED
    prompt.extend((0, key) for key in KEYS)
    assert len(prompt) == BLOCKS
    assert prompt.answer(KEYS[4]) is Answer.MISS
    (run,) = prompt.missing(KEYS[4:], set())
    assert (run.keys, run.position, run.parent) == (tuple(KEYS[4:]), 4, KEYS[3])
    store(link, KEYS[4:])
    assert not prompt.missing(KEYS[4:], set())
    assert prompt.stored([KEYS[5], KEYS[4]]) == KEYS[4:]
    prompt.release()
    assert answers(prompt) == [Answer.LEASED] * BLOCKS
    prompt.release()


def test_a_miss_is_not_for_ever(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that waits, or was preempted, finds what others have stored since it was told of a miss."""
    prompt = prompt_of(link, KEYS)
    assert settled(lambda: prompt.answer(KEYS[0])) is Answer.MISS
    store(link, KEYS)
    assert prompt.answer(KEYS[0]) is Answer.MISS
    monkeypatch.setattr(prompts, "MISS_S", 0.0)
    assert answers(prompt) == [Answer.LEASED] * BLOCKS
    prompt.release()


@pytest.mark.parametrize("given", [
    {"priority": 7.5},
    {"next_use": "never"},
    {"expected_s": -1},
    {"ttl_s": "long"},
    {"ttl_s": -1},
    ["high"],
    "high",
])
def test_hints_that_mean_nothing_are_left_out(given: object, caplog: pytest.LogCaptureFixture) -> None:
    """No hint can fail a request: what is out of range or of another kind counts as not said."""
    assert Hints.of({"tierd": given}) == Hints()
    assert "hints are ignored" in caplog.text


def test_hints_are_understood() -> None:
    """Priority, time to live and next use are taken by name."""
    given = {"priority": "low", "ttl_s": 30, "next_use": "closed"}
    assert Hints.of({"tierd": given}) == Hints(Priority.LOW, 30.0, NextUse.CLOSED, 0.0)


def test_each_run_of_a_store_has_its_own_pages(link: Link) -> None:
    """A store of several runs, with gaps between them, takes every block out of the page that is named for it, and
    one of blocks that are there already moves nothing."""
    pages = np.zeros((LAYERS, 8, PAGE_BYTES), np.uint8)
    order = np.array([7, 3, 5])
    chosen = [0, 1, 4]
    pages[:, order] = BYTES[chosen].reshape(3, LAYERS, PAGE_BYTES).swapaxes(0, 1)
    runs = prompt_of(link, KEYS).missing([KEYS[number] for number in chosen], set())
    assert [len(run) for run in runs] == [2, 1]
    worker = Transfers(link, [PagedKV(LAYOUTS[0], pages)])
    for job in (1, 2):
        worker.store(job, LAYOUTS[0], [(runs[0], order[:2]), (runs[1], order[2:])], Priority.LOW)
        worker.wait({job})
    assert [one.bytes for one in worker.finished()] == [3 * BYTES.shape[1], 0]
    got = link.namespace(LAYOUTS[0]).get(Run(tuple(KEYS)).identities(LAYOUTS[0]))
    there = [None if block is None else bytes(np.asarray(block).tobytes()) for block in got]
    assert there == [BYTES[number].tobytes() if number in chosen else None for number in range(BLOCKS)]
    worker.close()
