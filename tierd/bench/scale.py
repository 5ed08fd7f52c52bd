"""What many identities cost: memory in the daemon, time in the shared catalog."""

from __future__ import annotations

import time

import numpy as np

from tierd.bench.blocks import SEED
from tierd.bench.control import LAYOUT, fill, roomy
from tierd.bench.measuring import Measured, Result, Scale, WrongBytes, alternate
from tierd.bench.stage import serving
from tierd_client.identity import plain_ids

CALL_IDS = 8_192
PLAIN_ID_BYTES = 32
FEW = 1_024
"""Identities of a daemon that stands for none."""


def lookup(scale: Scale) -> Measured:
    """Identities a second of lookups by the shared catalog, and of hashing the ids that they are made of."""
    with serving(**roomy(scale.identities)) as daemon, daemon.client() as client:
        ids, _ = fill(daemon, scale.identities)
        namespace, rng = client.namespace(LAYOUT), np.random.default_rng(SEED)
        plain = [rng.bytes(PLAIN_ID_BYTES) for _ in range(CALL_IDS)]

        def find() -> float:
            chosen = ids.take(rng.integers(len(ids), size=CALL_IDS))
            began = time.perf_counter()
            found = namespace.lookup(chosen)
            seconds = time.perf_counter() - began
            if found.prefix != CALL_IDS:
                raise WrongBytes("an identity that is stored was not found")
            return seconds

        def hashed() -> float:
            began = time.perf_counter()
            plain_ids(LAYOUT, plain)
            return time.perf_counter() - began

        seconds = alternate({"find": find, "hash": hashed}, scale.repetitions)
    return {
        "local_lookup_8192": Result.of(CALL_IDS / each for each in seconds["find"]),
        "hash_plain_8192": Result.of(CALL_IDS / each for each in seconds["hash"]),
    }


def memory(scale: Scale) -> Measured:
    """Bytes per identity: the catalog's file, and what a full daemon has of private memory more than one for few
    blocks. Ghosts are no part of it."""
    with serving(**roomy(FEW)) as small:
        fill(small, FEW)
        base_bytes = small.private_bytes()
    with serving(**roomy(scale.identities)) as daemon:
        fill(daemon, scale.identities)
        (catalog,) = daemon.shm_dir.glob("*-catalog")
        taken = catalog.stat().st_blocks * 512 + daemon.private_bytes() - base_bytes
    return {"bytes_per_identity": Result(taken / scale.identities, 0.0)}
