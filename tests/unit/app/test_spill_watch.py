"""The breaker: finds the server down, probes it, brings it back, and notices that it forgot."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from app_moves import DEADLINE_S, SIZE, Results, arena, block, make_mover, move
from structlog.testing import capture_logs

from tierd.adapters.spill_memory import MemorySpillStore
from tierd.app import spill_watch
from tierd.app.mover import Mover
from tierd.app.spill_watch import SpillWatch
from tierd.app.writer import Writer
from tierd.core.engine import Engine, EngineSettings, Tables, TierSpec
from tierd.core.errors import SpillDown
from tierd.core.messages import Tier
from tierd.ports import SpillHealth
from tierd.testing.faulty import Fault, FaultySpillStore, Operation


class Switch:
    """A script that a test turns: the fault of every probe, or none."""

    def __init__(self) -> None:
        self.fault = Fault.NONE
        self.operations = set(Operation)

    def next(self, operation: Operation) -> Fault:
        return self.fault if operation in self.operations else Fault.NONE


class Bench:
    """A watch over a store that fails on demand, with an engine that is told."""

    def __init__(self, probe_up_s: float = 0.02) -> None:
        tiers = (TierSpec(Tier.HOST, ((1, 4 * SIZE),)), TierSpec(Tier.SPILL, capacity_bytes=1 << 20))
        self.engine = Engine(EngineSettings(tiers, policy="lru"), Tables.private(64))
        self.writer = Writer(self.engine, lambda: 0.0)
        self.switch = Switch()
        self.memory = MemorySpillStore(1 << 20)
        self.store = FaultySpillStore(self.memory, self.switch)
        self.results = Results()
        self.mover: Mover = make_mover(self.results, self.store, host=arena(Tier.HOST))
        self.writer.carry_out_with(self.mover.submit)
        self.changes: list[bool] = []
        self.changed = asyncio.Event()
        self.watch = SpillWatch(self.store, self.writer, self.mover, self._note, probe_up_s=probe_up_s)

    def _note(self, up: bool) -> None:
        self.changes.append(up)
        self.changed.set()

    @property
    def engine_up(self) -> bool:
        return self.engine.state.spill_up

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                await asyncio.sleep(0.001)


def watched(body: Callable[[Bench], Awaitable[None]], probe_up_s: float = 0.02) -> None:
    async def main() -> None:
        bench = Bench(probe_up_s)
        running = asyncio.ensure_future(bench.watch.run())
        try:
            async with asyncio.timeout(30):
                await body(bench)
        finally:
            running.cancel()
            await bench.mover.stop(DEADLINE_S)

    asyncio.run(main())


def test_starts_down_until_it_answers() -> None:
    """Before the first probe has answered the engine stores nothing below and moves to it fail."""

    async def body() -> None:
        bench = Bench()
        assert not bench.watch.is_up and not bench.engine_up
        bench.mover.submit([move(1, Tier.HOST, Tier.SPILL, data=block(0))])
        assert not (await bench.results.of(1))[1].ok
        await bench.watch.probe()
        assert bench.watch.is_up and bench.engine_up and bench.changes == [True]
        await bench.mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_a_server_that_was_never_there_is_in_the_log_once() -> None:
    """A start without its server says `spill_down` with the reason, once, however often it is probed; a start that
    wants no server says nothing."""

    async def body() -> None:
        bench = Bench()
        unwanted = SpillWatch(bench.store, bench.writer, bench.mover, bench._note, expected=False)
        bench.switch.fault = Fault.DOWN
        with capture_logs() as lines:
            for _ in range(3):
                await unwanted.probe()
                await bench.watch.probe()
        down = [line for line in lines if line["event"] == "spill_down"]
        assert [line["reason"] for line in down] == [bench.watch.detail]
        await bench.mover.stop(DEADLINE_S)

    asyncio.run(body())


def test_a_failing_move_takes_it_down_and_a_probe_brings_it_back() -> None:
    """A move that finds the server down shuts it for everybody; it is used again within two seconds."""

    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.watch.is_up)
        bench.switch.fault = Fault.DOWN
        bench.mover.submit([move(1, Tier.HOST, Tier.SPILL, data=block(0))])
        await bench.until(lambda: not bench.watch.is_up)
        assert not bench.engine_up and "down" in bench.watch.detail
        await bench.until(lambda: bench.store.injected[Fault.DOWN] >= 4)
        bench.switch.fault = Fault.NONE
        began = asyncio.get_running_loop().time()
        await bench.until(lambda: bench.watch.is_up and bench.engine_up)
        assert asyncio.get_running_loop().time() - began < 2.0
        assert bench.changes == [True, False, True]
        bench.mover.submit([move(2, Tier.HOST, Tier.SPILL, data=block(0))])
        assert (await bench.results.of(2))[2].ok

    watched(body, probe_up_s=30)


def test_a_failing_probe_takes_it_down() -> None:
    """A dead server is found although nobody moves anything, and then not tried by moves."""

    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.watch.is_up)
        bench.switch.operations = {Operation.PROBE}
        bench.switch.fault = Fault.DOWN
        await bench.until(lambda: not bench.engine_up)
        assert bench.changes == [True, False]
        bench.mover.submit([move(1, Tier.HOST, Tier.SPILL, data=block(0))])
        assert not (await bench.results.of(1))[1].ok and not bench.memory.values

    watched(body)


def test_a_probe_that_hangs_ends_by_its_deadline() -> None:
    """A server that accepts and never answers is down within the probe's deadline."""

    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.watch.is_up)
        bench.switch.fault = Fault.DELAY
        began = asyncio.get_running_loop().time()
        await bench.until(lambda: not bench.watch.is_up)
        assert asyncio.get_running_loop().time() - began < spill_watch.PROBE_DEADLINE_S + 2
        bench.store.resume.set()

    watched(body)


def test_a_server_that_answers_moves_is_not_down_for_a_late_probe() -> None:
    """A slow server stays up for as long as moves succeed, however late its answers to probes; then it is down."""

    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.watch.is_up)
        bench.switch.operations, bench.switch.fault = {Operation.PROBE}, Fault.DELAY
        ends_at, number = asyncio.get_running_loop().time() + 3 * spill_watch.PROBE_DEADLINE_S, 0
        while asyncio.get_running_loop().time() < ends_at:
            number += 1
            bench.mover.submit([move(number, Tier.HOST, Tier.SPILL, data=block(0))])
            assert (await bench.results.of(number))[number].ok
            await asyncio.sleep(0.02)
        assert bench.changes == [True]
        await bench.until(lambda: not bench.watch.is_up)
        bench.store.resume.set()

    watched(body)


def test_a_flushed_server_is_told_to_the_engine() -> None:
    """A server whose marker is gone stays up, and the engine forgets what it believed to be there."""

    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.watch.is_up)
        told: list[bool] = []
        step = bench.engine.step

        def note(command: object, now: float) -> object:
            told.append(getattr(command, "forgotten", False))
            return step(command, now)  # type: ignore[arg-type]

        bench.engine.step = note  # type: ignore[method-assign, assignment]
        bench.memory.flush()
        await bench.until(lambda: True in told)
        assert bench.watch.is_up and bench.changes == [True]

    watched(body)


def test_a_store_that_breaks_its_contract_is_down() -> None:
    """A probe that raises what it may not raise counts as a failed probe, and the watch goes on."""

    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.watch.is_up)
        right = bench.store.probe

        def wrong(deadline_s: float) -> SpillHealth:
            raise ValueError("a bug of the adapter")

        bench.store.probe = wrong  # type: ignore[method-assign]
        await bench.until(lambda: not bench.watch.is_up)
        assert "ValueError" in bench.watch.detail
        bench.store.probe = right  # type: ignore[method-assign]
        await bench.until(lambda: bench.watch.is_up)

    watched(body)


def test_notes_are_logged_once() -> None:
    """What a probe has to say of the server is logged when it changes, not at each probe."""

    async def body(bench: Bench) -> None:
        answers = ["a", "a", "b", "b", ""]

        def noted(deadline_s: float) -> SpillHealth:
            if not answers:
                raise SpillDown("all is said")
            return SpillHealth(same=True, detail=answers.pop(0))

        with capture_logs() as told:
            await bench.until(lambda: bench.watch.is_up)
            bench.store.probe = noted  # type: ignore[method-assign]
            await bench.until(lambda: not bench.watch.is_up)
        notes = [line["detail"] for line in told if line["event"] == "spill_notes"]
        assert notes == ["a", "b", "none any more"]

    watched(body)


def test_the_pause_doubles_to_its_maximum() -> None:
    """While the server stays down it is probed less and less often, at least once a second."""

    async def body(bench: Bench) -> None:
        await bench.until(lambda: bench.watch.is_up)
        bench.switch.fault = Fault.DOWN
        await bench.until(lambda: not bench.watch.is_up)
        assert bench.watch._pause_s <= 2 * spill_watch.PROBE_DOWN_FIRST_S
        before = bench.store.injected[Fault.DOWN]
        await bench.until(lambda: bench.watch._pause_s == spill_watch.PROBE_DOWN_MAX_S)
        assert bench.store.injected[Fault.DOWN] - before <= 3

    watched(body)
