"""Commands that change nothing: stats, namespaces, sequences, blocks, explain, plan, config."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, cast

import typer

from tierd.console.answers import number, print_json, print_table, short, size
from tierd.console.link import (
    Address,
    AsJson,
    Ids,
    connect,
    filtered,
    parse_bytes,
    parse_ids,
    parse_tier,
    progress,
    whole_ids,
)
from tierd.console.shadow import print_shadow, with_seconds
from tierd_client.admin import BlockFilter, BlockRecord, Explanation, NamespaceRecord, Occupancy
from tierd_client.outcomes import Tier
from tierd_client.shadow import ShadowStats

PAGE_SIZE_MAX = 1000


def stats(
    shadow: Annotated[bool, typer.Option("--shadow", help="What host memory of several sizes would have saved "
        "clients in shadow mode, instead.")] = False,
    prefill_tokens_per_s: Annotated[float | None, typer.Option(min=1e-3, max=1e9, help="With --shadow: of the "
        "engine, where it has not measured it or another one is meant.")] = None,
    address: Address = None, as_json: AsJson = False,
) -> None:
    """Bytes and blocks per tier, at one instant: free + used + reserved + stocked + quarantined = capacity."""
    if prefill_tokens_per_s is not None and not shadow:
        raise typer.BadParameter("means nothing without --shadow", param_hint="--prefill-tokens-per-s")
    with connect(address) as client:
        if shadow:
            _print_shadow(client.admin.shadow_stats(), prefill_tokens_per_s, as_json)
            return
        found = client.admin.occupancy()
    if as_json:
        print_json(found)
        return
    _print_bytes(found)
    _print_counts(found)
    _print_spill(found)
    _print_shed(found)
    typer.echo(
        f"\n{found.identities} identities, {found.ghosts} ghosts, {found.sessions} sessions, "
        f"{found.sequences} sequences, {found.leases} leases, {found.moves_in_flight} moves under way, "
        f"{found.misses_total} misses\n{found.pinned_blocks} blocks pinned, {size(found.pinned_bytes)} of "
        f"{size(found.pinned_bytes_max)} that may be, {found.prefetches} prefetches under way\n"
        f"{found.read_ahead_used_total} blocks read ahead were used, {found.read_ahead_wasted_total} were not\n"
        f"step {found.step}, policy {found.policy}, up {found.uptime_s:.0f} s"
    )


def _print_shadow(found: ShadowStats, prefill_tokens_per_s: float | None, as_json: bool) -> None:
    if as_json:
        print_json(with_seconds(found, prefill_tokens_per_s))
    else:
        print_shadow(found, prefill_tokens_per_s)


def _print_bytes(found: Occupancy) -> None:
    columns = ["tier", "state", "capacity", "free", "used", "reserved", "stocked", "quarantined"]
    print_table(columns, [
        (tier.name.lower(), one.state.split(":")[0], *map(size, (
            one.capacity_bytes, one.free_bytes, one.used_bytes, one.reserved_bytes - one.stocked_bytes,
            one.stocked_bytes, one.quarantined_bytes,
        )))
        for tier, one in sorted(found.tiers.items())
    ], left=2)
    for tier, one in sorted(found.tiers.items()):
        if note := one.state.partition(": ")[2]:
            typer.echo(f"{tier.name.lower()}: {note}")


def _print_counts(found: Occupancy) -> None:
    columns = ["\ntier", "\nblocks", "\nevictable", "\nleased", "\nhits", "\nstored", "\ndemoted", "\npromoted",
               "\nevicted", "failed\nmoves"]
    print_table(columns, [
        (tier.name.lower(), one.blocks, one.evictable_blocks, one.leased_blocks, one.hits_total, one.stored_total,
         one.demoted_total, one.promoted_total, one.evicted_total, one.failed_moves_total)
        for tier, one in sorted(found.tiers.items())
    ])


def _print_spill(found: Occupancy) -> None:
    """What only the spill tier has, where there is something to say."""
    spill = found.tiers[Tier.SPILL]
    if spill.found_blocks:
        typer.echo(f"\n{spill.found_blocks} of the spill tier's blocks were stored by other daemons")
    if takes := ", ".join(f"{size(block)}: {one:,} bytes" for block, one in spill.footprints.items()):
        typer.echo(f"\nmemory of the spill server that a block takes, as learnt: {takes}")


def _print_shed(found: Occupancy) -> None:
    for tier, one in sorted(found.tiers.items()):
        if shed := ", ".join(f"{reason} {count}" for reason, count in sorted(one.shed_total.items()) if count):
            typer.echo(f"\nnot stored in the {tier.name.lower()} tier: {shed}")


def namespaces(
    by_tenant: Annotated[bool, typer.Option("--by-tenant", help="Sums over each tenant's namespaces.")] = False,
    address: Address = None, as_json: AsJson = False,
) -> None:
    """What each namespace, or tenant, has in each tier: blocks, and bytes of slots in use or being written."""
    with connect(address) as client:
        found = list(client.admin.namespaces(by_tenant=by_tenant))
    if as_json:
        print_json(found)
        return
    tiers = sorted(found[0].tiers) if found else []
    who = ["tenant", "domain"] if by_tenant else ["namespace", "name", "model", "revision", "epoch", "tenant"]
    columns = [*who, *(f"{tier.name.lower()} {what}" for tier in tiers for what in ("blocks", "bytes"))]
    print_table(columns, [_share_row(one, by_tenant, tiers) for one in found], left=len(who))


def _share_row(one: NamespaceRecord, by_tenant: bool, tiers: list[Tier]) -> list[object]:
    layout = [one.namespace, ",".join(one.names), one.model, one.revision, one.weights_epoch, one.tenant]
    who = [one.tenant, one.domain] if by_tenant else layout
    shares = [one.tiers[tier] for tier in tiers]
    held = [cell for share in shares for cell in (share.blocks, size(share.used_bytes + share.reserved_bytes))]
    return [*("-" if cell == "" else cell for cell in who), *held]


def sequences(address: Address = None, as_json: AsJson = False) -> None:
    """Running requests: how many blocks each has, and of one with a budget what of that is used in hbm."""
    with connect(address) as client:
        found = list(client.admin.sequences())
    if as_json:
        print_json(found)
        return
    columns = ["\nsequence", "\npolicy", "\nsession", "\nblocks", "\nbudget", "\nsinks", "\nrecent", "\nkept",
               "\nleaving", "given\nup", "spare\nslots"]
    print_table(columns, [
        (one.sequence, one.policy + " (lossy)" * one.lossy or "-", one.session, one.blocks, one.budget_blocks,
         one.sink_blocks, one.recent_blocks, one.kept_blocks, one.leaving_blocks, one.given_up_blocks,
         one.spare_slots)
        for one in found
    ], left=2)


@filtered
def blocks(
    where: BlockFilter, ids: Ids = None,
    in_use: Annotated[
        bool | None, typer.Option("--in-use/--idle", help="Only blocks that are, or are not, in use.")
    ] = None,
    pinned: Annotated[
        bool | None, typer.Option("--pinned/--not-pinned", help="Only blocks that are, or are not, pinned.")
    ] = None,
    by_rank: Annotated[bool, typer.Option("--by-rank", help="Next to be evicted first; needs --tier.")] = False,
    limit: Annotated[int, typer.Option(min=1, help="At most so many blocks.")] = 50,
    skip: Annotated[int, typer.Option(min=0, help="Leave out so many from the beginning: the next page.")] = 0,
    address: Address = None, as_json: AsJson = False,
) -> None:
    """List blocks by filter, or show the records of the ids given."""
    wanted = parse_ids(ids)
    tier = cast(Tier | None, where.get("tier"))
    where["in_use"], where["pinned"] = in_use, pinned
    if by_rank and tier is None:
        raise typer.BadParameter("needs --tier: each tier has its own order", param_hint="--by-rank")
    with connect(address) as client, progress("listing blocks"):
        if wanted:
            found = client.admin.describe(whole_ids(client, wanted))
        else:
            each = client.admin.list_blocks(
                by_rank=by_rank, page_size=min(skip + limit + 1, PAGE_SIZE_MAX), **where,
            )
            found = list(islice(each, skip, skip + limit + 1))
    more = not wanted and len(found) > limit
    found = found if wanted else found[:limit]
    if as_json:
        print_json([None if one is None else _with_tiers(one) for one in found])
    else:
        _print_blocks(found, tier)
        if more:
            typer.echo(f"\nmore: --skip {skip + limit}", err=True)
    if None in found:
        raise typer.Exit(1)


def _with_tiers(block: BlockRecord) -> dict[str, object]:
    return {name: getattr(block, name) for name in block.__slots__} | {"tiers": block.tiers}


def _print_blocks(found: list[BlockRecord | None], tier: Tier | None) -> None:
    columns = ["identity", "tiers", "namespace", "group", "position", "size", "touches", "last step", "ema", "crf",
               "leases", "sequences", "hints", "rank" if tier is None else f"{tier.name.lower()} rank"]
    print_table(columns, [_row(one, tier) if one else ("unknown",) for one in found], left=3)


def _row(one: BlockRecord, tier: Tier | None) -> tuple[object, ...]:
    names = ",".join(copy.tier.name.lower() + ("" if copy.state == "READY" else "*") for copy in one.copies)
    ranks = [copy.rank for copy in one.copies if tier in (None, copy.tier)]
    name = one.namespace_name or one.namespace
    return (
        short(one.identity), names or "ghost", name, one.group, one.position, size(one.block_bytes), one.touches,
        one.last_step, number(one.ema), number(one.crf), sum(copy.leases for copy in one.copies), one.sequences,
        _hints(one) or "-",
        number(ranks[0]) if ranks else "-",
    )


def _hints(one: BlockRecord) -> str:
    """What was said of a block: its priority unless it is normal, its next use, and how long it is pinned."""
    said = [one.priority] if one.priority not in ("", "normal") else []
    said += [one.next_use + (f" {one.expected_s:.0f} s" if one.expected_s else "")] if one.next_use else []
    return ", ".join(said + ([f"pinned {one.pinned_s:.0f} s"] if one.pinned_s else []))


def explain(
    ids: Ids = None, tier: Annotated[str, typer.Option(help="hbm, host or spill.")] = "host",
    address: Address = None, as_json: AsJson = False,
) -> None:
    """Every term of a block's rank in a tier, what protects it, and where it would go."""
    wanted, where = parse_ids(ids), parse_tier(tier, "--tier")
    if not wanted:
        raise typer.BadParameter("at least one identity", param_hint="IDS")
    with connect(address) as client:
        found = client.admin.explain(whole_ids(client, wanted), where)
    if as_json:
        print_json(found)
        return
    typer.echo(f"policy {found.policy}, step {found.step}, tier {where.name.lower()}\n")
    for one in found.blocks:
        _print_explanation(one, where)


def _print_explanation(one: Explanation, tier: Tier) -> None:
    typer.echo(one.identity.hex())
    if not one.rule:
        typer.echo(f"  no copy that is ready in {tier.name.lower()}\n")
        return
    typer.echo(f"  {one.rule}")
    for name, value in one.terms.items():
        typer.echo(f"    {name} = {number(value)}")
    typer.echo(f"  rank {number(one.rank)} (higher goes sooner)")
    typer.echo(f"  protected: {one.protected_by or 'no'}\n  would go to: {one.destination or '-'}\n")


def plan(
    needed: Annotated[str, typer.Argument(help="Bytes needed, such as 512MiB.")],
    tier: Annotated[str, typer.Option(help="hbm, host or spill.")] = "host",
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many victims are listed.")] = 50,
    address: Address = None, as_json: AsJson = False,
) -> None:
    """Dry run: what would go and where to, if so many bytes were needed now. Changes nothing."""
    where, needed_bytes = parse_tier(tier, "--tier"), parse_bytes(needed, "NEEDED")
    with connect(address) as client, progress("planning"):
        found = client.admin.plan(needed_bytes, where, limit)
    if as_json:
        print_json(found)
    else:
        print_table(
            ["identity", "would go to", "rank"],
            [(short(one.identity), one.destination, number(one.rank)) for one in found.victims], left=2,
        )
        would_go = f"{found.victim_blocks} blocks, {size(found.victim_bytes)} in all, would go"
        enough = "" if found.enough else f"; {size(needed_bytes)} cannot be had"
        typer.echo(f"\n{size(found.free_bytes)} free, {would_go}{enough}")
    if not found.enough:
        raise typer.Exit(1)


def config(
    set_policy: Annotated[
        str | None, typer.Option(help="Change the eviction policy of the running daemon; loses no statistics.")
    ] = None,
    address: Address = None, as_json: AsJson = False,
) -> None:
    """The settings in force of a running daemon, credentials masked."""
    with connect(address) as client:
        if set_policy is not None:
            client.admin.set_policy(set_policy)
        found = client.admin.config() | {"policy": client.admin.occupancy().policy}
    if as_json:
        print_json(found)
    else:
        print_table(["setting", "value"], [(name, _setting(value)) for name, value in found.items()], left=2)


def _setting(value: object) -> str:
    """As a setting is written; what is not set as a dash."""
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value in (None, "") else str(value).lower() if isinstance(value, bool) else str(value)
