"""What this package takes from vLLM, in one place: everything that has changed between its versions is here.

Served: 0.32, which it is tested with. vLLM calls these interfaces experimental; another version is tried, and the
log says so.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.platforms import current_platform
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    LookupResult,
    Medium,
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
)
from vllm.v1.kv_offload.config import OffloadingConfig
from vllm.version import __version__

__all__ = [
    "CanonicalKVCaches", "GPULoadStoreSpec", "LoadStoreSpec", "LookupResult", "Medium", "OffloadingConfig",
    "OffloadingConnectorStats", "OffloadingCounterMetadata", "OffloadingEvent", "OffloadingManager",
    "OffloadingSpec", "OffloadingWorker", "PrepareStoreOutput", "ReqContext", "RequestOffloadingContext",
    "ScheduleEndContext", "TransferResult", "engine_name", "group_of_key", "keys_of_request",
    "model_directory", "say_version",
]

SERVED = ("0.32",)
"""Versions, major and minor, that it is tested with."""

GROUP_BYTES = 4
"""At the end of an OffloadKey: the number of its group, big-endian. Before it is the hash of the block."""

log = logging.getLogger("tierd")


def engine_name() -> str:
    """Whose layout of pages it is: of this vLLM on this kind of device."""
    return f"vllm-{_minor()}-{current_platform.device_type}"


def say_version() -> None:
    """One line in the log where this vLLM is not one that the package is tested with."""
    if _minor() not in SERVED:
        log.warning("vLLM %s: tierd is tested with %s; look at the hits", __version__, ", ".join(SERVED))


def group_of_key(key: bytes) -> int:
    """The number of the KV cache group that a key's block is of."""
    return int.from_bytes(key[-GROUP_BYTES:], "big")


def keys_of_request(context: Any, seen: int) -> list[bytes]:
    """The keys of a request's blocks that came after the first `seen`: of each group in the order of the prompt."""
    keys = context._offload_key_positions
    return list(islice(keys, seen, None)) if len(keys) > seen else []


def model_directory(name: str) -> str:
    """Where the files of a model are on this machine, by path or by name at Hugging Face; empty if unknown."""
    from pathlib import Path

    from huggingface_hub import try_to_load_from_cache

    if Path(name).is_dir():
        return name
    config = try_to_load_from_cache(name, "config.json")
    return str(Path(config).parent) if isinstance(config, str) else ""


def _minor() -> str:
    return ".".join(__version__.split(".")[:2])
