"""Batches of what threads leave for the loop."""

from __future__ import annotations

import asyncio

import pytest

from tierd.app.outbox import Outbox

DEADLINE_S = 10.0


class Taken:
    """What was taken, in batches."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self._more = asyncio.Event()

    def take(self, items: list[int]) -> None:
        self.batches.append(items)
        self._more.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while len(self.batches) < count:
                self._more.clear()
                await self._more.wait()


def outbox_of(taken: Taken, later: int, urgent: int = 0) -> Outbox[int]:
    outbox = Outbox(taken.take)
    for kind, count in ((False, later), (True, urgent)):
        for _ in range(count):
            outbox.expect(kind)
    return outbox


def test_what_comes_soon_after_a_batch_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first thing is taken at once, those soon after it together, and the last at once with what waits."""
    monkeypatch.setattr("tierd.app.outbox.APART_S", DEADLINE_S)

    async def body() -> None:
        taken = Taken()
        outbox = outbox_of(taken, 5)
        await asyncio.to_thread(outbox.put, 1, False)
        await taken.until(1)
        for item in (2, 3, 4):
            await asyncio.to_thread(outbox.put, item, False)
        assert (taken.batches, outbox.open) == ([[1]], 4)
        await asyncio.to_thread(outbox.put, 5, False)
        await taken.until(2)
        assert (taken.batches, outbox.open) == ([[1], [2, 3, 4, 5]], 0)

    asyncio.run(body())


def test_the_last_of_its_kind_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The only urgent thing is taken at once, however many others are still expected."""
    monkeypatch.setattr("tierd.app.outbox.APART_S", DEADLINE_S)

    async def body() -> None:
        taken = Taken()
        outbox = outbox_of(taken, 5, urgent=1)
        outbox.put(1, False)
        await taken.until(1)
        outbox.put(2, False)
        outbox.put(3, True)
        await taken.until(2)
        assert taken.batches == [[1], [2, 3]]

    asyncio.run(body())


def test_nothing_waits_for_ever() -> None:
    """What waits for others that do not come is taken after a few milliseconds."""

    async def body() -> None:
        taken = Taken()
        outbox = outbox_of(taken, 5)
        outbox.put(1, False)
        await taken.until(1)
        outbox.put(2, False)
        await taken.until(2)
        assert (taken.batches, outbox.open) == ([[1], [2]], 3)

    asyncio.run(body())


def test_a_wake_takes_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wake has what waits taken at once, be it nothing."""
    monkeypatch.setattr("tierd.app.outbox.APART_S", DEADLINE_S)

    async def body() -> None:
        taken = Taken()
        outbox = outbox_of(taken, 5)
        outbox.put(1, False)
        await taken.until(1)
        outbox.put(2, False)
        outbox.wake()
        await taken.until(2)
        outbox.wake()
        await taken.until(3)
        assert taken.batches == [[1], [2], []]

    asyncio.run(body())


def test_what_has_become_urgent_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thing that somebody waits for by now is taken at once as the last of its kind, and the others are not held
    for it."""
    monkeypatch.setattr("tierd.app.outbox.APART_S", DEADLINE_S)

    async def body() -> None:
        taken = Taken()
        outbox = outbox_of(taken, 3)
        await asyncio.to_thread(outbox.put, 1, False)
        await taken.until(1)
        outbox.hurry(1)
        await asyncio.to_thread(outbox.put, 2, True)
        await taken.until(2)
        await asyncio.to_thread(outbox.put, 3, False)
        await taken.until(3)
        assert taken.batches == [[1], [2], [3]]

    asyncio.run(body())
