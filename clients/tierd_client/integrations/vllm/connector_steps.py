"""What goes between the connector's two sides: jobs with a step of the engine, and what has become of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tierd_client.handover import Places
from tierd_client.integrations.keys import Run
from tierd_client.integrations.vllm.versions import (
    KVConnectorMetadata,
    KVConnectorStats,
    KVConnectorWorkerMetadata,
)
from tierd_client.outcomes import Priority


@dataclass
class LoadJob:
    """Blocks under a lease, and the engine's pages for them. `ranks`: of each rank where they lie."""

    job: int
    request: str
    ranks: list[Places]
    pages: list[int]


@dataclass
class StoreJob:
    """New blocks, each run with the pages that it lies in."""

    job: int
    runs: list[tuple[Run, list[int]]]
    priority: Priority | None
    epoch: str


@dataclass
class Step(KVConnectorMetadata):
    """From the scheduler to all workers, with a step of the engine."""

    loads: list[LoadJob] = field(default_factory=list)
    stores: list[StoreJob] = field(default_factory=list)


@dataclass
class Done(KVConnectorWorkerMetadata):
    """From the workers to the scheduler: jobs, each with how many workers have finished it, and pages that their
    loads have not filled."""

    jobs: Counter[int] = field(default_factory=Counter)
    unfilled: set[int] = field(default_factory=set)

    def aggregate(self, other: Done) -> Done:
        return Done(self.jobs + other.jobs, self.unfilled | other.unfilled)


class TierdStats(KVConnectorStats):
    """What workers have moved since they were last asked: bytes and seconds each way, and loads that failed."""

    def count(self, **amounts: float) -> None:
        for name, amount in amounts.items():
            self.data[name] = self.data.get(name, 0) + amount

    def reset(self) -> None:
        self.data.clear()

    def aggregate(self, other: Any) -> TierdStats:
        self.count(**other.data)
        return self

    def reduce(self) -> dict[str, int | float]:
        return {name: round(amount, 6) for name, amount in self.data.items()}

    def is_empty(self) -> bool:
        return not self.data
