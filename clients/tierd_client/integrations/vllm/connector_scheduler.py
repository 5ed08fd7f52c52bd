"""The connector's side in the scheduler: which blocks a request can load, which of its blocks are to be stored.

What is stored under a block's name is never computed out of pages that a load may have failed to fill: a failure is
heard of a step later, when others may have computed on.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tierd_client.integrations.keys import Run
from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.prompts import Answer, Prompt
from tierd_client.integrations.rates import Rates, Way
from tierd_client.integrations.reports import report
from tierd_client.integrations.request_hints import Hints
from tierd_client.integrations.search import Patience
from tierd_client.integrations.vllm.connector_steps import Done, LoadJob, Step, StoreJob, TierdStats
from tierd_client.integrations.vllm.geometry import layouts_of, of_epoch
from tierd_client.integrations.vllm.versions import OffloadingConfig, key_of_block, stored_event


@dataclass
class _Request:
    """One request. `pages`: of its blocks; `first`: the first block that the engine had not; `offered`: blocks that
    were loaded or offered for storing; `loads`: until a load has failed, which would fail again; `stores`: no block
    was computed out of pages that may be wrong, or by weights of before a reset; `jobs`: that are not over."""

    request: Any
    prompt: Prompt
    hints: Hints
    pages: list[int] = field(default_factory=list)
    first: int = 0
    offered: int = 0
    loads: bool = True
    stores: bool = True
    jobs: int = 0
    finished: bool = False


@dataclass
class _Job:
    """A store of `runs`, or a load into `pages`. `workers`: that have not finished it."""

    request: _Request
    prompt: Prompt
    workers: int
    runs: Sequence[Run] = ()
    pages: Sequence[int] = ()


_Computed = tuple[_Request, int, int]
"""A request of a step, with its tokens that are computed before and after it."""


class ConnectorScheduler:
    """Of one engine with one KV cache group."""

    def __init__(self, config: OffloadingConfig, options: Options, *, load_async: bool) -> None:
        self._config = config
        self._layouts = self._first_layouts = layouts_of(config, options)
        self._load_async = load_async
        self._epoch = ""
        self._link = Link(options, f"vllm-scheduler-{config.engine_id}", self._layouts)
        self._tokens = config.groups[0].tokens_per_block
        self._hashes = self._tokens // config.cache.tokens_per_hash
        self._requests: dict[str, _Request] = {}
        self._numbers = count()
        self._jobs: dict[int, _Job] = {}
        self._storing: set[bytes] = set()
        self._next_loads: list[LoadJob] = []
        self._unfilled: set[int] = set()
        """Pages whose load has failed, and that have not been computed since."""

        self._events: list[Any] = []
        self._rates = Rates()
        self._patience = Patience()
        self._step_began_at = time.monotonic()
        self._step_blocks = self._cut_blocks = 0

    def on_new_request(self, request: Any) -> None:
        self._requests[request.request_id] = _Request(
            request, self._prompt(), Hints.of(request.kv_transfer_params))

    def matched(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens that can be loaded beyond those that the engine has, None while they are searched for; and whether
        they come between two steps."""
        known = self._requests[request.request_id]
        self._learn(known)
        known.first = known.offered = computed_tokens // self._tokens
        known.stores = True
        loads = known.loads and not request.skip_reading_prefix_cache
        most = (request.num_tokens - 1) // self._tokens if loads else 0
        found = 0
        for key in known.prompt.keys[0][known.first : most]:
            answer = known.prompt.answer(key)
            if answer is Answer.PENDING:
                return None, False
            if answer is Answer.MISS:
                break
            found += 1
        return found * self._tokens, self._load_async and found > 0

    def allocated(self, request: Any, pages: Sequence[int], tokens: int) -> None:
        """The engine has pages for the request, and takes so many tokens from here."""
        known = self._requests[request.request_id]
        if not tokens:
            if not known.prompt.loading:
                known.prompt.release()
            return
        known.offered = known.first + tokens // self._tokens
        chosen = slice(known.first, known.offered)
        ranks = [places for ((_, places),) in known.prompt.load(known.prompt.keys[0][chosen])]
        number = self._begin(known, pages=list(pages[chosen]))
        self._next_loads.append(LoadJob(number, request.request_id, ranks, list(pages[chosen])))

    def step(self, output: Any) -> Step:
        """What the workers do in this step."""
        loads, self._next_loads = self._next_loads, []
        computed = list(self._computed(output))
        self._note_step(computed)
        return Step(loads, list(self._new_stores(computed, {load.job for load in loads})))

    def done(self, done: Done) -> None:
        """Takes what the workers have finished."""
        self._unfilled |= done.unfilled
        for number, workers in done.jobs.items():
            job = self._jobs[number]
            job.workers -= workers
            if not job.workers:
                del self._jobs[number]
                self._finish(job)

    def on_request_finished(self, request: Any) -> None:
        known = self._requests.get(request.request_id)
        if known is not None:
            known.finished = True
            if not known.prompt.loading:
                known.prompt.release()
            self._forget(known)

    def take_events(self) -> list[Any]:
        """Of blocks that were stored. Which the daemon evicts nobody tells: it is shared."""
        taken, self._events = self._events, []
        return taken

    def stats(self) -> TierdStats | None:
        """Blocks that the daemon had and that were computed, because that is faster here."""
        cut, self._cut_blocks = self._cut_blocks, 0
        return TierdStats({"cut_blocks": cut}) if cut else None

    def reset(self) -> None:
        """What was stored before is not found any more by this engine, whose weights may have changed. Requests of
        before store nothing until they begin anew."""
        self._epoch = f"+{uuid.uuid4().hex}"
        self._layouts = [of_epoch(layout, self._epoch) for layout in self._first_layouts]
        self._storing.clear()
        for known in self._requests.values():
            if not known.prompt.loading:
                known.prompt.release()
            known.prompt, known.stores = self._prompt(), False

    def close(self) -> None:
        for job in self._jobs.values():
            job.prompt.release()
        for known in self._requests.values():
            known.prompt.release()
        self._link.close()

    def _prompt(self) -> Prompt:
        return Prompt(self._link, self._layouts, 1, self._rates, self._patience)

    def _learn(self, known: _Request) -> None:
        """Takes the hashes that the request has got since, one a block."""
        hashes, seen = known.request.block_hashes, len(known.prompt)
        new = hashes[(seen + 1) * self._hashes - 1 :: self._hashes]
        known.prompt.extend((0, key_of_block(one)) for one in new)

    def _computed(self, output: Any) -> Iterator[_Computed]:
        """The requests of a step; their pages are brought up to date."""
        for known, tokens in self._running(output):
            after = tokens + output.num_scheduled_tokens[known.request.request_id]
            self._unfilled.difference_update(known.pages[tokens // self._tokens : after // self._tokens])
            yield known, tokens, after

    def _running(self, output: Any) -> Iterator[tuple[_Request, int]]:
        for new in output.scheduled_new_reqs:
            known = self._requests[new.req_id]
            known.pages = list(new.block_ids[0])
            yield known, new.num_computed_tokens
        cached = output.scheduled_cached_reqs
        for req_id, pages, tokens in zip(
            cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True,
        ):
            known = self._requests[req_id]
            more = list(pages[0]) if pages else []
            known.pages = more if req_id in cached.resumed_req_ids else known.pages + more
            yield known, tokens

    def _note_step(self, computed: Sequence[_Computed]) -> None:
        """Takes what the blocks of the step before took; where loads are part of a step nothing can be said."""
        began_at, self._step_began_at = self._step_began_at, time.monotonic()
        self._patience.next_step()
        if self._load_async:
            self._rates.note(Way.COMPUTED, self._step_blocks, self._step_began_at - began_at)
        self._step_blocks = sum(after // self._tokens - before // self._tokens for _, before, after in computed)

    def _new_stores(self, computed: Sequence[_Computed], loads: set[int]) -> Iterator[StoreJob]:
        """Blocks that are full with this step; while a load is part of it (`loads`), those that were full before,
        and none until that load is known to have filled its pages."""
        doubtful = set() if self._load_async else {number for number, job in self._jobs.items() if job.pages}
        for known, before, after in computed if doubtful <= loads else []:
            self._learn(known)
            full = min((before if doubtful else after) // self._tokens, len(known.prompt), len(known.pages))
            if not self._unfilled.isdisjoint(known.pages[:full]):
                known.stores = False
            new = known.prompt.keys[0][known.offered : full] if known.stores and self._link.is_up else []
            known.offered += len(new)
            runs = known.prompt.missing(new, self._storing) if new else []
            if runs:
                yield self._store(known, runs)

    def _store(self, known: _Request, runs: list[Run]) -> StoreJob:
        for run in runs:
            self._storing.update(run.keys)
        paged = [(run, known.pages[run.position : run.position + len(run)]) for run in runs]
        return StoreJob(self._begin(known, runs=runs), paged, known.hints.priority, self._epoch)

    def _begin(self, known: _Request, *, runs: Sequence[Run] = (), pages: Sequence[int] = ()) -> int:
        number = next(self._numbers)
        self._jobs[number] = _Job(known, known.prompt, self._config.parallel.world_size, runs, pages)
        known.jobs += 1
        return number

    def _finish(self, job: _Job) -> None:
        known = job.request
        for run in job.runs:
            self._storing.difference_update(run.keys)
            if self._config.enable_kv_cache_events and job.prompt is known.prompt:
                self._tell(known, run)
        if not self._unfilled.isdisjoint(job.pages):
            known.loads = False
        if job.pages and not any(other.pages and other.prompt is job.prompt for other in self._jobs.values()):
            job.prompt.loaded()
        known.jobs -= 1
        self._forget(known)

    def _tell(self, known: _Request, run: Run) -> None:
        stored = set(known.prompt.stored(run.keys))
        for index, key in enumerate(run.keys, run.position):
            if key in stored:
                self._events.append(stored_event(known.request, known.prompt.keys[0], index, self._tokens))

    def _forget(self, known: _Request) -> None:
        """When a request has finished and nothing of it is on its way."""
        if known.finished and not known.jobs:
            self._requests.pop(known.request.request_id, None)
            self._cut_blocks += known.prompt.cut_blocks
            report(self._link, self._layouts, known.request.request_id, known.prompt, known.hints)
