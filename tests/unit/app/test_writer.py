"""The writer: one thread, errors to the caller, waits that end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import numpy as np
import pytest
import structlog
from app_moves import DEADLINE_S, SIZE, identity

from tierd.app.line import Turn
from tierd.app.writer import Writer
from tierd.core import messages as m
from tierd.core.engine import Engine, EngineSettings, Tables, TierSpec
from tierd.core.errors import NotFound


class Held:
    """Takes effects and keeps them: a mover whose moves end when the test says so."""

    def __init__(self, writer: Writer) -> None:
        self.moves: list[m.Move] = []
        self._writer = writer
        writer.carry_out_with(self.submit)

    def submit(self, effects: Sequence[m.Effect]) -> None:
        self.moves += [effect for effect in effects if isinstance(effect, m.Move)]

    def finish(self, count: int = 1, ok: bool = True) -> None:
        done, self.moves = self.moves[:count], self.moves[count:]
        self._writer.finish([m.MoveResult(move.op, ok) for move in done])


def engine() -> Engine:
    tiers = (TierSpec(m.Tier.HOST, ((1, 4 * SIZE),)), TierSpec(m.Tier.SPILL, capacity_bytes=1 << 20))
    return Engine(EngineSettings(tiers, policy="lru"), Tables.private(64))


def ids(*seeds: int) -> m.Ids:
    return m.Ids(1, 0, np.frombuffer(b"".join(map(identity, seeds)), np.uint8).reshape(-1, 32))


def full_writer() -> tuple[Writer, Held]:
    """A writer whose host tier is full of blocks 1 to 4."""
    writer = Writer(engine(), lambda: 1000.0)
    held = Held(writer)
    writer.step(m.OpenSession(1))
    reply = writer.ask(m.Reserve(1, ids(1, 2, 3, 4), SIZE), m.ReserveReply)
    writer.step(m.Commit(1, ids(1, 2, 3, 4).ids, reply.generations, np.zeros(4, np.uint64)))
    return writer, held


def now() -> float:
    return asyncio.get_running_loop().time()


def test_what_no_reply_depends_on_comes_after_it() -> None:
    """A command that is answered first is complete, and shown, by the loop's next turn or the next command."""

    async def body() -> None:
        writer, shown = Writer(engine(), lambda: 1000.0), list[str]()
        Held(writer)
        writer.tell(lambda command: shown.append(type(command).__name__))
        writer.step(m.OpenSession(1))
        for seed in (1, 2):
            reply = writer.ask(m.Reserve(1, ids(seed), SIZE), m.ReserveReply)
            commit = m.Commit(1, ids(seed).ids, reply.generations, np.zeros(1, np.uint64))
            assert writer.ask_first(commit, m.Outcomes).outcomes.tolist() == [m.Committed.COMMITTED]
            assert shown[-1] == "Reserve"
            if seed == 1:
                await asyncio.sleep(0)
                assert shown[-1] == "Commit"
            view = writer.ask(m.Describe(ids(seed).ids), m.BlockPage).blocks[0]
            assert shown[-2:] == ["Commit", "Describe"]
            assert view is not None and view.record.touches == 1

    asyncio.run(body())


def test_another_thread_is_refused() -> None:
    """A command from another thread than the writer's raises and does not reach the engine."""
    writer = Writer(engine(), lambda: 0.0)
    caught: list[BaseException] = []

    def other() -> None:
        try:
            writer.step(m.OpenSession(1))
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "another thread" in str(caught[0])
    assert writer.ask(m.Occupancy(), m.OccupancyReply).sessions == 0


def test_errors_go_to_the_caller() -> None:
    """What the engine refuses is raised to who asked, and the next command is served."""
    writer = Writer(engine(), lambda: 0.0)
    with pytest.raises(NotFound):
        writer.step(m.Release(7, (1,)))
    assert writer.ask(m.OpenSession(7), m.Done).count == 0


def test_a_fault_is_logged_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no error of the daemon is logged and raised; the writer goes on."""
    inner = engine()
    writer = Writer(inner, lambda: 0.0)
    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(inner, "step", lambda command, now: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.step(m.Occupancy())
        writer.finish([m.MoveResult(1, True)])
    assert [line["command"] for line in logs if line["event"] == "engine_fault"] == ["Occupancy", "Finish"]
    assert writer.ask(m.Occupancy(), m.OccupancyReply).sessions == 0


def test_effects_need_a_mover() -> None:
    """A writer without a mover says so when the first effect comes, rather than losing it."""
    writer = Writer(engine(), lambda: 0.0)
    writer.step(m.OpenSession(1))
    reply = writer.ask(m.Reserve(1, ids(1, 2, 3, 4), SIZE), m.ReserveReply)
    writer.step(m.Commit(1, ids(1, 2, 3, 4).ids, reply.generations, np.zeros(4, np.uint64)))
    with pytest.raises(RuntimeError, match="before the writer has a mover"):
        writer.step(m.Reserve(1, ids(5), SIZE))


def test_ask_checks_the_kind_of_reply() -> None:
    """A reply of another type than its command has is a bug that is named."""
    with pytest.raises(TypeError, match="Occupancy was answered by OccupancyReply"):
        Writer(engine(), lambda: 0.0).ask(m.Occupancy(), m.Done)


def test_wait_ends_with_a_move() -> None:
    """A wait for moves ends when one of them has ended, and sees what it changed."""

    async def body() -> None:
        writer, held = full_writer()
        reply = writer.ask(m.Reserve(1, ids(5, 6), SIZE), m.ReserveReply)
        assert len(reply.waiting) == 2 == writer.moves_in_flight
        waiting = asyncio.ensure_future(writer.wait(reply.waiting, now() + DEADLINE_S))
        await asyncio.sleep(0)
        assert not waiting.done()
        held.finish(1)
        async with asyncio.timeout(DEADLINE_S):
            await waiting
        assert writer.moves_in_flight == 1
        again = writer.ask(m.Reserve(1, ids(5), SIZE, retry=True), m.ReserveReply)
        assert again.outcomes[0] == m.Reserved.GRANTED

    asyncio.run(body())


def test_wait_takes_others_along() -> None:
    """Moves that end soon after the awaited one are awaited with it, not one by one."""

    async def body() -> None:
        writer, held = full_writer()
        reply = writer.ask(m.Reserve(1, ids(5, 6), SIZE), m.ReserveReply)
        waiting = asyncio.ensure_future(writer.wait(reply.waiting, now() + DEADLINE_S, together_s=DEADLINE_S))
        await asyncio.sleep(0)
        held.finish(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        held.finish(1)
        async with asyncio.timeout(DEADLINE_S / 2):
            await waiting
        assert writer.moves_in_flight == 0

    asyncio.run(body())


def test_wait_ends_at_its_deadline() -> None:
    """A wait for moves that never end, or for a change that never comes, ends at its deadline."""

    async def body() -> None:
        writer, _ = full_writer()
        reply = writer.ask(m.Reserve(1, ids(5), SIZE), m.ReserveReply)
        for ops in (reply.waiting, ()):
            began = now()
            await writer.wait(ops, began + 0.05)
            assert 0.04 < now() - began < 5
            await writer.wait(ops, began)
        assert writer.moves_in_flight == 1

    asyncio.run(body())


def test_wait_for_moves_that_ended() -> None:
    """A wait for a move that is no longer under way returns at once."""

    async def body() -> None:
        writer, held = full_writer()
        reply = writer.ask(m.Reserve(1, ids(5, 6), SIZE), m.ReserveReply)
        held.finish(1)
        async with asyncio.timeout(1):
            await writer.wait(reply.waiting, now() + DEADLINE_S)

    asyncio.run(body())


def test_wait_without_moves_ends_with_a_change() -> None:
    """A wait for no move ends with the next commit, which is what makes a block that is being written READY."""

    async def body() -> None:
        writer, _ = full_writer()
        writer.step(m.Evict(ids(1), None, allow_drop=True))
        reply = writer.ask(m.Reserve(1, ids(5), SIZE), m.ReserveReply)
        waiting = asyncio.ensure_future(writer.wait((), now() + DEADLINE_S))
        await asyncio.sleep(0)
        writer.step(m.Lookup(ids(5)))
        await asyncio.sleep(0)
        assert not waiting.done()
        writer.step(m.Commit(1, ids(5).ids, reply.generations, np.zeros(1, np.uint64)))
        async with asyncio.timeout(DEADLINE_S):
            await waiting

    asyncio.run(body())


def test_waiters_are_woken_when_finish_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in the engine's Finish leaves nobody waiting."""

    async def body() -> None:
        inner = engine()
        writer = Writer(inner, lambda: 0.0)
        held = Held(writer)
        writer.step(m.OpenSession(1))
        reply = writer.ask(m.Reserve(1, ids(1, 2, 3, 4), SIZE), m.ReserveReply)
        writer.step(m.Commit(1, ids(1, 2, 3, 4).ids, reply.generations, np.zeros(4, np.uint64)))
        reply = writer.ask(m.Reserve(1, ids(5), SIZE), m.ReserveReply)
        waiting = asyncio.ensure_future(writer.wait(reply.waiting, now() + DEADLINE_S))
        await asyncio.sleep(0)
        monkeypatch.setattr(inner, "step", lambda command, now: 1 / 0)
        held.finish(1)
        async with asyncio.timeout(DEADLINE_S):
            await waiting

    asyncio.run(body())


def test_two_waiters_of_one_move() -> None:
    """Everybody who waits for a move is woken by its end, also after one of them gave up."""

    async def body() -> None:
        writer, held = full_writer()
        reply = writer.ask(m.Reserve(1, ids(5), SIZE), m.ReserveReply)
        waiters = [asyncio.ensure_future(writer.wait(reply.waiting, now() + DEADLINE_S)) for _ in range(3)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        await asyncio.sleep(0)
        held.finish(1)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.gather(*waiters[1:])

    asyncio.run(body())


class Reserving(Turn):
    """A call that wants one slot and waits for it."""

    def __init__(self, writer: Writer, block: int) -> None:
        self._writer, self._block = writer, block
        self.tries = 0
        super().__init__(self.ask(retry=False).waiting)

    @property
    def granted(self) -> bool:
        return bool(self.reply.outcomes[0] == m.Reserved.GRANTED)

    def ask(self, *, retry: bool) -> m.ReserveReply:
        self.reply = self._writer.ask(m.Reserve(1, ids(self._block), SIZE, retry=retry), m.ReserveReply)
        return self.reply

    def try_again(self) -> bool:
        self.tries += 1
        self.waiting = frozenset(self.ask(retry=True).waiting)
        return self.granted


def test_room_is_for_who_waits() -> None:
    """A slot that a move's end made free goes to the call that waits for it, not to one that comes then."""
    writer, held = full_writer()
    waiting = Reserving(writer, 5)
    with writer.line.stand(waiting):
        held.finish(1)
        late = Reserving(writer, 6)
        assert waiting.granted and not late.granted
        assert writer.line.go(waiting) is True and waiting.tries == 1


def test_room_is_for_the_first() -> None:
    """Of two calls that wait the later one, trying again, gets nothing before the first has its slot."""
    writer, held = full_writer()
    first, second = Reserving(writer, 5), Reserving(writer, 6)
    with writer.line.stand(first), writer.line.stand(second):
        held.finish(1)
        assert writer.line.go(second) is False
        assert first.granted and not second.granted


def test_who_gets_nothing_is_not_asked_for_everybody() -> None:
    """A call tries again before others only when a move has ended that it waits for, and after a rest."""
    writer, held = full_writer()
    waiting = Reserving(writer, 5)
    with writer.line.stand(waiting):
        Reserving(writer, 6)
        assert waiting.tries == 0
        waiting.rests_until_s = float("inf")
        held.finish(1)
        assert Reserving(writer, 7).granted and waiting.tries == 0


def test_the_failure_of_who_waits_is_its_own() -> None:
    """What a call raises when it is let go first is raised to it, and the one that let it go is served."""
    writer, held = full_writer()
    waiting = Reserving(writer, 5)
    with writer.line.stand(waiting):
        waiting.ask = lambda retry: writer.step(m.Release(7, (1,)))  # type: ignore[method-assign,assignment,misc]
        held.finish(1)
        assert Reserving(writer, 6).granted
        with pytest.raises(NotFound):
            writer.line.go(waiting)
