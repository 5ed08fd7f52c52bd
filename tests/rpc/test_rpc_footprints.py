"""The daemon asks its spill store what blocks take, and counts with the answer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rpc_daemon import BLOCK, DEADLINE_S, Daemon, block_ids, run
from structlog.testing import capture_logs

from tierd.adapters.envelope import HEADER_BYTES
from tierd.adapters.instance import StateDirectory
from tierd.app.footprints import FootprintSurvey
from tierd.testing.faulty import Fault, Operation
from tierd_client.v1 import admin_pb2 as apb
from tierd_client.v1 import blocks_pb2 as pb

TAKEN = BLOCK + HEADER_BYTES


class Looks:
    """Every look has `fault`."""

    def __init__(self) -> None:
        self.fault = Fault.NONE

    def next(self, operation: Operation) -> Fault:
        return self.fault if operation is Operation.LOOK else Fault.NONE


async def spilled(d: Daemon) -> FootprintSurvey:
    """Three blocks lie in the spill store; what would ask about them."""
    await d.namespace()
    await d.store_blocks((await d.session()).number, block_ids(1, 2, 3))
    await d.evict(block_ids(1, 2, 3))
    return FootprintSurvey(d.service.writer, d.service.mover, save=lambda _: None)


async def spill_row(d: Daemon) -> apb.TierOccupancy:
    reply = await d.admin.Occupancy(apb.OccupancyRequest(), timeout=DEADLINE_S)
    return next(tier for tier in reply.tiers if tier.tier == pb.TIER_SPILL)


def test_a_round_learns(tmp_path: Path) -> None:
    """After a round blocks count as what the store says that they take, which is kept for the next daemon once."""

    async def body(d: Daemon) -> None:
        saved: list[Mapping[int, int]] = []
        await spilled(d)
        survey = FootprintSurvey(d.service.writer, d.service.mover, save=saved.append)
        assert (await spill_row(d)).used_bytes == 3 * BLOCK
        await survey.round()
        await survey.round()
        row = await spill_row(d)
        assert (row.used_bytes, dict(row.footprints)) == (3 * TAKEN, {BLOCK: TAKEN})
        assert saved == [{BLOCK: TAKEN}]
        await d.check_balance()

    run(body, tmp_path)


def test_a_store_that_refuses_to_tell(tmp_path: Path) -> None:
    """A store that refuses is asked once, said to be one in one line, and whole pages are assumed."""
    looks = Looks()

    async def body(d: Daemon) -> None:
        survey = await spilled(d)
        looks.fault = Fault.REFUSED
        asked = d.faulty.injected[Fault.REFUSED]
        with capture_logs() as lines:
            await survey.round()
            await survey.round()
        assert [line["event"] for line in lines] == ["footprints_assumed"]
        assert d.faulty.injected[Fault.REFUSED] == asked + 1
        assert (await spill_row(d)).used_bytes == 3 * BLOCK

    run(body, tmp_path, script=looks)


def test_nonsense_is_not_believed(tmp_path: Path) -> None:
    """An answer that no allocator would give changes nothing."""

    async def body(d: Daemon) -> None:
        survey = await spilled(d)
        d.store.footprints = lambda *_: [1 << 60] * 3  # type: ignore[method-assign]
        await survey.round()
        assert not (await spill_row(d)).footprints

    run(body, tmp_path)


def test_what_is_kept_between_daemons(tmp_path: Path) -> None:
    """Footprints come back from the state directory as they were kept; a file that is none holds nothing."""
    directory = StateDirectory.claim(tmp_path / "state")
    assert directory.numbers("footprints") == {}
    directory.keep_numbers("footprints", {4096: 5000, 5 << 20: 6 << 20})
    assert directory.numbers("footprints") == {4096: 5000, 5 << 20: 6 << 20}
    for torn in ("4096", "4096 -1", "a b", "1 2 3"):
        (directory.path / "footprints").write_text(torn)
        assert directory.numbers("footprints") == {}
    directory.release()
