"""A worker process of the demo: an inference server of one request at a time.

For each prompt it asks the daemon which leading blocks exist, takes those, computes the rest with its model
and stores what is new. Started as `python -m tierd.demo.worker FD`: the number of the socket to the demo.
"""

from __future__ import annotations

import socket
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from tierd.demo.channel import Channel, ChannelClosed
from tierd.demo.ledger import digest
from tierd.demo.model import BLOCK_TOKENS, Kind, Model, ModelSource, Prefill, load_model
from tierd.demo.report import TIERS
from tierd_client import Client, chain_ids

FETCH_TIMEOUT_S = 10.0
STORE_TIMEOUT_S = 10.0
REPLY_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Answer:
    """What came of one prompt. Digests are by identity in hex; seconds are those until the first token could
    be drawn, without (`cold`) and with re-use, fetching included."""

    blocks: int
    hits: dict[str, int]
    fetched: dict[str, str] = field(default_factory=dict)
    stored: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, int] = field(default_factory=dict)
    cold_s: float | None = None
    reuse_s: float = 0.0
    logits_diff: float | None = None


class Worker:
    """One model and one namespace."""

    def __init__(self, client: Client, model: Model) -> None:
        self._model = model
        self._namespace = client.namespace(model.layout)

    def serve(self, name: str, tokens: list[int], compare: bool) -> Answer:
        """Answers one prompt; with `compare` also computes it from nothing, before it looks for blocks."""
        cold = self._model.prefill(tokens, []) if compare else None
        ids = chain_ids(self._namespace, tokens)
        answer = Answer(len(ids), dict.fromkeys(TIERS, 0))
        with self._namespace.sequence(name, ids) as sequence:
            found = sequence.lookup()
            # One token at least must be computed, or there would be no logits to draw the next from.
            wanted = ids[: min(found.prefix, (len(tokens) - 1) // BLOCK_TOKENS)]
            computed, reused = self._prefill(tokens, wanted, found.tiers, answer)
            self._store(ids[reused:], computed, answer)
        if cold is not None:
            answer.cold_s = cold.seconds
            answer.logits_diff = _difference(cold, computed)
        return answer

    def _prefill(self, tokens: list[int], wanted: Any, tiers: Any, answer: Answer) -> tuple[Prefill, int]:
        """Takes the blocks that are there and computes the rest; how many were taken."""
        if not len(wanted):
            computed = self._model.prefill(tokens, [])
            answer.reuse_s = computed.seconds
            return computed, 0
        start = time.perf_counter()
        with self._namespace.acquire(wanted, timeout_s=FETCH_TIMEOUT_S) as lease:
            past = _leading(lease)
            fetch_s = time.perf_counter() - start
            computed = self._model.prefill(tokens, past)
            for identity, block, where in zip(wanted, past, tiers, strict=False):
                answer.fetched[identity.hex()] = digest(block)
                answer.hits[_fastest(int(where))] += 1
            answer.reuse_s = fetch_s + computed.seconds
            return computed, len(past)

    def _store(self, ids: Any, computed: Prefill, answer: Answer) -> None:
        """Into HBM, where a model that has computed them holds them; what finds no room there, into host."""
        blocks = computed.blocks
        for tier in ("hbm", "host"):
            if not blocks:
                return
            outcomes = self._namespace.put(ids, blocks, tier=tier, timeout_s=STORE_TIMEOUT_S)
            for identity, block, outcome in zip(ids, blocks, outcomes, strict=True):
                answer.outcomes[outcome.name] = answer.outcomes.get(outcome.name, 0) + 1
                if outcome.name == "STORED":
                    answer.stored[identity.hex()] = digest(block)
            left = [i for i, outcome in enumerate(outcomes) if outcome.name in ("FULL", "PENDING")]
            ids, blocks = ids[left[0] :] if left else ids[:0], blocks[left[0] :] if left else []


def _leading(lease: Any) -> list[Any]:
    """The leading blocks that were leased, in place."""
    leading = []
    for view in lease.arrays():
        if view is None:
            break
        leading.append(view)
    return leading


def _fastest(bits: int) -> str:
    """The fastest tier of a set: bit 0 is hbm, 1 host, 2 spill."""
    return TIERS[(bits & -bits).bit_length() - 1]


def _difference(cold: Prefill, computed: Prefill) -> float | None:
    """Largest difference of a logit over the positions that both computed."""
    if cold.logits is None or computed.logits is None:
        return None
    positions = min(len(cold.logits), len(computed.logits))
    return float(np.abs(cold.logits[-positions:] - computed.logits[-positions:]).max())


def _loaded(channel: Channel) -> Model:
    """Answers the first message, which says which model, with the layout of its blocks."""
    source = channel.receive(None)["source"]
    model = load_model(ModelSource(**{**source, "kind": Kind(source["kind"])}))
    # What a first forward pass sets up is not to be counted as prefill.
    model.prefill(list(range(1, 2 * BLOCK_TOKENS + 1)), [])
    channel.send({"layout": model.layout.canonical().hex()}, REPLY_TIMEOUT_S)
    return model


def _serve(channel: Channel, model: Model) -> None:
    """Answers prompts, after a message that says which daemon, until the channel is closed."""
    with Client(channel.receive(None)["server"], name="demo worker") as client:
        worker = Worker(client, model)
        channel.send({}, REPLY_TIMEOUT_S)
        while True:
            message = channel.receive(None)
            answer = worker.serve(message["name"], message["tokens"], message["compare"])
            channel.send(asdict(answer), REPLY_TIMEOUT_S)


def main() -> int:
    """Lives until the demo closes the channel. Its standard error is the log."""
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    try:
        _serve(channel, _loaded(channel))
        return 0
    except ChannelClosed:
        return 0
    except Exception as error:
        traceback.print_exc()
        channel.send({"error": f"{type(error).__name__}: {error}"}, REPLY_TIMEOUT_S)
        return 1


if __name__ == "__main__":
    sys.exit(main())
