"""The connector's side in a worker: its pages, loads before a step and stores after it."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np

from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.transfers import Finished, Transfers
from tierd_client.integrations.vllm.connector_steps import Done, LoadJob, Step, TierdStats
from tierd_client.integrations.vllm.geometry import layouts_of, of_epoch, pages_of
from tierd_client.integrations.vllm.versions import OffloadingConfig

log = logging.getLogger("tierd")


class ConnectorWorker:
    """Of one rank."""

    def __init__(self, config: OffloadingConfig, options: Options, *, load_async: bool, kv_caches: Any) -> None:
        """`kv_caches`: as vLLM's offloading gives them to a worker."""
        layouts = layouts_of(config, options)
        self._rank = config.parallel.rank % len(layouts)
        self._layout = layouts[self._rank]
        self._stores_here = not config.replicated_layout or config.parallel.rank == 0
        self._load_async = load_async
        self._link = Link(options, f"vllm-worker-{config.parallel.rank}-{config.engine_id}", [self._layout])
        self._transfers = Transfers(self._link, pages_of(self._layout, kv_caches))
        self._loading: dict[int, LoadJob] = {}
        self._loaded: set[str] = set()
        self._unfilled: set[int] = set()
        self._done = Done()
        self._stats = TierdStats()

    def load(self, step: Step) -> None:
        """Begins the step's loads; without `load_async` they are done when it returns."""
        for job in step.loads:
            self._loading[job.job] = job
            self._transfers.load(job.job, [(0, job.ranks[self._rank], np.array(job.pages, np.int64))])
        if not self._load_async:
            self._wait({job.job for job in step.loads})

    def store(self, step: Step) -> None:
        """Stores the step's new blocks; their pages may change when it returns."""
        for job in step.stores:
            if self._stores_here:
                runs = [(run, np.array(pages, np.int64)) for run, pages in job.runs]
                self._transfers.store(job.job, of_epoch(self._layout, job.epoch), runs, job.priority)
            else:
                self._done.jobs[job.job] += 1
        self._wait({job.job for job in step.stores})

    def loaded_requests(self) -> set[str]:
        """Requests whose loads between steps have ended, also those that failed."""
        self._collect()
        loaded, self._loaded = self._loaded, set()
        return loaded

    def unfilled_pages(self) -> set[int]:
        """Pages of loads that failed, since this was last asked: what is in them is to be computed."""
        unfilled, self._unfilled = self._unfilled, set()
        return unfilled

    def done(self) -> Done | None:
        """Jobs that ended since this was last asked."""
        done, self._done = self._done, Done()
        return done if done.jobs else None

    def stats(self) -> TierdStats | None:
        """What was moved since this was last asked."""
        stats, self._stats = self._stats, TierdStats()
        return None if stats.is_empty() else stats

    def close(self) -> None:
        self._transfers.close()
        self._link.close()

    def _wait(self, jobs: set[int]) -> None:
        self._transfers.wait(jobs)
        self._collect()

    def _collect(self) -> None:
        for finished in self._transfers.finished():
            self._done.jobs[finished.job] += 1
            load = self._loading.pop(finished.job, None)
            if load is None:
                self._stats.count(stored_bytes=finished.bytes, store_seconds=finished.seconds)
            else:
                self._loaded_one(load, finished)

    def _loaded_one(self, load: LoadJob, finished: Finished) -> None:
        if self._load_async:
            self._loaded.add(load.request)
        if finished.error:
            log.warning("%s: %d blocks are computed again: %s", load.request, len(load.pages), finished.error)
            self._unfilled.update(load.pages)
            self._done.unfilled.update(load.pages)
            self._stats.count(failed_loads=1)
        else:
            self._stats.count(loaded_bytes=finished.bytes, load_seconds=finished.seconds)
