"""The plot of the demo: three rounds of prompts, a demotion and a re-admission, and a kill -9.

    round 1   every conversation's context, cold: the blocks fill HBM, and the oldest sink to host and Redis
    record    the shared prefix is sent to Redis and re-admitted; its records must come back unchanged
    round 2   every conversation goes on: its context is taken from where it lies, its question is computed
    kill -9   the daemon is killed and started again: what lay in host and Redis is still there
    round 3   some conversations go on once more, out of what survived

The sizes make the outcome certain, whatever the timing. Round 1 leaves more blocks than HBM and host hold, so
some are in Redis; round 2 asks for the youngest first, so that HBM and host still hold theirs. The prefix was
re-admitted from Redis, where its copies stay, so that round 3 finds it although HBM is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tierd.demo.ledger import Ledger
from tierd.demo.model import BLOCK_TOKENS, Kind, ModelSource
from tierd.demo.report import TIERS, Result, Round, Snapshot, TierUse
from tierd.demo.stage import LOAD_TIMEOUT_S, DemoFailed, Sizes, Stage, WorkerHandle
from tierd.demo.text import DOCUMENT_TOKENS, PREFIX_TOKENS, Conversation
from tierd_client import Client, Identities, Layout, Namespace, Tiers, chain_ids
from tierd_client.admin import BlockRecord, Occupancy
from tierd_client.layout import decode_canonical

WORKERS = ("a", "b")
CONVERSATIONS = 10
SURVIVORS = 4
"""Conversations of round 3: the last of round 2, whose blocks came up from host and Redis just before."""

PREFIX_BLOCKS = PREFIX_TOKENS // BLOCK_TOKENS
DOCUMENT_BLOCKS = DOCUMENT_TOKENS // BLOCK_TOKENS
HBM_BLOCKS = 32
"""More than two running prompts pin: a prefix, and for each worker a document and the blocks of a question."""
HOST_BLOCKS = 40
"""Round 1 leaves 88 blocks, 16 more than both tiers hold."""

MOVE_TIMEOUT_S = 30.0
PAGE_BYTES = 4096

Step = Callable[[str], None]
"""Is told what begins."""

STEPS = 2 + 2 * CONVERSATIONS // len(WORKERS) + 2 + SURVIVORS // len(WORKERS)
"""How often a Step is called."""


class Plot:
    """One run on one stage."""

    def __init__(self, stage: Stage, source: ModelSource, talks: list[Conversation], step: Step) -> None:
        self._stage = stage
        self._talks = talks
        self._step = step
        self._measured = source.kind is not Kind.SYNTHETIC
        self._ledger = Ledger()
        self._layout: Layout
        self._workers: list[WorkerHandle] = []
        self.result = Result(source)

    def run(self) -> Result:
        """Raises DemoFailed and errors of the client. The stage is left to the caller."""
        start = time.monotonic()
        self._open()
        self._round("1", [(talk.name, talk.first()) for talk in self._talks], compare=False)
        self._demote_and_readmit()
        follow_ups = [(talk.name, talk.follow_up(0)) for talk in reversed(self._talks)]
        self._round("2", follow_ups, compare=True)
        self._kill_and_restart()
        again = [(talk.name, talk.follow_up(1)) for talk in self._talks[:SURVIVORS]]
        self._round("3", again, compare=True)
        self._conclude()
        self.result.elapsed_s = time.monotonic() - start
        return self.result

    def _open(self) -> None:
        """Workers load their models while Valkey and the daemon start; the size of a block sets the tiers'."""
        self._step("starting the workers")
        self._workers = self._stage.start_workers(list(WORKERS), self.result.source)
        self._stage.start_spill()
        ready = [worker.receive(LOAD_TIMEOUT_S) for worker in self._workers]
        self._layout = decode_canonical(bytes.fromhex(ready[0]["layout"]))
        self._step("starting the daemon")
        slot = -(-self._layout.block_bytes // PAGE_BYTES) * PAGE_BYTES
        self._stage.start_daemon(Sizes(HBM_BLOCKS * slot, HOST_BLOCKS * slot))
        for worker in self._workers:
            worker.send({"server": self._stage.server})
            worker.receive()

    def _round(self, name: str, prompts: list[tuple[str, list[int]]], compare: bool) -> None:
        """Each worker serves one prompt at a time, all of them at once."""
        summary = Round(name)
        for start in range(0, len(prompts), len(self._workers)):
            batch = prompts[start : start + len(self._workers)]
            self._step(f"round {name}: {', '.join(prompt for prompt, _ in batch)}")
            busy = self._workers[: len(batch)]
            for worker, (prompt, tokens) in zip(busy, batch, strict=True):
                worker.send({"name": prompt, "tokens": tokens, "compare": compare})
            answers = [worker.receive() for worker in busy]
            for (_, tokens), answer in zip(batch, answers, strict=True):
                self._count(summary, len(tokens), answer)
            # A worker may read what another stored in the same batch, so all is entered before any check.
            for answer in answers:
                self._ledger.check(answer["fetched"], self._layout.block_bytes)
        self.result.rounds.append(summary)
        self._snapshot(f"round {name}")

    def _count(self, summary: Round, tokens: int, answer: dict[str, Any]) -> None:
        self._ledger.store(answer["stored"])
        summary.prompts += 1
        summary.tokens += tokens
        summary.blocks += answer["blocks"]
        summary.stored += len(answer["stored"])
        for tier in TIERS:
            summary.hits[tier] += answer["hits"][tier]
        if answer["cold_s"] is not None and self._measured:
            summary.cold_s += answer["cold_s"]
            summary.reuse_s += answer["reuse_s"]
        if answer["logits_diff"] is not None:
            before = self.result.logits_max_abs_diff or 0.0
            self.result.logits_max_abs_diff = max(before, answer["logits_diff"])

    def _demote_and_readmit(self) -> None:
        """Sends the prefix to Redis and back, and compares the records that its blocks had and have."""
        self._step("demotion to Redis and re-admission")
        with self._client() as (client, namespace):
            prefix = self._prefix_ids(namespace)
            before = client.admin.describe(prefix)
            _expect("MOVED", namespace.evict(prefix, to="spill", timeout_s=MOVE_TIMEOUT_S))
            below = client.admin.describe(prefix)
            _expect("READY", namespace.readmit(prefix, to="hbm", wait=True, timeout_s=MOVE_TIMEOUT_S))
            after = client.admin.describe(prefix)
        self._compare_records(before, after)
        self.result.record_before, self.result.record_after = record_of(before[-1]), record_of(after[-1])
        self.result.record_path = [tiers_of(blocks[-1]) for blocks in (before, below, after)]
        self._snapshot("re-admission")

    def _kill_and_restart(self) -> None:
        self._step("kill -9 of the daemon")
        before = self._prefix_records()
        self._stage.kill_daemon()
        self._step("starting the daemon again")
        self._stage.restart_daemon()
        self._compare_records(before, self._prefix_records())
        self._snapshot("kill -9")

    def _prefix_records(self) -> list[BlockRecord | None]:
        with self._client() as (client, namespace):
            return client.admin.describe(self._prefix_ids(namespace))

    def _compare_records(self, before: list[BlockRecord | None], after: list[BlockRecord | None]) -> None:
        pairs = [(record_of(one), record_of(other)) for one, other in zip(before, after, strict=True)]
        self.result.records_compared += len(pairs)
        self.result.records_equal += sum(one == other and bool(one) for one, other in pairs)

    def _conclude(self) -> None:
        result = self.result
        result.blocks_verified = self._ledger.blocks_verified
        result.bytes_verified = self._ledger.bytes_verified
        result.mismatches = self._ledger.mismatches
        if self._measured:
            result.prefill_s_saved = sum(one.cold_s - one.reuse_s for one in result.rounds if one.cold_s)

    @contextmanager
    def _client(self) -> Iterator[tuple[Client, Namespace]]:
        with Client(self._stage.server, name="demo") as client:
            yield client, client.namespace(self._layout)

    def _prefix_ids(self, namespace: Namespace) -> Identities:
        return chain_ids(namespace, self._talks[0].first())[:PREFIX_BLOCKS]

    def _snapshot(self, when: str) -> None:
        with Client(self._stage.server, name="demo") as client:
            occupancy = _settled(client)
        uses = [
            TierUse(tier.name.lower(), use.blocks, use.used_bytes, use.capacity_bytes, use.hits_total)
            for tier, use in sorted(occupancy.tiers.items())
        ]
        self.result.snapshots.append(Snapshot(when, uses))


def _expect(wanted: str, outcomes: Any) -> None:
    found = {outcome.name for outcome in outcomes}
    if found != {wanted}:
        raise DemoFailed(f"moving the prefix: {', '.join(sorted(found))} instead of {wanted}")


def record_of(block: BlockRecord | None) -> dict[str, Any]:
    """What belongs to the identity and must be the same wherever its copies are; empty when unknown."""
    if block is None:
        return {}
    return {
        "identity": block.identity.hex(), "namespace": block.namespace, "group": block.group,
        "position": block.position, "parent": block.parent.hex(), "block_bytes": block.block_bytes,
        "checksum": f"{block.checksum:016x}", "touches": block.touches, "last_step": block.last_step,
        "last_wall_s": block.last_wall_s, "ema": block.ema, "crf": block.crf,
    }


def tiers_of(block: BlockRecord | None) -> str:
    """The tiers that hold a block, for people."""
    held = [tier for tier in TIERS if block is not None and Tiers[tier.upper()] in block.tiers]
    return " + ".join(held) or "nowhere"


def _settled(client: Client) -> Occupancy:
    """What lies where once nothing moves: blocks are stored ahead of their eviction after a round has ended."""
    ends_at = time.monotonic() + MOVE_TIMEOUT_S
    while (occupancy := client.admin.occupancy()).moves_in_flight and time.monotonic() < ends_at:
        time.sleep(0.02)
    return occupancy
