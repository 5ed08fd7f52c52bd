"""The namespaces of a vLLM engine, one a rank, out of its own configuration: the same in each of its processes.

vLLM's keys of blocks stand for the tokens, all before them, LoRA, cache salt and multi-modal inputs; the namespace
stands for the rest.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tierd_client.errors import InvalidArgument
from tierd_client.integrations.options import Options
from tierd_client.integrations.vllm.versions import (
    OffloadingConfig,
    beside_the_files,
    engine_name,
    model_directory,
)
from tierd_client.integrations.weights import weights_digest
from tierd_client.layout import Group, Layout, Part
from tierd_client.paged import PagedKV


def layouts_of(config: OffloadingConfig, options: Options) -> list[Layout]:
    """The layout of each rank, by its number. Raises InvalidArgument for an engine that cannot be served."""
    _check(config)
    revision = _revision(config, options)
    groups = [_group(config, number) for number in range(len(config.groups))]
    ranks = 1 if config.replicated_layout else config.parallel.tp_size
    return [
        Layout.of_groups(
            groups, model=_name(config.model.name), revision=revision, engine=engine_name(),
            kv_layout=f"{config.kv_cache_layout} {config.model.dtype}", tenant_salt=options.tenant.encode(),
            tp_rank=rank, tp_size=ranks)
        for rank in range(ranks)
    ]


def chunk_layout(config: OffloadingConfig, options: Options, chunk_bytes: int) -> Layout:
    """The layout of the chunks of vLLM's own CPU tier, in which all ranks of an engine lie together."""
    parallel, blocks = config.parallel, config.cache.blocks_per_chunk
    groups = [
        Group(f"{number}", group.tokens_per_block * blocks, (Part("chunk", "uint8", (1, chunk_bytes)),))
        for number, group in enumerate(config.groups)
    ]
    together = (
        f"tp={parallel.tp_size} pp={parallel.pp_size} pcp={parallel.pcp_size} dcp={parallel.dcp_size} "
        f"replicated={config.replicated_layout} canonical={config.canonical_layout}")
    return Layout.of_groups(
        groups, model=_name(config.model.name), revision=_revision(config, options),
        engine=f"{engine_name()}-chunks", tenant_salt=options.tenant.encode(),
        kv_layout=f"{config.kv_cache_layout} {config.model.dtype} {together}")


def check_named(vllm_config: Any, options: Options) -> None:
    """Raises InvalidArgument where the namespace would be that of engines with other KV: it is named by the model's
    files unless `revision` names it."""
    told = [] if options.revision else beside_the_files(vllm_config)
    if told:
        raise InvalidArgument(
            f"tierd.revision: needed, because of {', '.join(told)}: the same text for engines told the same")


def of_epoch(layout: Layout, epoch: str) -> Layout:
    """The layout of blocks that were stored since an engine dropped all before: `epoch` sets them apart."""
    return layout.replace(revision=f"{layout.revision}{epoch}") if epoch else layout


def pages_of(layout: Layout, kv_caches: Any) -> list[PagedKV]:
    """A worker's pages of each group. Raises InvalidArgument where they are not what the configuration says."""
    paged = []
    for number, refs in enumerate(kv_caches.group_data_refs):
        tensors = [kv_caches.tensors[index].tensor for index in dict.fromkeys(ref.tensor_idx for ref in refs)]
        layers, page_bytes = layout.groups[number].parts[0].shape
        if len(tensors) == 1 and layers > 1:  # all layers of a block lie together
            tensors = [tensors[0][:, at : at + page_bytes] for at in range(0, layers * page_bytes, page_bytes)]
        paged.append(PagedKV(layout, [_as_bytes(tensor) for tensor in tensors], group=number))
    return paged


def _check(config: OffloadingConfig) -> None:
    if config.cache.blocks_per_chunk != 1:
        raise InvalidArgument("kv_connector_extra_config: block_size and blocks_per_chunk are not served; blocks "
                              "are those of vLLM, and larger ones come from --block-size")
    if config.canonical_layout:
        raise InvalidArgument("kv_connector_extra_config: canonical_layout is not served")
    parallel = config.parallel
    for name, size in (("pipeline", parallel.pp_size), ("context", parallel.pcp_size * parallel.dcp_size)):
        if size != 1:
            raise InvalidArgument(f"{name} parallelism of {size} is not served, only tensor parallelism")


def _name(model: str) -> str:
    """Without the way to it, which hosts need not share."""
    return Path(model).name if Path(model).is_dir() else model


def _revision(config: OffloadingConfig, options: Options) -> str:
    directory = model_directory(config.model.name)
    revision = options.revision or (weights_digest(Path(directory)) if directory else "")
    if not revision:
        raise InvalidArgument(
            f"tierd.revision: needed, for no files of model {config.model.name} are found on this machine, and a "
            "name does not tell weights apart")
    return revision


def _group(config: OffloadingConfig, number: int) -> Group:
    """Pages as bytes, one of each layer: vLLM gives every group the same bytes a block."""
    group, block_bytes = config.groups[number], config.worker_kv_bytes_per_block
    layers = len(group.layer_names)
    if block_bytes % layers:
        raise InvalidArgument(f"KV cache group {group.group_id}: {block_bytes} bytes a block are not those of "
                              f"{layers} layers alike")
    part = Part("pages", "uint8", (layers, block_bytes // layers))
    return Group(f"{number}", group.tokens_per_block, (part,))


def _as_bytes(tensor: Any) -> Any:
    import torch  # a worker's; the scheduler's process has no use for it

    return tensor.view(torch.uint8)
