"""What a worker does, with methods that this release of the client and the previous one both have.

Run as a process of its own, so that PYTHONPATH says which client it is. It prints one JSON object: the file that
the client came from, and the outcomes; bytes are compared in here.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import tierd_client
from tierd_client import Client, Layout, chain_ids

SIZE, BLOCKS, TOKENS = 64 << 10, 24, 16
LAYOUT = Layout.opaque(block_bytes=SIZE, block_tokens=TOKENS, model="compat")


def data_of(seed: int, blocks: int = BLOCKS) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (blocks, SIZE), np.uint8)


def prompt_of(seed: int) -> range:
    return range(1000 * seed, 1000 * seed + BLOCKS * TOKENS)


def same(got: Any, sent: Any) -> bool:
    return all(one is not None and np.array_equal(one, other) for one, other in zip(got, sent, strict=True))


def names(outcomes: Any) -> list[str]:
    return sorted({outcome.name for outcome in outcomes})


def store(ns: Any, seed: int) -> dict[str, Any]:
    """Puts a chain, and evicts its second half to the spill tier."""
    ids = chain_ids(ns, prompt_of(seed))
    half = BLOCKS // 2
    return {"put": names(ns.put(ids, data_of(seed))), "evict": names(ns.evict(ids[half:]))}


def check(ns: Any, seed: int) -> dict[str, Any]:
    """Reads a chain in every way, brings it up, and runs a request over it."""
    ids, data = chain_ids(ns, prompt_of(seed)), data_of(seed)
    out = np.zeros_like(data)
    found: dict[str, Any] = {"prefix": ns.lookup(ids).prefix, "get": same(ns.get(ids), data)}
    found["get_into"] = names(ns.get_into(ids, out)) == ["LEASED"] and bool(np.array_equal(out, data))
    with ns.sequence(f"request-{seed}", ids) as sequence:
        with ns.acquire(ids) as lease:
            found["lease"] = same(lease.arrays(), data)
        found["observed"] = sequence.observe([1 / BLOCKS] * BLOCKS) > 0
    found["readmit"] = names(ns.readmit(ids))
    return found


def main() -> None:
    address, mode, seed, *verbs = sys.argv[1:]
    with Client(address, shared_memory=mode) as client:
        ns = client.namespace(LAYOUT)
        results: dict[str, Any] = {"client": tierd_client.__file__, "maps": client.maps_memory}
        for verb in verbs:
            results |= {"store": store, "check": check}[verb](ns, int(seed))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
