"""Metrics: each that is documented exists and moves, nothing else is exported, and what happened is counted."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, run, until

from tierd.app.finder import Finder
from tierd.app.footprints import FootprintSurvey
from tierd.core.gaps import BINS, CLASSES
from tierd.core.messages import SpillState, Tier
from tierd.testing.faulty import Fault, Operation
from tierd.web.metrics import METRICS, NAMESPACES_SHOWN, PROCESS, Exporter
from tierd_client.layout import Layout
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

Scrape = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]
DOCUMENTED = {metric.name for metric in METRICS} | set(PROCESS)


class Switch:
    """A script that a test turns: every call of `operation` has `fault`."""

    def __init__(self) -> None:
        self.fault, self.operation = Fault.NONE, Operation.PUT

    def next(self, operation: Operation) -> Fault:
        return self.fault if operation is self.operation else Fault.NONE


def scrape(d: Daemon) -> Scrape:
    families = text_string_to_metric_families(Exporter(d.service).text().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families for sample in family.samples
    }


def value(found: Scrape, metric: str, /, **labels: str) -> float:
    return found.get((metric, tuple(sorted(labels.items()))), 0.0)


def metric_of(sample: str) -> str:
    """The metric that a sample belongs to: a histogram has three kinds of them."""
    stem = sample
    for suffix in ("_bucket", "_sum", "_count"):
        stem = stem.removesuffix(suffix)
    return sample if sample in DOCUMENTED else stem


async def live(d: Daemon, script: Switch, scrapes: list[Scrape]) -> None:
    """All that can happen to blocks, scraped in between."""

    def look() -> None:
        scrapes.append(scrape(d))

    look()
    namespace = await d.namespace()
    session = (await d.session()).number
    await d.store_blocks(session, block_ids(1, 2, 3))
    lease = (await d.acquire(session, block_ids(1, 99))).lease
    opened = pb.OpenSequenceRequest(session=session, sequence="s", blocks=block_ids(2))
    await d.blocks.OpenSequence(opened, timeout=DEADLINE_S)
    look()
    await d.release(session, lease)
    await d.blocks.CloseSequence(pb.CloseSequenceRequest(session=session, sequence="s"), timeout=DEADLINE_S)
    await d.evict(block_ids(1))
    await d.readmit(block_ids(1))
    for seed in range(10, 20):  # more than host takes: some are evicted
        await d.store_blocks(session, block_ids(seed, namespace=namespace))
    await d.evict(block_ids(18), None, allow_drop=True)
    look()
    await exceed(d, session, look)
    await hint(d, session, script, look)
    await find(d, session)
    await read_ahead(d, session)
    d.engine.state.settings = replace(d.engine.state.settings, spill_write="on_reuse")
    d.engine.state.storing.stored_from = 2
    for seed in range(30, 40):
        await d.store_blocks(session, block_ids(seed))
    look()
    await FootprintSurvey(d.service.writer, d.service.mover, save=lambda _: None).round()
    await hang(d, script, look)
    script.fault = Fault.DOWN
    await d.evict(block_ids(39))
    await until(lambda: not d.watch.is_up)
    await decline(d, session)
    look()
    script.fault = Fault.NONE


async def decline(d: Daemon, session: int) -> None:
    """More blocks than host takes come, worth no more than those that would be dropped for them: the spill tier
    was down for so long that it is given up."""
    state = d.engine.state
    state.clock.wall_s += state.settings.spill_grace_s
    state.gaps.index = np.ones((CLASSES, BINS))
    await d.reserve(session, block_ids(*range(50, 62)))


async def exceed(d: Daemon, session: int, look: Callable[[], None]) -> None:
    """A sequence has more blocks in hbm than the budget that it then gets."""
    blocks = block_ids(60, 61, chain=True)
    await d.blocks.OpenSequence(pb.OpenSequenceRequest(session=session, sequence="b", blocks=blocks))
    await d.store_blocks(session, blocks, Tier.HBM)
    budget = pb.SequenceBudget(blocks=1, lossy=True)
    await d.blocks.SetBudget(pb.SetBudgetRequest(session=session, sequence="b", budget=budget))
    look()
    await d.blocks.CloseSequence(pb.CloseSequenceRequest(session=session, sequence="b"))


async def hint(d: Daemon, session: int, script: Switch, look: Callable[[], None]) -> None:
    """A block is pinned, another one prefetched from a spill tier that takes its time."""
    await d.evict(block_ids(10))
    await d.blocks.Pin(pb.PinRequest(blocks=block_ids(19)), timeout=DEADLINE_S)
    script.operation, script.fault = Operation.GET, Fault.DELAY
    prefetch = pb.PrefetchRequest(session=session, blocks=block_ids(10))
    await d.blocks.Prefetch(prefetch, timeout=DEADLINE_S)
    look()
    script.operation, script.fault = Operation.PUT, Fault.NONE
    d.faulty.resume.set()
    await d.blocks.Unpin(pb.UnpinRequest(blocks=block_ids(19)), timeout=DEADLINE_S)
    await until(lambda: d.service.occupancy().moves_in_flight == 0)
    d.faulty.resume.clear()


async def find(d: Daemon, session: int) -> None:
    """What the catalog has forgotten is found in the spill store."""
    await d.evict(block_ids(11))
    d.service.writer.step(SpillState(up=True, forgotten=True))
    d.store.shared = True  # type: ignore[misc]
    d.service.finder = Finder(d.service.writer, d.service.mover, d.service.namespaces, timeout_s=5.0, ttl_s=1.0)
    found = await d.acquire(session, block_ids(11, 98), timeout_ms=5000)
    await d.release(session, found.lease)


async def read_ahead(d: Daemon, session: int) -> None:
    """Two blocks that follow another one come up with it; one is read, the other is not."""
    chain = block_ids(70, 71, 72, chain=True)
    await d.store_blocks(session, chain)
    await d.evict(chain)
    d.engine.state.settings = replace(d.engine.state.settings, read_ahead_bytes=64 * BLOCK)
    for seed in (70, 71):
        reply = await d.acquire(session, block_ids(seed, chain=True), timeout_ms=5000)
        await d.release(session, reply.lease)
        await until(lambda: d.service.occupancy().moves_in_flight == 0)
    await d.evict(block_ids(72))
    d.engine.state.settings = replace(d.engine.state.settings, read_ahead_bytes=0)


async def hang(d: Daemon, script: Switch, look: Callable[[], None]) -> None:
    """Stores that do not end: calls wait, moves queue."""
    script.fault = Fault.DELAY
    async with asyncio.TaskGroup() as group:
        evicting = group.create_task(d.evict(block_ids(34, 35, 36, 37)))
        await until(lambda: d.service.mover.queued_moves["spill"] > 0)
        look()
        script.fault = Fault.NONE
        d.faulty.resume.set()
        await evicting


def test_every_documented_metric_moves(tmp_path: Path) -> None:
    """Each documented metric exists and changes as the daemon lives, nothing undocumented is exported, and the
    labels of a metric are those documented."""
    script = Switch()

    async def body(d: Daemon) -> None:
        scrapes: list[Scrape] = []
        await live(d, script, scrapes)
        ballast = np.ones(64 << 20, np.uint8)
        with TemporaryFile():
            scrapes.append(scrape(d))
        scrapes.append(scrape(d))
        assert ballast.all()
        exported = {metric_of(name) for found in scrapes for name, _ in found}
        assert exported == DOCUMENTED
        series = {key for found in scrapes for key in found}
        moved = {metric_of(key[0]) for key in series if len({found.get(key, 0.0) for found in scrapes}) > 1}
        assert DOCUMENTED - moved == set()
        for metric in METRICS:
            names = {tuple(label for label, _ in labels if label != "le") for name, labels in series
                     if metric_of(name) == metric.name}
            assert names == {tuple(sorted(metric.labels))}, metric.name

    run(body, tmp_path, host_blocks=8, hbm_blocks=4, script=script, policy="lrfu", op_timeout_s=5.0)


def test_counters_stand_still_when_idle_and_never_fall(tmp_path: Path) -> None:
    """No counter ever falls, and two scrapes of an idle daemon differ in no counter but processor time."""
    script = Switch()

    async def body(d: Daemon) -> None:
        scrapes: list[Scrape] = []
        await live(d, script, scrapes)
        scrapes += [scrape(d), scrape(d)]
        counters = {key for found in scrapes for key in found if key[0].endswith(("_total", "_bucket", "_count"))}
        for before, after in itertools.pairwise(scrapes):
            assert not [key for key in counters if after.get(key, 0.0) < before.get(key, 0.0)]
        changed = {key[0] for key in counters if scrapes[-1].get(key) != scrapes[-2].get(key)}
        assert changed <= {"process_cpu_seconds_total"}

    run(body, tmp_path, host_blocks=8, hbm_blocks=4, script=script, policy="lrfu", op_timeout_s=5.0)


def test_counts_are_right(tmp_path: Path) -> None:
    """Hits, misses, bytes by edge, failures by reason and calls by status are what happened."""
    script = Switch()

    async def body(d: Daemon) -> None:
        await d.namespace()
        session = (await d.session()).number
        await d.store_blocks(session, block_ids(1, 2, 3))
        await d.acquire(session, block_ids(1, 8, 9))
        await d.evict(block_ids(2, 3))
        await d.readmit(block_ids(2), Tier.HOST)
        script.operation, script.fault = Operation.GET, Fault.VANISHED
        await d.readmit(block_ids(3))
        script.fault = Fault.NONE
        await d.admin.Plan(apb.PlanRequest(tier=2, bytes=1), timeout=DEADLINE_S)
        found = scrape(d)
        assert value(found, "tierd_stored_blocks_total", tier="host") == 3
        assert (value(found, "tierd_hits_total", tier="host"), value(found, "tierd_misses_total")) == (1, 2)
        assert value(found, "tierd_moved_bytes_total", edge="host_to_spill") == 2 * BLOCK
        assert value(found, "tierd_moved_bytes_total", edge="spill_to_host") == BLOCK
        assert value(found, "tierd_move_seconds_count", edge="host_to_spill") == 2
        assert value(found, "tierd_failed_moves_total", edge="spill_to_host", reason="lost") == 1
        assert value(found, "tierd_rpcs_total", rpc="Readmit", code="OK") == 2
        assert value(found, "tierd_rpc_seconds_count", rpc="Evict") == 1
        assert value(found, "tierd_slot_bytes", tier="host", state="used") == 2 * BLOCK
        assert value(found, "tierd_namespace_bytes", namespace="1", name="", tier="host") == 2 * BLOCK
        assert value(found, "tierd_rpcs_in_flight") == 1  # the session

    run(body, tmp_path, script=script)


def test_calls_that_fail_are_counted_by_status(tmp_path: Path) -> None:
    """A refused call counts under its own status, a method that does not exist under none."""

    async def body(d: Daemon) -> None:
        for _ in range(2):
            call = d.blocks.Release(pb.ReleaseRequest(session=0), timeout=DEADLINE_S)
            assert (await call.code()).name == "INVALID_ARGUMENT"
        unknown = d.channel.unary_unary("/tierd.v1.Blocks/Nothing")(b"", timeout=DEADLINE_S)
        assert (await unknown.code()).name == "UNIMPLEMENTED"
        found = scrape(d)
        assert value(found, "tierd_rpcs_total", rpc="Release", code="INVALID_ARGUMENT") == 2
        assert not [key for key in found if "Nothing" in str(key)]

    run(body, tmp_path)


def test_namespaces_are_bounded(tmp_path: Path) -> None:
    """However many namespaces there are, so many series show the largest, and one the sum of all others."""

    async def body(d: Daemon) -> None:
        session = (await d.session()).number
        for number in range(1, NAMESPACES_SHOWN + 4):
            await d.namespace(Layout.opaque(block_bytes=BLOCK, model=str(number)))
            await d.store_blocks(session, block_ids(number, namespace=number))
        await d.store_blocks(session, block_ids(100, namespace=NAMESPACES_SHOWN + 3))
        found = scrape(d)
        shown = [dict(labels) for name, labels in found if name == "tierd_namespace_bytes"]
        host = [one["namespace"] for one in shown if one["tier"] == "host"]
        assert len(host) == NAMESPACES_SHOWN + 1 and str(NAMESPACES_SHOWN + 3) in host
        assert value(found, "tierd_namespace_bytes", namespace="other", name="", tier="host") == 3 * BLOCK

    run(body, tmp_path, hbm_blocks=0)
