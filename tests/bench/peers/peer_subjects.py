"""Who is compared, where each is installed, and who is not compared and why."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ENVIRONMENTS = Path(os.environ.get("BENCH_PEERS_DIR") or Path.home() / ".cache/tierd-peers")
"""Where install.sh puts a virtual environment for each peer."""

LIBRARIES = ":".join(str(path) for path in ENVIRONMENTS.glob("libraries/**/*-linux-gnu"))
"""Where Debian's libibverbs and the like lie, unpacked, not installed."""


@dataclass(frozen=True, slots=True)
class Subject:
    """One store under measurement. `environment`: its folder of ENVIRONMENTS, empty for our own.
    `path`: the way of the bytes, and what is called. `leaves`: how names begin that it may leave in /dev/shm.
    `has_ids`: whether blocks have ids of the caller's, that can be looked up."""

    name: str
    title: str
    adapter: str
    environment: str
    path: str
    leaves: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    has_ids: bool = True


LIMIT = Subject("memcpy", "memcpy", "memcpy_limit", "", "one copy in, one out, of the same process's shared memory")
OURS = Subject(
    "tierd", "tierd", "tierd_daemon", "",
    "shared memory; `tierd serve` without a spill tier, the blocking client, a checksum of each put",
    ("tierd-peers-",))

_MOONCAKE = {"LD_LIBRARY_PATH": LIBRARIES}
_LMCACHE = {"OMP_NUM_THREADS": "1", "LMCACHE_TRACK_USAGE": "false"}
"""With two OpenMP threads its copies took five times as long here: they spin for what the other processes need."""

PEERS = (
    Subject(
        "lmcache", "LMCache server, it copies", "lmcache_server", "lmcache",
        "shared memory, the server copies; zmq: LOOKUP, wait, RETRIEVE, END_SESSION", ("lmcache_",), _LMCACHE),
    Subject(
        "lmcache-engine", "LMCache server, engine copies", "lmcache_engine", "lmcache",
        "shared memory, the client copies; zmq: LOOKUP, wait, PREPARE and COMMIT of the retrieve, END_SESSION",
        ("lmcache_",), _LMCACHE),
    Subject(
        "mooncake-shared", "Mooncake Store, shared memory", "mooncake_shared", "mooncake",
        "a pool of the peer's own in shared memory; RPC to its client process, which asks the master",
        ("mooncake",), _MOONCAKE),
    Subject(
        "mooncake-tcp", "Mooncake Store, TCP", "mooncake_store", "mooncake",
        "TCP to the holder of the memory; RPC to the master", ("mooncake",), _MOONCAKE),
    Subject("redis", "Valkey by redis-py", "redis_plain", "redis", "Unix socket; GET, then a copy"),
    Subject(
        "redis-hiredis", "Valkey by redis-py with hiredis", "redis_plain", "redis-hiredis",
        "Unix socket; GET, then a copy; hiredis packs and parses"),
    Subject("glide", "Valkey by valkey-glide", "valkey_glide", "glide", "TCP; GET into the caller's memory"),
    Subject(
        "ray", "ray object store", "ray_objects", "ray",
        "shared memory; objects have references, no ids of the caller's", has_ids=False),
)

BY_NAME = {peer.name: peer for peer in PEERS}

NOT_COMPARED = {
    "kvblockd 0.1.0": "PyPI has its client only; the daemon, in Go, is in no registry.",
    "infinistore 0.2.35": "Its server ends with `Failed to get RDMA devices list`, with TCP as link as well.",
    "pegaflow-llm 0.25.1": "Its server panics as it loads libcuda.",
    "uc-manager 0.8.1": "A selector package: the code is in wheels for CUDA and CANN alone.",
    "aibrix-kvcache 0.8.0": "Its kernels need libcudart and libtorch_cuda.",
    "vllm-marconi-offload 0.2.2": "A patch of vLLM, not a store of its own.",
    "tierkv 0.1.0": "Stores int8 per group: bytes do not come back as they were.",
    "redhare 0.6.0, LMCache LocalCPUBackend": "No daemon: blocks lie in the process that asks for them.",
    "nixl 1.5.1, iceoryx2 0.10.0": "Transports: they move bytes and keep none by id.",
}
"""What was tried on such a machine (2026-11-29), and is left out."""
