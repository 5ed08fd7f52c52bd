"""Shadow mode in the daemon, without one: requests are played on a thread, within bounds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tierd.app import recorder as recording
from tierd.app import shadow as shadowing
from tierd.app.recorder import Recorder, Request, Shadowed
from tierd.app.shadow import Shadow, ShadowFigures, ShadowSettings, identities_of
from tierd.core import messages as m
from tierd.sim import traces
from tierd_client.hits import HitRule

IDS = traces.identities_of(64)
SETTINGS = ShadowSettings(sizes_bytes=(8 * 4096, 1 << 20), blocks_max=256, namespaces_max=2, cpu_percent=100)
ALL = Shadowed(1, 4096, asked=8, served=0, prefill_tokens_per_s=0.0)
WITHIN_S = 30.0


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "ROUND_S", 0.01)


def chain(first: int, count: int) -> m.Ids:
    return m.Ids(1, 0, IDS[first : first + count], chain=True, rule=HitRule(16))


def played(shadow: Shadow, done: Callable[[list[ShadowFigures]], bool]) -> list[ShadowFigures]:
    """The figures, once they are as wanted."""

    async def body() -> list[ShadowFigures]:
        async with asyncio.timeout(WITHIN_S):
            running = asyncio.create_task(shadow.run())
            while not done(shadow.figures()):
                await asyncio.sleep(0.005)
            running.cancel()
            await shadow.stop(1.0)
        return shadow.figures()

    return asyncio.run(body())


def report(shadow: Shadow, blocks: m.Ids, **fields: Any) -> None:
    shadow.report(1, blocks, replace(ALL, asked=len(blocks), **fields), begins=True, ends=True)


def requests_of(*numbers: int) -> Callable[[list[ShadowFigures]], bool]:
    return lambda figures: [one.requests for one in figures] == list(numbers)


def test_sizes_are_blocks_of_slots() -> None:
    """A block takes whole pages: memory of eight pages holds four blocks of a page and a bit."""
    shadow = Shadow(SETTINGS, "lru")
    for _ in range(2):
        report(shadow, chain(0, 6), block_bytes=4097, prefill_tokens_per_s=250.0)
    (found,) = played(shadow, requests_of(2))
    small, large = found.sizes
    assert (small.figures.capacity_blocks, large.figures.capacity_blocks) == (4, 128)
    assert (small.figures.prefix_hits.blocks, large.figures.prefix_hits.blocks) == (4, 6)
    assert (found.asked_blocks, found.block_tokens, found.prefill_tokens_per_s) == (12, 16, 250.0)


def test_the_rate_that_was_said_last_counts() -> None:
    """A report without a rate leaves the one before in force."""
    shadow = Shadow(SETTINGS, "lru")
    for rate in (100.0, 300.0, 0.0):
        report(shadow, chain(0, 2), prefill_tokens_per_s=rate)
    (found,) = played(shadow, requests_of(3))
    assert found.prefill_tokens_per_s == 300.0


def test_namespaces_are_played_apart() -> None:
    """What one namespace stored is no hit of another, also where the identities are the same."""
    shadow = Shadow(SETTINGS, "lru")
    for namespace in (1, 2, 1):
        report(shadow, chain(0, 4), namespace=namespace)
    first, second = played(shadow, requests_of(2, 1))
    assert (first.namespace, first.sizes[0].figures.prefix_hits.blocks) == (1, 4)
    assert (second.namespace, second.sizes[0].figures.prefix_hits.blocks) == (2, 0)


def test_who_was_reported_longest_ago_is_forgotten() -> None:
    """Above the bound the namespace goes whose last report is the oldest, and begins anew when it comes again."""
    shadow = Shadow(SETTINGS, "lru")
    for namespace in (1, 2, 1, 3, 2):
        report(shadow, chain(0, 4), namespace=namespace)
    found = played(shadow, lambda figures: [one.namespace for one in figures] == [2, 3])
    assert [one.requests for one in found] == [1, 1]
    assert found[0].sizes[0].figures.prefix_hits.blocks == 0


@pytest.mark.parametrize("change", ["policy", "bytes"])
def test_what_makes_figures_others_begins_them_anew(change: str) -> None:
    """Figures of two policies, or of blocks of two sizes, are never added up."""
    shadow = Shadow(SETTINGS, "lru")
    report(shadow, chain(0, 4))
    before = played(shadow, requests_of(1))
    again = Shadow(SETTINGS, "lru")
    report(again, chain(0, 4))

    async def body() -> None:
        async with asyncio.timeout(WITHIN_S):
            running = asyncio.create_task(again.run())
            while not again.figures():
                await asyncio.sleep(0.005)
            again.policy = "s3fifo" if change == "policy" else "lru"
            report(again, chain(0, 4), block_bytes=8192 if change == "bytes" else 4096)
            while (again.figures()[0].policy, again.figures()[0].block_bytes) == ("lru", 4096):
                await asyncio.sleep(0.005)
            running.cancel()
            await again.stop(1.0)

    asyncio.run(body())
    (after,) = again.figures()
    assert before[0].requests == after.requests == 1
    assert after.sizes[0].figures.prefix_hits.blocks == 0


def test_only_what_was_reported_is_played() -> None:
    """Requests of clients that store are no part of the figures, also where they share a session."""
    shadow = Shadow(SETTINGS, "lru")
    shadow._serve([Request(0.0, 0.0, 16, {1: None}), Request(0.0, 0.0, 16, {2: None}, shadowed=ALL)])
    (found,) = shadow.figures()
    assert (found.requests, found.asked_blocks) == (1, 1)


def test_it_takes_its_share_of_a_processor_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each request it idles for as long as its share demands: at 25 percent three times what it worked."""
    shadow = Shadow(replace(SETTINGS, cpu_percent=25), "lru")
    clock, waited = iter([1.0, 1.5, 2.0, 4.0]), list[float]()
    monkeypatch.setattr(shadowing.time, "thread_time", lambda: next(clock))
    monkeypatch.setattr(shadow._stopping, "wait", waited.append)
    shadow._serve([Request(0.0, 0.0, 16, {number: None}, shadowed=ALL) for number in (1, 2)])
    assert waited == [1.5, 6.0]


def test_a_stop_does_not_wait_for_what_is_left() -> None:
    """A daemon that stops gives up requests that are not played, although they would idle for long."""
    shadow = Shadow(replace(SETTINGS, cpu_percent=1), "lru")
    for _ in range(2_000):
        report(shadow, chain(0, 60))
    began = time.monotonic()
    played(shadow, bool)
    assert shadow.figures()[0].requests < 2_000
    assert time.monotonic() - began < WITHIN_S


def test_what_is_over_the_bound_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports that come faster than they are played are left out, and said so."""
    monkeypatch.setattr(recording, "MOST_WAITING_IDS", 10)
    shadow = Shadow(SETTINGS, "lru")
    for _ in range(3):
        report(shadow, chain(0, 4))
    assert shadow.left_out_total == 1
    (found,) = played(shadow, requests_of(2))
    assert found.requests == 2


def test_a_trace_hears_of_the_same_requests() -> None:
    """Recorder and figures are told of one request alike, in parts or at once."""
    written: list[Request] = []
    trace = Recorder(written.extend)
    shadow = Shadow(SETTINGS, "lru", trace)
    shadow.report(1, chain(0, 4), replace(ALL, asked=4), begins=True, ends=False)
    answer = replace(chain(4, 2), position=4, parent=IDS[3].tobytes())
    shadow.report(1, answer, replace(ALL, asked=0), begins=False, ends=True)
    (found,) = played(shadow, requests_of(1))
    asyncio.run(trace.stop(WITHIN_S))
    ((words, replies),) = [(len(one.words), one.replies) for one in written]
    assert (words, replies, found.asked_blocks) == (6, 2, 4)


def test_identities_stand_for_words() -> None:
    """Eight bytes of each block become an identity of their own, the same each time."""
    words = np.random.default_rng(3).integers(1, 1 << 62, 1_000)
    request = Request(0.0, 0.0, 16, dict.fromkeys(words.tolist()))
    ids = identities_of(request)
    assert ids.shape == (1_000, 32) and len(np.unique(ids, axis=0)) == 1_000
    assert np.array_equal(ids, identities_of(request))
