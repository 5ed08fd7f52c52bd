"""What only the asyncio client can do wrong: tasks, cancellation, and an event loop that is held up."""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scripted_daemon import ScriptedDaemon

import tierd_client
from tierd_client import AsyncClient, Layout, chain_ids, errors
from tierd_client.admin import Admin, AsyncAdmin
from tierd_client.lease import AsyncLease, Lease
from tierd_client.namespace import AsyncNamespace, Namespace
from tierd_client.routine import Work, perform, run
from tierd_client.sequence import AsyncSequence, Sequence

SIZE = 4096
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=4)
IDS = chain_ids(LAYOUT, range(80))
DATA = np.random.default_rng(1).integers(0, 256, (20, SIZE), np.uint8)
SOON_S = 2.0


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    daemon = ScriptedDaemon(tmp_path / "s.sock")
    daemon.start()
    yield daemon
    daemon.stop()


Test = Callable[[AsyncClient, AsyncNamespace], Coroutine[Any, Any, None]]


def with_client(daemon: ScriptedDaemon, test: Test) -> None:
    async def main() -> None:
        async with AsyncClient(daemon.target, rpc_timeout_s=5.0) as client:
            await test(client, await client.namespace(LAYOUT))

    asyncio.run(main())


def _hangs(reached: threading.Event, until: threading.Event) -> Any:
    def hang(request: Any, context: Any) -> None:
        reached.set()
        until.wait(10)

    return hang


@pytest.mark.parametrize(
    ("sync", "asynchronous"),
    [(Namespace, AsyncNamespace), (Admin, AsyncAdmin), (Lease, AsyncLease), (Sequence, AsyncSequence),
     (tierd_client.Client, AsyncClient)],
)
def test_twins_have_the_same_methods(sync: type, asynchronous: type) -> None:
    """What one twin can do the other can, with the same parameters and the same documentation."""
    ours, theirs = (
        {name: value for name, value in vars(kind).items() if callable(value) and not name.startswith("_")}
        for kind in (sync, asynchronous)
    )
    assert set(theirs) - set(ours) <= {"connect"}
    for name, method in ours.items():
        assert list(inspect.signature(method).parameters) == list(inspect.signature(theirs[name]).parameters), name
        assert method.__doc__ == theirs[name].__doc__ is not None, name


def test_calls_of_several_tasks_run_at_once(daemon: ScriptedDaemon) -> None:
    """A task that waits for the daemon holds up neither the event loop nor another task's call."""
    reached, answer = threading.Event(), threading.Event()
    daemon.hooks["Lookup"] = _hangs(reached, answer)

    async def test(client: AsyncClient, ns: AsyncNamespace) -> None:
        waiting = [asyncio.create_task(ns.lookup(IDS[:3])) for _ in range(3)]
        assert await asyncio.to_thread(reached.wait, 5)
        assert await ns.put(IDS[:2], DATA[:2]) == [tierd_client.PutOutcome.STORED] * 2
        assert not any(task.done() for task in waiting)
        answer.set()
        assert [found.prefix for found in await asyncio.gather(*waiting)] == [2, 2, 2]

    with_client(daemon, test)


def test_a_sequence_is_of_its_task(daemon: ScriptedDaemon) -> None:
    """Inside `async with` a task's calls carry the sequence's name; another task's do not."""

    async def test(client: AsyncClient, ns: AsyncNamespace) -> None:
        async def other() -> str:
            await entered.wait()
            await ns.get(IDS[:1])
            return str(daemon.requests[-1].sequence)

        entered = asyncio.Event()
        task = asyncio.create_task(other())
        async with ns.sequence("mine", IDS[:5]) as sequence:
            entered.set()
            assert await task == ""
            await ns.get(IDS[:1])
            assert daemon.requests[-1].sequence == "mine"
            assert (await sequence.lookup()).prefix == 0
            assert await sequence.observe([0.5]) > 0
        await ns.get(IDS[:1])
        assert daemon.requests[-1].sequence == ""
        assert daemon.calls["CloseSequence"] == 1

    with_client(daemon, test)


def test_what_must_be_closed_is_awaited_or_entered(daemon: ScriptedDaemon) -> None:
    """A lease is had by `await` and by `async with`; the latter releases it."""

    async def test(client: AsyncClient, ns: AsyncNamespace) -> None:
        await ns.put(IDS[:2], DATA[:2])
        lease = await ns.acquire(IDS[:2])
        assert np.array_equal(lease.arrays(), DATA[:2])
        await lease.release()
        async with ns.acquire(IDS[:2]) as lease:
            assert np.array_equal(lease.arrays(), DATA[:2])
        with pytest.raises(errors.FailedPrecondition, match="released"):
            lease.arrays()

    with_client(daemon, test)


def test_a_cancelled_call_ends_at_once(daemon: ScriptedDaemon) -> None:
    """Cancelling a task that waits for the daemon, in a unary call or in a stream, ends it at once; the client goes
    on."""
    never = threading.Event()

    async def test(client: AsyncClient, ns: AsyncNamespace) -> None:
        for method, call in (("Lookup", ns.lookup), ("Get", ns.get)):
            reached = threading.Event()
            daemon.hooks[method] = _hangs(reached, never)
            task = asyncio.create_task(call(IDS[:1]))
            assert await asyncio.to_thread(reached.wait, 5)
            start = time.monotonic()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert time.monotonic() - start < SOON_S
            daemon.hooks.clear()
        never.set()
        assert (await ns.lookup(IDS[:1])).prefix == 0

    with_client(daemon, test)


def test_a_cancelled_task_outlasts_its_work() -> None:
    """A task that is cancelled, even twice, ends only when the function that it runs on a thread has returned."""
    started, finish = threading.Event(), threading.Event()
    ended: list[str] = []

    def work() -> None:
        started.set()
        finish.wait(10)
        ended.append("work")

    async def routine() -> None:
        await Work(work)

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            task = asyncio.create_task(perform(routine(), threads))
            await asyncio.to_thread(started.wait, 5)
            for _ in range(2):
                task.cancel()
                await asyncio.sleep(0.01)
            assert not task.done()
            finish.set()
            with pytest.raises(asyncio.CancelledError):
                await task
            ended.append("task")

    asyncio.run(main())
    assert ended == ["work", "task"]


def test_work_that_no_thread_has_begun_is_not_waited_for() -> None:
    """A task whose function still waits for a thread ends at once when it is cancelled, and it never runs."""
    finish = threading.Event()
    ran: list[str] = []

    async def routine(name: str) -> None:
        await Work(lambda: (finish.wait(10), ran.append(name)))

    async def main() -> None:
        with ThreadPoolExecutor(1) as threads:
            first = asyncio.create_task(perform(routine("first"), threads))
            second = asyncio.create_task(perform(routine("second"), threads))
            await asyncio.sleep(0.01)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(second, SOON_S)
            finish.set()
            await first

    asyncio.run(main())
    assert ran == ["first"]


def test_a_routine_sees_the_errors_of_its_steps() -> None:
    """An error of a step is raised where the routine awaits it, and what it does next goes on."""

    def fail() -> None:
        raise errors.NotFound("gone")

    async def routine() -> str:
        try:
            await Work(fail)
        except errors.NotFound:
            return await Work(lambda: "caught")
        return "missed"

    async def main() -> str:
        with ThreadPoolExecutor(1) as threads:
            return await perform(routine(), threads)

    assert run(routine()) == asyncio.run(main()) == "caught"


def test_a_client_connects_with_its_first_call(daemon: ScriptedDaemon) -> None:
    """An AsyncClient may be made where no event loop runs, and connects when it is used."""
    client = AsyncClient(daemon.target)
    assert daemon.calls["Session"] == 0

    async def main() -> None:
        ns = await client.namespace(LAYOUT)
        assert (await ns.lookup(IDS[:1])).prefix == 0
        await client.close()
        with pytest.raises(errors.ClientClosed):
            await ns.lookup(IDS[:1])

    asyncio.run(main())
    assert daemon.calls["Session"] == 1
    assert daemon.detached == [1]
