"""tierd as a secondary tier below vLLM's own CPU tier: what that tier takes is kept, shared and spilled to Redis.

    "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 17179869184,
      "secondary_tiers": [{"type": "TierdTier", "module_path": "tierd_client.integrations.vllm.tier",
                           "address": "unix:///run/tierd/tierd.sock"}]}

vLLM has CUDA machines only for that spec. The tier's other parameters are the options. Its chunks are those of the
CPU tier, all ranks of a block in one.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.prompts import Answer, Prompt
from tierd_client.integrations.rates import Rates
from tierd_client.integrations.reports import report
from tierd_client.integrations.request_hints import Hints
from tierd_client.integrations.search import Patience
from tierd_client.integrations.transfers import Transfers
from tierd_client.integrations.vllm.geometry import chunk_layout, of_epoch
from tierd_client.integrations.vllm.offloading import RESULTS, learn
from tierd_client.integrations.vllm.versions import (
    JobResult,
    LookupResult,
    Medium,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    SecondaryTierManager,
    TransferJob,
    say_version,
)
from tierd_client.paged import PagedKV


@dataclass
class _Request:
    """One request. `stores`: its blocks are not those of weights of before a reset; `jobs`: that are not over."""

    name: str
    prompt: Prompt
    hints: Hints
    stores: bool = True
    jobs: int = 0
    finished: bool = False


@dataclass
class _Job:
    """A load into vLLM's CPU tier, or a store out of it."""

    request: _Request
    prompt: Prompt
    loads: bool


class TierdTier(SecondaryTierManager):
    """Runs in the scheduler's process. For the daemon it waits as long as `Patience` has; `drain_jobs` longer."""

    medium = Medium.STORAGE

    def __init__(
        self, offloading_spec: Any, primary_kv_view: memoryview, tier_type: str, backpressure_detector: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        say_version()
        config, chosen = offloading_spec.config, Options.of(options)
        chunks = np.asarray(primary_kv_view).view(np.uint8).reshape(len(primary_kv_view), -1)
        self._layout = self._first_layout = chunk_layout(config, chosen, chunks.shape[-1])
        self._group_numbers = {group.group_id: number for number, group in enumerate(config.groups)}
        self._link = Link(chosen, f"vllm-tier-{config.engine_id}", [self._layout])
        pages = [PagedKV(self._layout, [chunks], group=number) for number in range(len(config.groups))]
        self._transfers = Transfers(self._link, pages)
        self._rates = Rates()
        self._patience = Patience()
        self._requests: dict[str, _Request] = {}
        self._jobs: dict[int, _Job] = {}
        self._refused: list[JobResult] = []

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        name, hints = req_context.req_id, Hints.of(req_context.kv_transfer_params)
        self._requests[name] = _Request(name, self._prompt(), hints)
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        request = self._requests.get(req_context.req_id)
        if request is None:
            return LookupResult.MISS
        request.stores = True  # it begins, or begins anew
        learn(request.prompt, req_context, self._group_numbers)
        return RESULTS[request.prompt.answer(key)]

    def submit_store(self, job_metadata: TransferJob) -> None:
        """What the daemon has, and what it has no room for, is left out; the job succeeds."""
        request = self._requests[job_metadata.req_context.req_id]
        learn(request.prompt, job_metadata.req_context, self._group_numbers)
        chunks = _chunks(job_metadata)
        missing = request.prompt.missing(list(chunks), ()) if request.stores else []
        runs = [(run, np.array([chunks[key] for key in run.keys], np.int64)) for run in missing]
        self._begin(job_metadata, request, loads=False)
        self._transfers.store(job_metadata.job_id, self._layout, runs, request.hints.priority)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Of what was found; the job fails where that is not leased any more, and touches nothing."""
        request = self._requests.get(job_metadata.req_context.req_id)
        chunks = _chunks(job_metadata)
        if request is None or any(request.prompt.answer(key) is not Answer.LEASED for key in chunks):
            self._refused.append(JobResult(job_metadata.job_id, False))
            return
        ordered = request.prompt.in_order(list(chunks))
        (groups,) = request.prompt.load(ordered)
        numbers = iter([chunks[key] for key in ordered])
        parts = [(group, places, np.fromiter(numbers, np.int64, len(places))) for group, places in groups]
        self._begin(job_metadata, request, loads=True)
        self._transfers.load(job_metadata.job_id, parts)

    def get_finished_jobs(self) -> list[JobResult]:
        results, self._refused = self._refused, []
        for done in self._transfers.finished():
            self._end(self._jobs.pop(done.job))
            results.append(JobResult(
                done.job, not done.error, transfer_time=done.seconds, transfer_bytes=done.bytes or None))
        return results

    def on_request_finished(self, req_context: ReqContext) -> None:
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.finished = True
            if not request.prompt.loading:
                request.prompt.release()
            self._forget(request)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        self._patience.next_step()

    def drain_jobs(self) -> None:
        """Until no job touches a chunk any more. vLLM asks for it when it drops its caches, since weights may have
        changed: what was stored before is not found any more, and requests that run store nothing until they begin
        anew."""
        self._transfers.wait(set(self._jobs))
        self._layout = of_epoch(self._first_layout, f"+{uuid.uuid4().hex}")
        for request in self._requests.values():
            if not request.prompt.loading:
                request.prompt.release()
            request.prompt, request.stores = self._prompt(), False

    def shutdown(self) -> None:
        """vLLM takes the chunks' memory away after it."""
        self._transfers.close()
        del self._transfers
        for job in self._jobs.values():
            job.prompt.release()
        for request in self._requests.values():
            request.prompt.release()
        self._link.close()

    def _prompt(self) -> Prompt:
        return Prompt(self._link, [self._layout], len(self._group_numbers), self._rates, self._patience)

    def _begin(self, job: TransferJob, request: _Request, *, loads: bool) -> None:
        self._jobs[job.job_id] = _Job(request, request.prompt, loads)
        request.jobs += 1

    def _end(self, job: _Job) -> None:
        if job.loads and not any(other.loads and other.prompt is job.prompt for other in self._jobs.values()):
            job.prompt.loaded()
        job.request.jobs -= 1
        self._forget(job.request)

    def _forget(self, request: _Request) -> None:
        """When a request has finished and nothing of it is on its way."""
        if request.finished and not request.jobs:
            self._requests.pop(request.name, None)
            report(self._link, [self._layout], request.name, request.prompt, request.hints)


def _chunks(job: TransferJob) -> dict[bytes, int]:
    """Numbers of a job's chunks in vLLM's CPU tier, by key."""
    return dict(zip(job.keys, job.chunk_ids.tolist(), strict=True))
