"""An engine whose daemon is stopped (SIGSTOP): each of its processes waits once, and for nothing after that."""

from __future__ import annotations

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Layout, PagedKV, TimedOut
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.prompts import Answer, Prompt
from tierd_client.integrations.rates import Rates
from tierd_client.integrations.search import Patience
from tierd_client.integrations.transfers import Transfers
from tierd_client.layout import Group, Part
from tierd_client.session import Session

BLOCKS, LAYERS, PAGE_BYTES = 8, 3, 512
LAYOUT = Layout.of_groups([Group("0", 16, (Part("pages", "uint8", (LAYERS, PAGE_BYTES)),))], model="m")
KEYS = [b"key %d" % number for number in range(BLOCKS)]
PAGES = np.random.default_rng(0).integers(0, 256, (LAYERS, BLOCKS, PAGE_BYTES), np.uint8)
PAUSE = threading.Event()


@pytest.fixture
def server(daemon: StartDaemon) -> ServeProcess:
    return daemon(host_bytes="8MiB")


@pytest.fixture
def link(server: ServeProcess) -> Iterator[Link]:
    link = Link(Options(address=server.address, answer_ms=200), "engine", [LAYOUT])
    assert link.wait_up(10.0)
    yield link
    link.close()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Calls to the daemon, by method."""
    call, made = Session.call, Counter[str]()

    def counted(self: Session, method: str, *arguments: Any, **named: Any) -> Any:
        made[method] += 1
        return call(self, method, *arguments, **named)

    monkeypatch.setattr(Session, "call", counted)
    return made


@contextmanager
def stopped(server: ServeProcess) -> Iterator[None]:
    os.kill(server.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.pid, signal.SIGCONT)


def asked(link: Link, key: bytes) -> Prompt:
    prompt = Prompt(link, [LAYOUT], 1, Rates(), Patience(0.0))
    prompt.extend([(0, key)])
    prompt.answer(key)
    return prompt


def begin(worker: Transfers, job: int) -> None:
    """Stores the block of that number, which lies in the page of that number."""
    worker.store(job, LAYOUT, [(Run((KEYS[job],)), np.array([job]))], None)


def found(link: Link) -> list[bytes | None]:
    blocks = link.namespace(LAYOUT).get(Run(tuple(KEYS), chained=False).identities(LAYOUT))
    return [None if block is None else bytes(np.asarray(block).tobytes()) for block in blocks]


def test_all_requests_of_a_scheduler_wait_together(
    server: ServeProcess, link: Link, calls: Counter[str],
) -> None:
    """Once one request has waited in vain all others that wait are computed, and new ones ask nothing at all, until
    the daemon answers again."""
    with stopped(server):
        waiting = [asked(link, key) for key in KEYS[:4]]
        link.lost(TimedOut("one request has waited"))
        assert [prompt.answer(key) for prompt, key in zip(waiting, KEYS, strict=False)] == [Answer.MISS] * 4
        before = calls["Lookup"]
        assert [asked(link, key).answer(key) for key in KEYS] == [Answer.MISS] * BLOCKS
        assert calls["Lookup"] == before <= 4
        assert not link.is_up
    assert link.wait_up(20.0)


def test_an_engine_has_its_pages_back_while_the_daemon_is_stopped(
    server: ServeProcess, link: Link, calls: Counter[str],
) -> None:
    """A worker waits for no store that the daemon does not answer, nor for those behind it, which make no call.
    What the pages hold afterwards is never stored; what they held before is, or nothing."""
    pages = PAGES.copy()
    worker = Transfers(link, [PagedKV(LAYOUT, pages)])
    begin(worker, 0)
    worker.wait({0})
    before = calls["Store"]
    with stopped(server):
        for job in range(1, BLOCKS):
            begin(worker, job)
            worker.wait({job})
        assert [one.job for one in worker.finished()] == [0]
        assert calls["Store"] <= before + 1
        pages[:] = 0
    ended: list[int] = []
    while len(ended) < BLOCKS - 1:
        ended += [one.job for one in worker.finished()]
        PAUSE.wait(0.01)
    worker.close()
    assert link.wait_up(20.0)
    blocks = found(link)
    assert blocks[0] is not None and not any(blocks[2:])
    assert all(block in (None, PAGES[:, number].tobytes()) for number, block in enumerate(blocks))


def test_a_load_waits_for_no_store(server: ServeProcess, link: Link) -> None:
    """Leased blocks come into a worker's pages while a store of it waits for a daemon that is stopped, also those
    that it loads first."""
    pages = PAGES.copy()
    worker = Transfers(link, [PagedKV(LAYOUT, pages)])
    begin(worker, 0)
    worker.wait({0})
    prompt = asked(link, KEYS[0])
    while prompt.answer(KEYS[0]) is Answer.PENDING:
        PAUSE.wait(0.001)
    ((group, places),) = prompt.load([KEYS[0]])[0]
    with stopped(server):
        begin(worker, 1)
        worker.load(2, [(group, places, np.array([5]))])
        worker.wait({2})
        assert np.array_equal(pages[:, 5], PAGES[:, 0])
        assert 1 not in [one.job for one in worker.finished()]
    worker.close()
    prompt.release()
