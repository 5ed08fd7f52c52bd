"""vLLM's OffloadingConnector on tierd: who is where is answered in the scheduler, bytes go in the workers.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
      "kv_connector_extra_config": {"spec_name": "TierdOffloadingSpec",
      "spec_module_path": "tierd_client.integrations.vllm.offloading",
      "tierd": {"address": "unix:///run/tierd/tierd.sock"}}}'

vLLM cannot live with a load that fails, so HIT is said only of blocks that the scheduler holds under a lease; the
worker reads them out of shared memory, where nobody else has to answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tierd_client.handover import Places
from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.prompts import Answer, Prompt
from tierd_client.integrations.rates import Rates, Way
from tierd_client.integrations.reports import report
from tierd_client.integrations.request_hints import Hints
from tierd_client.integrations.search import Patience
from tierd_client.integrations.transfers import Transfers
from tierd_client.integrations.vllm.geometry import check_named, layouts_of, of_epoch, pages_of
from tierd_client.integrations.vllm.versions import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    Medium,
    OffloadingConfig,
    OffloadingConnectorStats,
    OffloadingCounterMetadata,
    OffloadingEvent,
    OffloadingManager,
    OffloadingSpec,
    OffloadingWorker,
    PrepareStoreOutput,
    ReqContext,
    RequestOffloadingContext,
    ScheduleEndContext,
    TransferResult,
    current_config,
    group_of_key,
    keys_of_request,
    say_version,
)
from tierd_client.outcomes import Priority

CUT_BLOCKS = "vllm:tierd_cut_blocks"

FLUSHED_S = 60.0
"""After vLLM has dropped its loads, how long the workers may still be at them."""


@dataclass
class LeasedBlocks(LoadStoreSpec):
    """Where the blocks of a load lie. `ranks`: of each rank the groups, in the order of the engine's pages."""

    ranks: list[list[tuple[int, Places]]]


@dataclass
class NewBlocks(LoadStoreSpec):
    """Blocks that are to be stored, in the order of the engine's pages; `epoch` as in `of_epoch`."""

    runs: list[Run]
    priority: Priority | None
    epoch: str


@dataclass
class _Request:
    """One request in the scheduler. `storing`: jobs of it that are not over; `stores`: its blocks are not those of
    weights of before a reset."""

    prompt: Prompt
    hints: Hints
    epoch: str
    storing: int = 0
    stores: bool = True
    finished: bool = False


RESULTS = {Answer.LEASED: LookupResult.HIT, Answer.PENDING: LookupResult.RETRY, Answer.MISS: LookupResult.MISS}


def learn(prompt: Prompt, context: ReqContext, group_numbers: Mapping[int, int]) -> None:
    """Takes the keys that a request has got since. `group_numbers`: ours by vLLM's."""
    new = keys_of_request(context, len(prompt))
    if new:
        prompt.extend((group_numbers[group_of_key(key)], key) for key in new)


class TierdOffloadingManager(OffloadingManager):
    """The scheduler's side. For the daemon it waits as long as `Patience` has, no longer."""

    def __init__(self, config: OffloadingConfig, options: Options) -> None:
        self._config = config
        self._epoch = ""
        self._layouts = self._first_layouts = layouts_of(config, options)
        self._group_numbers = {group.group_id: number for number, group in enumerate(config.groups)}
        self._link = Link(options, f"vllm-scheduler-{config.engine_id}", self._layouts)
        self._requests: dict[str, _Request] = {}
        self._storing: set[bytes] = set()
        self._flushed: list[tuple[float, Prompt]] = []
        self._events: list[OffloadingEvent] = []
        self._rates = Rates()
        self._patience = Patience()
        self._step_began_at = time.monotonic()
        self._step_blocks = self._cut_blocks = 0

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        prompt = self._prompt()
        request = _Request(prompt, Hints.of(req_context.kv_transfer_params), self._epoch)
        self._requests[req_context.req_id] = request
        return RequestOffloadingContext()

    def lookup(self, key: bytes, req_context: ReqContext) -> LookupResult:
        request = self._requests.get(req_context.req_id)
        if request is None:
            return LookupResult.MISS
        request.stores = True  # it begins, or begins anew
        learn(request.prompt, req_context, self._group_numbers)
        return RESULTS[request.prompt.answer(key)]

    def prepare_load(self, keys: Collection[bytes], req_context: ReqContext) -> LeasedBlocks:
        return LeasedBlocks(self._requests[req_context.req_id].prompt.load(keys))

    def complete_load(self, keys: Collection[bytes], req_context: ReqContext) -> None:
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.prompt.loaded()
            self._forget(req_context.req_id, request)

    def prepare_store(self, keys: Collection[bytes], req_context: ReqContext) -> PrepareStoreOutput:
        request = self._requests[req_context.req_id]
        learn(request.prompt, req_context, self._group_numbers)
        self._step_blocks += len(keys)
        runs = request.prompt.missing(keys, self._storing) if request.stores else []
        chosen = [key for run in runs for key in run.keys]
        self._storing.update(chosen)
        request.storing += bool(chosen)
        return PrepareStoreOutput(chosen, NewBlocks(runs, request.hints.priority, request.epoch), [])

    def complete_store(self, keys: Collection[bytes], req_context: ReqContext, success: bool = True) -> None:
        self._storing.difference_update(keys)
        request = self._requests.get(req_context.req_id)
        if request is not None:
            if self._config.enable_kv_cache_events:
                stored = request.prompt.stored(keys)
                self._events += [OffloadingEvent(stored, Medium.CPU, removed=False)] if stored else []
            request.storing -= 1
            self._forget(req_context.req_id, request)

    def on_request_finished(self, req_context: ReqContext) -> None:
        request = self._requests.get(req_context.req_id)
        if request is not None:
            request.finished = True
            if not request.prompt.loading:
                request.prompt.release()
            self._forget(req_context.req_id, request)

    def on_schedule_end(self, context: ScheduleEndContext) -> None:
        began_at, self._step_began_at = self._step_began_at, time.monotonic()
        self._rates.note(Way.COMPUTED, self._step_blocks, self._step_began_at - began_at)
        self._step_blocks = 0
        self._patience.next_step()
        for req_id in context.new_req_ids:
            request = self._requests.get(req_id)
            if request is not None and not request.prompt.loading:
                request.prompt.release()  # it runs, and loads nothing
        while self._flushed and time.monotonic() - self._flushed[0][0] > FLUSHED_S:
            self._flushed.pop(0)[1].release()

    def take_events(self) -> list[OffloadingEvent]:
        """Of blocks that were stored. Which the daemon evicts nobody tells: it is shared."""
        taken, self._events = self._events, []
        return taken

    def get_stats(self) -> OffloadingConnectorStats | None:
        """Blocks that the daemon had and that were computed, because that is faster here."""
        if not self._cut_blocks:
            return None
        stats = OffloadingConnectorStats()
        stats.increase_counter(CUT_BLOCKS, self._cut_blocks)
        self._cut_blocks = 0
        return stats

    def reset_cache(self) -> None:
        """What was stored before is not found any more by this engine, whose weights may have changed. Nor by any
        other one that did so: each goes on by itself. Requests that run store nothing until they begin anew."""
        for request in self._requests.values():
            if request.prompt.loading:
                self._flushed.append((time.monotonic(), request.prompt))
            else:
                request.prompt.release()
        self._epoch = f"+{uuid.uuid4().hex}"
        self._layouts = [of_epoch(layout, self._epoch) for layout in self._first_layouts]
        self._storing.clear()
        for request in self._requests.values():
            request.prompt = self._prompt()
            request.epoch, request.storing, request.stores = self._epoch, 0, False

    def shutdown(self) -> None:
        for request in self._requests.values():
            request.prompt.release()
        self._requests.clear()
        self._link.close()

    def _prompt(self) -> Prompt:
        return Prompt(self._link, self._layouts, len(self._config.groups), self._rates, self._patience)

    def _forget(self, req_id: str, request: _Request) -> None:
        """When a request has finished and nothing of it is on its way."""
        if request.finished and not request.storing and not request.prompt.loading:
            self._requests.pop(req_id, None)
            self._cut_blocks += request.prompt.cut_blocks
            report(self._link, self._layouts, req_id, request.prompt, request.hints)


class TierdOffloadingWorker(OffloadingWorker):
    """One rank's side: its pages, and a thread that copies."""

    def __init__(self, config: OffloadingConfig, options: Options, kv_caches: CanonicalKVCaches) -> None:
        layouts = layouts_of(config, options)
        self._rank = config.parallel.rank % len(layouts)
        self._layout = layouts[self._rank]
        self._link = Link(options, f"vllm-worker-{config.parallel.rank}-{config.engine_id}", [self._layout])
        self._transfers = Transfers(self._link, pages_of(self._layout, kv_caches))

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: NewBlocks) -> bool:
        pages = iter(src_spec.block_ids)
        runs = [(run, np.fromiter(pages, np.int64, len(run))) for run in dst_spec.runs]
        self._transfers.store(job_id, of_epoch(self._layout, dst_spec.epoch), runs, dst_spec.priority)
        return True

    def submit_load(
        self, job_id: int, src_spec: LeasedBlocks, dst_spec: GPULoadStoreSpec, expedited: bool = False,
    ) -> bool:
        pages = iter(dst_spec.block_ids)
        parts = [
            (group, places, np.fromiter(pages, np.int64, len(places)))
            for group, places in src_spec.ranks[self._rank]
        ]
        self._transfers.load(job_id, parts)
        return True

    def get_finished(self) -> list[TransferResult]:
        """Raises RuntimeError when a load failed: its request cannot be saved, and vLLM has no way to be told."""
        finished = self._transfers.finished()
        failed = [one for one in finished if one.error]
        if failed:
            raise RuntimeError(f"tierd: blocks under a lease could not be loaded: {failed[0].error}")
        return [TransferResult(one.job, True, one.bytes, one.seconds) for one in finished]

    def wait(self, job_ids: set[int]) -> None:
        self._transfers.wait(job_ids)

    def shutdown(self) -> None:
        self._transfers.close()
        self._link.close()


class TierdOffloadingSpec(OffloadingSpec):
    """Named in `kv_connector_extra_config`; its `tierd` has the options (tierd_client/integrations/options.py)."""

    def __init__(self, config: OffloadingConfig) -> None:
        super().__init__(config)
        say_version()
        self._options = Options.of(self.extra_config.get("tierd", {}))
        whole = current_config()
        if whole is not None:
            check_named(whole, self._options)
        self.replicated_layout = config.replicated_layout

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:
        about = "Blocks that tierd had and that were computed, because that was faster."
        return {CUT_BLOCKS: OffloadingCounterMetadata(documentation=about)}

    def get_manager(self) -> TierdOffloadingManager:
        return TierdOffloadingManager(self.config, self._options)

    def get_worker(self, kv_caches: CanonicalKVCaches) -> TierdOffloadingWorker:
        return TierdOffloadingWorker(self.config, self._options, kv_caches)
