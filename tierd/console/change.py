"""Commands that move, protect, remove or check blocks: evict, readmit, pin, unpin, clear, drain, verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.progress import Progress, TaskID

from tierd.console.answers import print_json, print_table, size
from tierd.console.link import (
    Address,
    AsJson,
    Ids,
    TimeoutOption,
    connect,
    filtered,
    parse_bytes,
    parse_ids,
    parse_tier,
    progress,
    whole_ids,
)
from tierd_client import Client
from tierd_client.admin import BlockFilter, BlockRecord
from tierd_client.deadline import Deadline
from tierd_client.hints import milliseconds
from tierd_client.outcomes import EvictOutcome, Outcome, PinOutcome, ReadmitOutcome, outcomes_of, tier_number
from tierd_client.routine import run
from tierd_client.v1 import blocks_pb2

BATCH_BLOCKS = 256
VERIFY_BLOCKS = 64
TASK = TaskID(0)

All = Annotated[bool, typer.Option("--all", help="Every block that the filter takes, instead of ids.")]


@filtered
def evict(
    where: BlockFilter, ids: Ids = None, all_: All = False,
    to: Annotated[str, typer.Option(help="host or spill.")] = "spill",
    drop: Annotated[bool, typer.Option(help="Drop all copies instead of moving them down.")] = False,
    timeout_s: TimeoutOption = 60.0, address: Address = None, as_json: AsJson = False,
) -> None:
    """Move blocks down, or drop them. Blocks in use stay. Status 1 when a move failed or did not end in time."""
    target = None if drop else parse_tier(to, "--to")

    def request(blocks: Any, timeout_ms: int) -> Any:
        return blocks_pb2.EvictRequest(
            blocks=blocks, to=tier_number(target), allow_drop=drop, timeout_ms=timeout_ms
        )

    which = _Choice(parse_ids(ids), all_, where)
    counts = _move(address, which, "Evict", EvictOutcome, request, timeout_s)
    _report(counts, as_json, bad=(EvictOutcome.FAILED, EvictOutcome.PENDING))


@filtered
def readmit(
    where: BlockFilter, ids: Ids = None, all_: All = False,
    to: Annotated[str, typer.Option(help="host or hbm.")] = "host",
    timeout_s: TimeoutOption = 60.0, address: Address = None, as_json: AsJson = False,
) -> None:
    """Move blocks up by identity; not an access. Status 1 when one is not there in time."""
    target = parse_tier(to, "--to")

    def request(blocks: Any, timeout_ms: int) -> Any:
        return blocks_pb2.ReadmitRequest(blocks=blocks, to=tier_number(target), timeout_ms=timeout_ms)

    which = _Choice(parse_ids(ids), all_, where)
    counts = _move(address, which, "Readmit", ReadmitOutcome, request, timeout_s)
    _report(counts, as_json, bad=(ReadmitOutcome.PENDING, ReadmitOutcome.FULL, ReadmitOutcome.LOST))


@filtered
def pin(
    where: BlockFilter, ids: Ids = None, all_: All = False,
    ttl_s: Annotated[float, typer.Option(min=0.0, help="Seconds that it lasts; 0 is the daemon's default.")] = 0.0,
    timeout_s: TimeoutOption = 60.0, address: Address = None, as_json: AsJson = False,
) -> None:
    """Protect blocks: the last copy of each is not dropped, until a time. Status 1 when one is not there."""
    ttl_ms = milliseconds(ttl_s, "--ttl-s")

    def request(blocks: Any, timeout_ms: int) -> Any:
        del timeout_ms  # nothing is waited for
        return blocks_pb2.PinRequest(blocks=blocks, ttl_ms=ttl_ms)

    which = _Choice(parse_ids(ids), all_, where)
    _report(_move(address, which, "Pin", PinOutcome, request, timeout_s), as_json, bad=(PinOutcome.MISS,))


@filtered
def unpin(
    where: BlockFilter, ids: Ids = None, all_: All = False, address: Address = None, as_json: AsJson = False,
) -> None:
    """End pins before their time, whoever set them."""
    which = _Choice(parse_ids(ids), all_, where)
    with connect(address) as client, progress("unpinning"):
        known = [one for one in which.records(client) if one is not None and not one.ghost]
        ended = sum(
            _call(client, "Unpin", blocks_pb2.UnpinRequest(blocks=_block_ids(batch)), 0.0).unpinned_blocks
            for batch in _batches(known, _most(client))
        )
    if as_json:
        print_json({"unpinned": ended})
    else:
        print_table(["outcome", "blocks"], [("unpinned", ended)])


class _Choice:
    """Which blocks a command moves: ids, or all of a filter; neither or both is wrong usage."""

    def __init__(self, ids: list[bytes], all_: bool, where: BlockFilter) -> None:
        if bool(ids) == all_ or (ids and where):
            raise typer.BadParameter("give identities, or --all with or without filters", param_hint="IDS")
        self.ids = ids
        self.where = where

    def records(self, client: Client) -> list[BlockRecord | None]:
        if self.ids:
            return client.admin.describe(whole_ids(client, self.ids))
        return list(client.admin.list_blocks(**self.where))


def _move(
    address: str | None, which: _Choice, method: str, kind: type[Outcome], request: Callable[[Any, int], Any],
    timeout_s: float,
) -> Counter[Outcome]:
    """Moves what was chosen, a batch of one group at a time; returns how often each outcome came."""
    deadline = Deadline(timeout_s)
    counts: Counter[Outcome] = Counter()
    with connect(address) as client, progress(method.lower()) as bar:
        records = which.records(client)
        bar.update(TASK, total=len(records))
        known = [one for one in records if one is not None and not one.ghost]
        counts[kind["MISS"]] += len(records) - len(known)
        for batch in _batches(known, _most(client)):
            reply = _call(client, method, request(_block_ids(batch), deadline.left_ms()), deadline.left_s())
            counts.update(outcomes_of(kind, reply.outcomes))
            bar.advance(TASK, len(batch))
    return +counts


def _most(client: Client) -> int:
    """Blocks of one call."""
    return int(min(BATCH_BLOCKS, client.connection.current().info.max_ids))


def _block_ids(batch: list[BlockRecord]) -> Any:
    """Blocks of one group as the wire has them."""
    ids = b"".join(one.identity for one in batch)
    return blocks_pb2.BlockIds(namespace=batch[0].namespace, group=batch[0].group, ids=ids)


def _call(client: Client, method: str, request: Any, wait_s: float) -> Any:
    return run(client.connection.call(method, request, wait_s))


def _batches(records: list[BlockRecord], most: int) -> Iterator[list[BlockRecord]]:
    """Records of one group each, deepest first, so that no block goes before its child."""
    order = sorted(records, key=lambda one: (one.namespace, one.group, -one.position))
    for _, group in groupby(order, key=lambda one: (one.namespace, one.group)):
        each = list(group)
        yield from (each[start : start + most] for start in range(0, len(each), most))


def _report(counts: Counter[Outcome], as_json: bool, bad: tuple[Outcome, ...]) -> None:
    if as_json:
        print_json({outcome.name.lower(): count for outcome, count in counts.items()})
    else:
        print_table(["outcome", "blocks"], [(outcome.name.lower(), count) for outcome, count in counts.items()])
    if any(counts[outcome] for outcome in bad):
        raise typer.Exit(1)


@filtered
def clear(
    where: BlockFilter,
    ghosts: Annotated[bool, typer.Option(help="Also forget all records without a copy; without a filter.")] = False,
    dry_run: Annotated[bool, typer.Option(help="Only say what would go.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    address: Address = None, as_json: AsJson = False,
) -> None:
    """Remove blocks by filter, without a filter all of them. Blocks in use stay, and are listed."""
    if not (dry_run or yes):
        which = "every block that the filter takes" if where else "all blocks, those in the spill tier too"
        typer.confirm(f"Remove {which}?", abort=True, err=True)
    with connect(address) as client, progress("clearing"):
        found = client.admin.clear(dry_run=dry_run, ghosts=ghosts, **where)
    if as_json:
        print_json(found)
    else:
        rows = [(tier.name.lower(), one.blocks, size(one.bytes)) for tier, one in found.tiers.items()]
        print_table(["tier", "blocks", "bytes"], rows, title="would go" if dry_run else "removed")
        typer.echo(f"\n{found.ghosts} ghosts; left, being in use: {found.in_use_blocks} blocks")
        if found.left_blocks or found.deletes_waiting:
            typer.echo(f"values still to be deleted: {found.deletes_waiting}")
            typer.echo(f"blocks left, clear again: {found.left_blocks}")
        for identity in found.in_use_ids:
            typer.echo(f"  {identity.hex()}")


@filtered
def drain(
    where: BlockFilter,
    rate: Annotated[str, typer.Option(help="Most bytes stored in a second, such as 100MiB; 0: no bound.")] = "0",
    timeout_s: TimeoutOption = 600.0, address: Address = None, as_json: AsJson = False,
) -> None:
    """Store in the spill tier what lies above it alone; the copies above stay. Ctrl-C ends it. Status 1 when not
    all was stored."""
    bytes_per_s = parse_bytes(rate, "--rate")
    last = None
    with connect(address) as client, progress("draining") as bar:
        for last in client.admin.drain(bytes_per_s=bytes_per_s, timeout_s=timeout_s, **where):
            bar.update(TASK, total=last.total_blocks, completed=last.stored_blocks)
    if last is None:
        raise typer.Exit(1)
    if as_json:
        print_json(last)
    else:
        columns = ["ended", "stored", "bytes", "of", "held before", "gone", "failed"]
        row = (last.state.name.lower(), last.stored_blocks, size(last.stored_bytes), last.total_blocks,
               last.held_blocks, last.gone_blocks, last.failed_blocks)
        print_table(columns, [row])
    if last.stored_blocks + last.gone_blocks < last.total_blocks:
        raise typer.Exit(1)


@filtered
def verify(
    where: BlockFilter, ids: Ids = None,
    repair: Annotated[bool, typer.Option(help="Drop damaged copies.")] = False,
    timeout_s: TimeoutOption = 600.0, address: Address = None, as_json: AsJson = False,
) -> None:
    """Compare stored bytes with their checksums, of ids or of all that the filter takes. Status 1 on damage."""
    wanted = parse_ids(ids)
    if wanted and where:
        raise typer.BadParameter("give identities or filters, not both", param_hint="IDS")
    with connect(address) as client, progress("verifying") as bar:
        found = _verify(client, bar, wanted, where, repair, Deadline(timeout_s))
    if as_json:
        print_json(found)
    else:
        columns = ["verified", "bytes", "damaged", "skipped"]
        damaged = found["damaged"]
        row = (found["verified_blocks"], size(found["verified_bytes"]), len(damaged), found["skipped_blocks"])
        print_table(columns, [row], left=0)
        for identity in damaged:
            typer.echo(f"damaged: {identity.hex()}")
    if found["damaged"]:
        raise typer.Exit(1)


def _verify(
    client: Client, bar: Progress, wanted: list[bytes], where: BlockFilter, repair: bool, deadline: Deadline
) -> dict[str, Any]:
    """Verifies in small calls, so that progress can be shown and no call runs into its deadline."""
    wanted = whole_ids(client, wanted)
    if not wanted:
        wanted = [one.identity for one in client.admin.list_blocks(**where)]
    bar.update(TASK, total=len(wanted))
    total: dict[str, Any] = {"verified_blocks": 0, "verified_bytes": 0, "damaged": [], "skipped_blocks": 0}
    for start in range(0, len(wanted), VERIFY_BLOCKS):
        part = wanted[start : start + VERIFY_BLOCKS]
        if deadline.left_s() <= 0:
            total["skipped_blocks"] += len(wanted) - start
            break
        found = client.admin.verify(part, repair=repair, timeout_s=deadline.left_s())
        total["verified_blocks"] += found.verified_blocks
        total["verified_bytes"] += found.verified_bytes
        total["damaged"] += found.damaged
        total["skipped_blocks"] += found.skipped_blocks
        bar.advance(TASK, len(part))
    return total


