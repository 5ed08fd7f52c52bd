"""What this package takes from vLLM, in one place: everything that has changed between its versions is here.

Served: 0.32, which it is tested with. vLLM calls these interfaces experimental; another version is tried, and the
log says so.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any

from vllm.config import get_current_vllm_config_or_none
from vllm.distributed.kv_events import BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.metrics import OffloadingConnectorStats
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.worker import OffloadingConnectorWorker
from vllm.platforms import current_platform
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
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
from vllm.v1.kv_offload.cpu.policies.base import CachePolicy, order_request_keys
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob
from vllm.version import __version__

__all__ = [
    "CachePolicy", "CanonicalKVCaches", "GPULoadStoreSpec", "JobResult", "KVConnectorBase_V1",
    "KVConnectorMetadata", "KVConnectorRole", "KVConnectorStats", "KVConnectorWorkerMetadata", "LoadStoreSpec",
    "LookupResult", "Medium", "OffloadingConfig", "OffloadingConnectorStats", "OffloadingCounterMetadata",
    "OffloadingEvent", "OffloadingManager", "OffloadingSpec", "OffloadingWorker", "PrepareStoreOutput",
    "ReqContext", "RequestOffloadingContext", "ScheduleEndContext", "SecondaryTierManager", "TransferJob",
    "TransferResult", "beside_the_files", "canonical_caches", "current_config", "engine_name", "group_of_key",
    "key_of_block", "keys_of_request",
    "model_directory", "offloading_config", "order_request_keys", "say_version", "stored_event",
]

SERVED = ("0.32",)
"""Versions, major and minor, that it is tested with."""

GROUP_BYTES = 4
"""At the end of an OffloadKey: the number of its group, big-endian. Before it is the hash of the block."""

log = logging.getLogger("tierd")


def engine_name() -> str:
    """Whose layout of pages it is: of this vLLM on this kind of device. On a CPU vLLM orders what is in a page by
    the instructions that there are, and hosts of several kinds may share a Redis."""
    import torch

    name = f"vllm-{_minor()}-{current_platform.device_type}"
    if current_platform.device_type != "cpu":
        return name
    amx = "-amx" if torch.cpu._is_amx_tile_supported() else ""
    return f"{name}-{current_platform.get_cpu_architecture().name.lower()}{amx}"


def current_config() -> Any:
    """The engine's whole configuration, which an OffloadingSpec is not given; None but in a worker that starts."""
    return get_current_vllm_config_or_none()


def beside_the_files(vllm_config: Any) -> list[str]:
    """What an engine was told that changes KV and that the files of the model do not say."""
    model = vllm_config.model_config
    told = {
        "--revision": model.revision,
        "--hf-overrides": model.hf_overrides,
        "--quantization": model.quantization and not getattr(model.hf_config, "quantization_config", None),
        "--load-format dummy": vllm_config.load_config.load_format == "dummy",
    }
    return [name for name, said in told.items() if said]


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


def key_of_block(block_hash: bytes) -> bytes:
    """The key of a block of the first group, as vLLM's own offloading makes it."""
    return block_hash + bytes(GROUP_BYTES)


def offloading_config(vllm_config: Any, kv_cache_config: Any) -> OffloadingConfig:
    """What vLLM's own offloading makes of the engine's configuration."""
    return build_offloading_config(vllm_config, kv_cache_config)


def canonical_caches(
    vllm_config: Any, kv_cache_config: Any, config: OffloadingConfig, kv_caches: dict[str, Any],
) -> CanonicalKVCaches:
    """An engine's tensors by group, as vLLM's own offloading would hand them to its worker."""
    taken = _CachesTaken(config)
    OffloadingConnectorWorker(taken, vllm_config, kv_cache_config).register_kv_caches(kv_caches)
    return taken.caches


class _CachesTaken:
    """Stands for an OffloadingSpec, to be given the caches."""

    replicated_layout = False

    def __init__(self, config: OffloadingConfig) -> None:
        self.config = config
        self.caches: CanonicalKVCaches = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> None:
        self.caches = kv_caches


def stored_event(request: Any, keys: list[bytes], index: int, block_tokens: int) -> BlockStored:
    """vLLM's event for a block of a request that is stored on this host now; `keys`: of all its blocks."""
    own_and_parent = keys[max(0, index - 1) : index + 1][::-1]
    key, *parents = [maybe_convert_block_hash(one[:-GROUP_BYTES]) for one in own_and_parent]
    return BlockStored(
        block_hashes=[key], parent_block_hash=parents[0] if parents else None,
        token_ids=list(request.all_token_ids[index * block_tokens : (index + 1) * block_tokens]),
        block_size=block_tokens, medium=Medium.CPU.value, group_idx=0,
        lora_id=request.lora_request.adapter_id if request.lora_request else None,
        lora_name=request.lora_request.name if request.lora_request else None)


def model_directory(name: str) -> str:
    """Where the files of a model are on this machine, by path or by name at Hugging Face; empty if unknown."""
    from pathlib import Path

    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if Path(name).is_dir():
        return name
    try:
        config = try_to_load_from_cache(name, "config.json")
    except HFValidationError:  # a file, or in some object store
        return ""
    return str(Path(config).parent) if isinstance(config, str) else ""


def _minor() -> str:
    return ".".join(__version__.split(".")[:2])
