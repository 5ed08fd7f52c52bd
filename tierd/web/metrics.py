"""The metrics: one table of everything that is exported, from which docs/metrics.md is made too.

What the engine counts is read from it at the scrape; nothing is kept here. Labels are closed sets but for two that
are bounded: `namespace`, the largest NAMESPACES_SHOWN and the rest together as "other", and `block_bytes`, at most
SIZES_MAX of core/footprints.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from tierd.app.measures import BOUNDS_S, Edge, Histogram, Measures
from tierd.app.service import Service
from tierd.app.shares import NamespaceShare
from tierd.core.messages import OccupancyReply, Tier, TierOccupancy

NAMESPACES_SHOWN = 32
FRESH_S = 1.0

Samples = Iterable[tuple[tuple[str, ...], Any]]
"""Values of the labels, and the number or the Histogram."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a scrape is made of."""

    occupancy: OccupancyReply
    shares: Sequence[NamespaceShare]
    measures: Measures
    serving: dict[Tier, bool]
    queued: dict[str, int]
    calls_waiting: int
    looks: dict[str, int]

    @classmethod
    def of(cls, service: Service) -> Snapshot:
        on, finder = [tier for tier in Tier if service.is_on(tier)], service.finder
        looks = {} if finder is None else {
            "found": finder.found, "absent": finder.looked - finder.found, "skipped": finder.skipped,
        }
        return cls(
            service.occupancy(), service.shares(), service.measures,
            {tier: service.tier_state(tier).serving for tier in on}, service.mover.queued_moves,
            service.writer.calls_waiting, looks,
        )


@dataclass(frozen=True, slots=True)
class Metric:
    """One exported metric; units are in its name, counters end in _total, seconds of durations are histograms."""

    name: str
    labels: tuple[str, ...]
    help: str
    read: Callable[[Snapshot], Samples]

    @property
    def kind(self) -> str:
        if self.name.endswith("_total"):
            return "counter"
        return "histogram" if self.name in ("tierd_move_seconds", "tierd_rpc_seconds") else "gauge"


def _each_tier(read: Callable[[TierOccupancy], float]) -> Callable[[Snapshot], Samples]:
    return lambda snapshot: [((_name(one.tier),), read(one)) for one in snapshot.occupancy.tiers]


def _whole(read: Callable[[Snapshot], float]) -> Callable[[Snapshot], Samples]:
    return lambda snapshot: [((), read(snapshot))]


def _name(tier: Tier) -> str:
    return tier.name.lower()


def _edge(edge: Edge) -> str:
    return f"{_name(edge[0])}_to_{_name(edge[1])}"


def _slots(snapshot: Snapshot) -> Samples:
    for one in snapshot.occupancy.tiers:
        written = one.reserved_bytes - one.stocked_bytes
        states = {
            "free": one.free_bytes, "used": one.used_bytes, "reserved": written, "stocked": one.stocked_bytes,
            "quarantined": one.quarantined_bytes,
        }
        yield from (((_name(one.tier), state), taken) for state, taken in states.items())


def _namespaces(snapshot: Snapshot) -> Samples:
    largest = sorted(snapshot.shares, key=lambda share: share.total_bytes, reverse=True)
    shown, rest = largest[:NAMESPACES_SHOWN], largest[NAMESPACES_SHOWN:]
    for one in snapshot.occupancy.tiers:
        for share in shown:
            number, names = share.namespace.number, share.namespace.names
            yield (str(number), next(iter(names), ""), _name(one.tier)), _bytes_in(share, one.tier)
        if rest:
            yield ("other", "", _name(one.tier)), sum(_bytes_in(share, one.tier) for share in rest)


def _shed(snapshot: Snapshot) -> Samples:
    for one in snapshot.occupancy.tiers:
        if one.tier is Tier.SPILL:
            yield from (((reason,), count) for reason, count in one.shed_total.items())


def _read_ahead(snapshot: Snapshot) -> Samples:
    yield ("used",), snapshot.occupancy.read_ahead_used_total
    yield ("wasted",), snapshot.occupancy.read_ahead_wasted_total


def _footprints(snapshot: Snapshot) -> Samples:
    for one in snapshot.occupancy.tiers:
        yield from (((str(size),), taken) for size, taken in one.footprints.items())


def _failed_moves(snapshot: Snapshot) -> Samples:
    for (edge, cause), count in snapshot.measures.failed_moves.items():
        yield (_edge(edge), cause.value), count


def _bytes_in(share: NamespaceShare, tier: Tier) -> int:
    found = share.tiers[tier]
    return found.used_bytes + found.reserved_bytes


METRICS = (
    Metric("tierd_slot_bytes", ("tier", "state"), "Bytes of slots by state: free, used, reserved (being written), "
           "stocked (held ahead by sessions), quarantined (a process may still touch them, though no block is "
           "there). They add up to the capacity.", _slots),
    Metric("tierd_blocks", ("tier",), "READY copies.", _each_tier(lambda one: one.blocks)),
    Metric("tierd_evictable_blocks", ("tier",), "READY copies that could go now: not pinned, leased or of a "
           "running sequence.", _each_tier(lambda one: one.evictable_blocks)),
    Metric("tierd_leased_blocks", ("tier",), "Copies with at least one lease.",
           _each_tier(lambda one: one.leased_blocks)),
    Metric("tierd_namespace_bytes", ("namespace", "name", "tier"), "Bytes of slots, used and reserved, of the "
           f"{NAMESPACES_SHOWN} largest namespaces, by number and oldest name; of all others as other.",
           _namespaces),
    Metric("tierd_characteristic_age_steps", ("tier",), "Mean idle age of what the tier evicts, in steps; 50 "
           "before it evicted anything.", _each_tier(lambda one: one.characteristic_age_steps)),
    Metric("tierd_tier_serving", ("tier",), "1 while the tier is used, 0 for spill while its breaker is open.",
           lambda snapshot: [((_name(tier),), int(up)) for tier, up in snapshot.serving.items()]),
    Metric("tierd_spill_outages_total", (), "Times that the breaker of the spill tier opened.",
           _whole(lambda snapshot: snapshot.measures.spill_outages)),
    Metric("tierd_hits_total", ("tier",), "Blocks that were read in the tier: leased, or read by the "
           "catalog and reported.",
           _each_tier(lambda one: one.hits_total)),
    Metric("tierd_misses_total", (), "Acquired blocks of which no copy was known.",
           _whole(lambda snapshot: snapshot.occupancy.misses_total)),
    Metric("tierd_stored_blocks_total", ("tier",), "Blocks committed by clients.",
           _each_tier(lambda one: one.stored_total)),
    Metric("tierd_evicted_blocks_total", ("tier",), "Copies that went to make room, moved down or dropped.",
           _each_tier(lambda one: one.evicted_total)),
    Metric("tierd_demoted_blocks_total", ("tier",), "Blocks copied down from the tier.",
           _each_tier(lambda one: one.demoted_total)),
    Metric("tierd_promoted_blocks_total", ("tier",), "Blocks copied up into the tier.",
           _each_tier(lambda one: one.promoted_total)),
    Metric("tierd_shed_blocks_total", ("reason",), "Blocks not stored in the spill tier: rate (over its byte "
           "rate), busy (loads go first), full, unused (spill_write = on_reuse), declined (on_worth).", _shed),
    Metric("tierd_declined_blocks_total", ("tier",), "Blocks not stored because what would have had to go for them "
           "is worth more (admission=learned).", _each_tier(lambda one: one.shed_total["declined"])),
    Metric("tierd_spill_footprint_bytes", ("block_bytes",), "Memory of the spill server that a block of that size "
           "takes, as learnt from the server; of other sizes whole pages are assumed.", _footprints),
    Metric("tierd_spill_looks_total", ("outcome",), "Unknown identities looked for in the spill store: found, "
           "absent, skipped (too much was under way).",
           lambda snapshot: [((outcome,), count) for outcome, count in snapshot.looks.items()]),
    Metric("tierd_moved_bytes_total", ("edge",), "Bytes of blocks that moves carried, by edge (host_to_spill).",
           lambda snapshot: [((_edge(edge),), size) for edge, size in snapshot.measures.moved_bytes.items()]),
    Metric("tierd_failed_moves_total", ("edge", "reason"), "Moves that failed: lost (the source vanished or was "
           "damaged), full, down (the spill tier was not reached), stopping, limit (too many were waiting), fence "
           "(a lent page was not ready), withdrawn (its engine took it back), error.",
           _failed_moves),
    Metric("tierd_move_seconds", ("edge",), "How long a move took on its thread, the wait for one not counted.",
           lambda snapshot: [((_edge(edge),), one) for edge, one in snapshot.measures.move_seconds.items()]),
    Metric("tierd_moves_in_flight", (), "Moves between tiers that the engine has begun and not heard the end of.",
           _whole(lambda snapshot: snapshot.occupancy.moves_in_flight)),
    Metric("tierd_moves_queued", ("lane",),
           "Of those, moves that no thread has taken: copy (memory), device (hbm), spill.",
           lambda snapshot: [((lane,), count) for lane, count in snapshot.queued.items()]),
    Metric("tierd_calls_waiting", (), "Calls that wait for moves or for room. Commands themselves never queue: the "
           "writer carries each out as it comes.", _whole(lambda snapshot: snapshot.calls_waiting)),
    Metric("tierd_rpcs_in_flight", (), "Calls under way, the sessions' own streams included.",
           _whole(lambda snapshot: snapshot.measures.rpcs_in_flight)),
    Metric("tierd_rpcs_total", ("rpc", "code"), "Calls that have ended, by their gRPC status.",
           lambda snapshot: list(snapshot.measures.rpc_codes.items())),
    Metric("tierd_rpc_seconds", ("rpc",), "How long calls took, with the waits that they asked for; not Session.",
           lambda snapshot: [((rpc,), one) for rpc, one in snapshot.measures.rpc_seconds.items()]),
    Metric("tierd_identities", (), "Identities with at least one copy.",
           _whole(lambda snapshot: snapshot.occupancy.identities)),
    Metric("tierd_ghosts", (), "Records without a copy.", _whole(lambda snapshot: snapshot.occupancy.ghosts)),
    Metric("tierd_sessions", (), "Client processes, those of before a restart included while they may live.",
           _whole(lambda snapshot: snapshot.occupancy.sessions)),
    Metric("tierd_sequences", (), "Running requests.", _whole(lambda snapshot: snapshot.occupancy.sequences)),
    Metric("tierd_budgeted_sequences", (), "Running requests that have a budget of hbm blocks.",
           _whole(lambda snapshot: snapshot.occupancy.budgeted_sequences)),
    Metric("tierd_budgeted_blocks", (), "Blocks in hbm that count for the budget of their sequence.",
           _whole(lambda snapshot: snapshot.occupancy.budgeted_blocks)),
    Metric("tierd_over_budget_blocks_total", ("tier",), "Copies that left hbm for the budget of their sequence.",
           lambda snapshot: [((_name(one.tier),), one.over_budget_total) for one in snapshot.occupancy.tiers
                             if one.tier is Tier.HBM]),
    Metric("tierd_leases", (), "Blocks under lease, over all tiers.",
           _whole(lambda snapshot: snapshot.occupancy.leases)),
    Metric("tierd_pinned_blocks", (), "Identities that are pinned.",
           _whole(lambda snapshot: snapshot.occupancy.pinned_blocks)),
    Metric("tierd_pinned_bytes", (), "Bytes of slots that pins take of their quota.",
           _whole(lambda snapshot: snapshot.occupancy.pinned_bytes)),
    Metric("tierd_prefetches", (), "Prefetches that are not done.",
           _whole(lambda snapshot: snapshot.occupancy.prefetches)),
    Metric("tierd_read_ahead_blocks_total", ("outcome",), "Blocks brought up from the spill tier before anybody "
           "asked for them: used (read afterwards), wasted (gone unread).", _read_ahead),
    Metric("tierd_step", (), "The clock of accesses.", _whole(lambda snapshot: snapshot.occupancy.step)),
)
"""Everything that is exported, beside PROCESS."""

PROCESS = {
    "process_resident_memory_bytes": "Resident memory of the daemon, its shared memory included where touched.",
    "process_cpu_seconds_total": "Processor time of the daemon.",
    "process_open_fds": "File descriptors that are open.",
}
"""From prometheus_client's own collector, under its names."""


class Exporter:
    """The text that /metrics answers with. A scrape looks at every row of the catalog, so its text is given again
    for FRESH_S: nobody can keep the daemon busy by asking."""

    def __init__(self, service: Service) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Collector(service))
        self._text, self._made_at = b"", float("-inf")

    def text(self) -> bytes:
        """In the format of prometheus_client's CONTENT_TYPE_LATEST."""
        if time.monotonic() - self._made_at >= FRESH_S:
            self._text, self._made_at = generate_latest(self._registry), time.monotonic()
        return self._text


class _Collector:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Any]:
        snapshot = Snapshot.of(self._service)
        yield from (_family(metric, snapshot) for metric in METRICS)
        for family in self._process.collect():
            if any(sample.name in PROCESS for sample in family.samples):
                yield family


def _family(metric: Metric, snapshot: Snapshot) -> Any:
    if metric.kind == "histogram":
        histograms = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
        for labels, one in metric.read(snapshot):
            histograms.add_metric(labels, _buckets(one), one.sum_s)
        return histograms
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: Any = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in metric.read(snapshot):
        family.add_metric(labels, value)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    return list(zip(bounds, map(float, accumulate(histogram.counts)), strict=True))
