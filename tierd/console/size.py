"""`tierd size`: bytes of a model's blocks, and how much of it a tier holds. Needs no daemon."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tierd.console.answers import print_json, print_table, size
from tierd.console.link import AsJson, parse_bytes
from tierd.console.models import MODELS, Geometry, read_config
from tierd.core.arena import slot_bytes
from tierd.core.errors import InvalidInput
from tierd.settings import PAGE_BYTES
from tierd_client.layout import DTYPE_BYTES, Group, Layout

SHORT_DTYPES = {"fp8": "float8_e4m3", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class GroupSize:
    """One group of one rank. `replicated`: stored once for all ranks."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    block_bytes: int
    replicated: bool


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model takes. Bytes are those of all ranks together, as one daemon holds them, slots rounded up.

    `bytes_per_token` is what a token adds as it is stored. `sequence_bytes` is what must be there for a sequence
    of that length to be a hit to its end: every block, but of layers with a window those of the last window.
    """

    model: str
    dtype: str
    tp: int
    block_tokens: int
    groups: list[GroupSize]
    rank_block_bytes: int
    bytes_per_token: int
    sequence_tokens: int
    sequence_bytes: int
    tier_bytes: int
    tier_tokens: int
    tier_sequences: int


def size_of(
    geometry: Geometry, dtype: str, tp: int, block_tokens: int, tier_bytes: int, sequence_tokens: int
) -> ModelSize:
    """Raises InvalidInput (`tp`), ValueError."""
    layout = geometry.layout(dtype, block_tokens, tp)
    slots = [_slot_bytes(group, tp) for group in layout.groups]
    sequence_bytes = sum(
        slot * _blocks_of(group, sequence_tokens) for group, slot in zip(layout.groups, slots, strict=True)
    )
    return ModelSize(
        model=geometry.name, dtype=dtype, tp=tp, block_tokens=block_tokens, groups=_groups(layout),
        rank_block_bytes=sum(group.block_bytes for group in layout.groups),
        bytes_per_token=-(-sum(slots) // block_tokens),
        sequence_tokens=sequence_tokens, sequence_bytes=sequence_bytes,
        tier_bytes=tier_bytes, tier_tokens=tier_bytes // sum(slots) * block_tokens,
        tier_sequences=tier_bytes // sequence_bytes,
    )


def _slot_bytes(group: Group, tp: int) -> int:
    """Bytes of a block's slots of all ranks."""
    slot = slot_bytes(group.block_bytes)
    return slot if group.replicated else slot * tp


def _blocks_of(group: Group, tokens: int) -> int:
    """Blocks of a sequence that a hit to its end needs. A window may begin in the middle of a block."""
    blocks = -(-tokens // group.block_tokens)
    if group.rule == "window":
        return min(blocks, -(-group.window_tokens // group.block_tokens) + 1)
    return blocks


def _groups(layout: Layout) -> list[GroupSize]:
    found = []
    for group in layout.groups:
        layers, _, heads, width = group.parts[0].shape
        found.append(GroupSize(group.name, layers, heads, width, group.block_bytes, group.replicated))
    return found


def size_command(
    models: Annotated[list[str] | None, typer.Argument(help="Names of known models; all of them without.")] = None,
    config: Annotated[Path | None, typer.Option(help="A config.json of a model instead.")] = None,
    dtype: Annotated[str, typer.Option(help="fp8, bf16, fp16, fp32 or a dtype of a layout.")] = "bf16",
    tp: Annotated[int, typer.Option(min=1, max=1024, help="Ranks of tensor parallelism on this host.")] = 1,
    block_tokens: Annotated[int, typer.Option(min=1, max=1 << 20, help="Tokens of a block.")] = 16,
    host_bytes: Annotated[str, typer.Option(help="Bytes of the tier to fill.")] = "64GiB",
    sequence_tokens: Annotated[int, typer.Option(min=1, max=1 << 30, help="Length of a sequence.")] = 8192,
    as_json: AsJson = False,
) -> None:
    """Bytes per block and per token of models, and how many tokens and sequences a tier holds."""
    tier_bytes, dtype = _tier_bytes(host_bytes), _dtype(dtype)
    chosen = _chosen(models or [], config)
    found, left_out = [], []
    for geometry in chosen:
        try:
            found.append(size_of(geometry, dtype, tp, block_tokens, tier_bytes, sequence_tokens))
        except (InvalidInput, ValueError) as error:
            if models or config:
                raise typer.BadParameter(f"{geometry.name}: {error}", param_hint="MODELS") from None
            left_out.append(f"{geometry.name}: {error}")
    if as_json:
        print_json(found)
    elif found:
        _print(found)
    for line in left_out:
        typer.echo(f"left out: {line}", err=True)


def _print(found: list[ModelSize]) -> None:
    first = found[0]
    per_rank = " of a rank" if first.tp > 1 else ""
    columns = [
        "model", "layers x KV heads x width" + per_rank, "\nblock" + per_rank, "per\ntoken",
        f"tokens in\n{size(first.tier_bytes)}", f"sequences of\n{first.sequence_tokens:,} tokens",
    ]
    print_table(columns, [
        (one.model, " + ".join(map(_shape, one.groups)), size(one.rank_block_bytes), size(one.bytes_per_token),
         f"{one.tier_tokens:,}", f"{one.tier_sequences:,}")
        for one in found
    ], left=2, title=f"{first.dtype}, blocks of {first.block_tokens} tokens, tensor parallel {first.tp}")


def _shape(group: GroupSize) -> str:
    kind = "" if group.name == "full" else f" {group.name.replace('_', ' ')}"
    return f"{group.layers} x {group.kv_heads} x {group.head_dim}{kind}"


def _chosen(names: list[str], config: Path | None) -> list[Geometry]:
    if config is not None:
        if names:
            raise typer.BadParameter("give models or --config, not both", param_hint="MODELS")
        try:
            return [read_config(config)]
        except InvalidInput as error:
            raise typer.BadParameter(str(error), param_hint="--config") from None
    for name in names:
        if name not in MODELS:
            close = difflib.get_close_matches(name.lower(), MODELS, 3) or list(MODELS)
            raise typer.BadParameter(f"{name!r} is not known: {', '.join(close)}", param_hint="MODELS")
    return [MODELS[name] for name in names] or list(MODELS.values())


def _dtype(text: str) -> str:
    dtype = SHORT_DTYPES.get(text, text)
    if dtype not in DTYPE_BYTES:
        known = ", ".join([*SHORT_DTYPES, *DTYPE_BYTES])
        raise typer.BadParameter(f"{text!r} is none of {known}", param_hint="--dtype")
    return dtype


def _tier_bytes(text: str) -> int:
    found = parse_bytes(text, "--host-bytes")
    if not PAGE_BYTES <= found <= 1 << 50:
        raise typer.BadParameter(f"{found} is not from {PAGE_BYTES} to {1 << 50} bytes", param_hint="--host-bytes")
    return found
