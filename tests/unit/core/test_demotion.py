"""Demotion, promotion and what becomes of a block when a move fails."""

from __future__ import annotations

import numpy as np
import pytest
from engine_driver import BLOCK, SESSION, Driver, identity, ids_of

from tierd.core import messages as m
from tierd.core.errors import InvalidInput
from tierd.core.invariants import check


def full_host(**settings: object) -> Driver:
    """Two blocks fill the host tier; the spill tier is on."""
    driver = Driver(host=2, spill=8, **settings)
    driver.put([0])
    driver.put([1])
    return driver


def test_a_put_without_room_waits_for_the_demotion_of_the_lowest_ranked() -> None:
    """The newcomer is PENDING on one move, of the least recently used block, and stored after it."""
    driver = full_host()
    reply = driver.reserve(ids_of([2]))
    assert reply.outcomes.tolist() == [m.Reserved.PENDING] and len(reply.waiting) == 1
    (move,) = driver.moves
    assert (move.identity, move.source, move.target) == (identity(0), m.Tier.HOST, m.Tier.SPILL)
    assert driver.tiers(0) == {m.Tier.HOST}, "the source stays until the target is READY"
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.SPILL}
    assert driver.put([2]) == [m.Reserved.GRANTED]


def test_a_demotion_that_fails_leaves_the_upper_copy() -> None:
    """After a failed move the block is where it was, and may be chosen again."""
    driver = full_host()
    driver.reserve(ids_of([2]))
    driver.carry_out(ok=False)
    assert driver.tiers(0) == {m.Tier.HOST}
    driver.reserve(ids_of([2]))
    assert driver.moves[0].identity == identity(0)


def test_a_block_read_while_it_is_demoted_stays() -> None:
    """A victim that is accessed before its copy below is READY keeps its copy in host."""
    driver = full_host()
    driver.reserve(ids_of([2]))
    driver.release(driver.acquire([0]))
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HOST, m.Tier.SPILL}


def test_a_block_leased_while_it_is_demoted_stays() -> None:
    """A leased victim keeps its slot."""
    driver = full_host()
    driver.reserve(ids_of([2]))
    lease = driver.acquire([0])
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HOST, m.Tier.SPILL}
    driver.release(lease)


def test_a_victim_that_lies_below_already_is_dropped_at_once() -> None:
    """A demotion onto an existing copy is only a drop of the upper."""
    driver = full_host()
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0])))
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HOST, m.Tier.SPILL}
    driver.release(driver.acquire([1]))
    assert driver.put([2]) == [m.Reserved.GRANTED]
    assert driver.tiers(0) == {m.Tier.SPILL} and not driver.moves


def test_an_eviction_of_what_lies_below_already_drops_it_above_at_once() -> None:
    """Evicted to spill, a block that was brought up from there leaves host without a move."""
    driver = Driver(host=2, spill=2)
    driver.put([0])
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0]), m.Tier.HOST))
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HOST, m.Tier.SPILL}
    reply = driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    assert reply.outcomes.tolist() == [m.Evicted.MOVED] and not driver.moves and driver.tiers(0) == {m.Tier.SPILL}


def test_while_the_spill_is_down_nothing_is_lost_for_newcomers() -> None:
    """Within the grace time a put without room is FULL and all blocks stay; after it the lowest ranked go."""
    driver = full_host(spill_grace_s=60.0)
    driver.step(m.SpillState(up=False))
    assert driver.put([2]) == [m.Reserved.FULL]
    assert driver.present() == [0, 1]
    driver.now += 61
    assert driver.put([2]) == [m.Reserved.GRANTED]
    assert driver.present() == [1, 2]


def test_a_copy_in_a_spill_that_is_down_is_not_relied_upon() -> None:
    """A doubly held block is not dropped from host while its other copy cannot be reached."""
    driver = full_host()
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0])))
    driver.carry_out()
    driver.step(m.SpillState(up=False))
    assert driver.put([2]) == [m.Reserved.FULL]
    assert driver.present() == [0, 1]


def test_a_server_that_forgot_makes_its_blocks_misses() -> None:
    """After a flush, blocks only in spill are gone, and nothing is deleted from the server."""
    driver = full_host()
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.SpillState(up=True, forgotten=True))
    assert driver.tiers(0) == set() and driver.tiers(1) == {m.Tier.HOST}
    assert not driver.unlinked
    ghost = driver.describe(0)
    assert ghost is not None and ghost.ghost and ghost.record.touches == 1


def test_a_full_server_is_believed() -> None:
    """After "full" the spill tier holds what it held, and a new value needs room made there first."""
    driver = full_host()
    driver.put([2])
    driver.carry_out()
    driver.put([2])
    driver.reserve(ids_of([3]))
    driver.carry_out(ok=False, full=True)
    spill = driver.engine.state.tiers[m.Tier.SPILL].copies
    assert spill.capacity == spill.used == BLOCK
    driver.reserve(ids_of([3]))
    assert driver.unlinked == [identity(0)], "the lowest ranked value makes way"


@pytest.mark.parametrize("chunk", [2, 64])
def test_blocks_of_one_evict_make_no_room_for_one_another(chunk: int) -> None:
    """Of more blocks than spill holds the first are MOVED and stay there, the others FAILED and stay above,
    also where they are moved a few at a time and the rest is asked for again."""
    driver = Driver(host=8, spill=4, max_moves=chunk)
    driver.put(range(6))
    whole = ids_of(range(6))
    reply = driver.step(m.Evict(whole, m.Tier.SPILL))
    assert isinstance(reply, m.Outcomes)
    outcomes = reply.outcomes.copy()
    while len(left := np.flatnonzero(outcomes == m.Evicted.PENDING)):
        assert driver.carry_out()
        rest = driver.step(m.Evict(whole.take(left), m.Tier.SPILL, retry=True))
        assert isinstance(rest, m.Outcomes)
        outcomes[left] = rest.outcomes
    assert outcomes.tolist() == [m.Evicted.MOVED] * 4 + [m.Evicted.FAILED] * 2
    assert driver.present(m.Tier.SPILL) == [0, 1, 2, 3] and driver.present() == [4, 5]


def test_blocks_of_one_readmit_make_no_room_for_one_another() -> None:
    """Of more blocks than host holds the first are READY and stay there, the others FULL, however few moves
    there are at a time."""
    driver = Driver(host=4, spill=8, max_moves=2)
    for number in range(6):
        driver.put([number])
        driver.step(m.Evict(ids_of([number]), m.Tier.SPILL))
        driver.carry_out()
    whole = ids_of(range(6))
    reply = driver.step(m.Readmit(whole, m.Tier.HOST))
    assert isinstance(reply, m.Outcomes)
    outcomes = reply.outcomes.copy()
    while len(left := np.flatnonzero(outcomes == m.Readmitted.PENDING)):
        assert driver.carry_out()
        rest = driver.step(m.Readmit(whole.take(left), m.Tier.HOST))
        assert isinstance(rest, m.Outcomes)
        outcomes[left] = rest.outcomes
    assert outcomes.tolist() == [m.Readmitted.READY] * 4 + [m.Readmitted.FULL] * 2
    assert driver.present() == [0, 1, 2, 3]


def test_a_server_that_was_full_is_tried_again() -> None:
    """A server that refused everything is offered one block a second later, and in the end all that the limit
    allows; one that stays full is offered one block a second and no more."""
    driver = full_host()
    spill = driver.engine.state.tiers[m.Tier.SPILL].copies
    driver.step(m.Evict(ids_of([0, 1]), m.Tier.SPILL))
    driver.carry_out(ok=False, full=True)
    assert spill.capacity == 0
    driver.step(m.Evict(ids_of([0, 1]), m.Tier.SPILL))
    assert not driver.moves, "not at once"
    for _ in range(3):
        driver.now += 1
        for _ in range(3):
            driver.step(m.Evict(ids_of([0, 1]), m.Tier.SPILL))
        assert len(driver.moves) == 1
        driver.carry_out(ok=False, full=True)
    for number in range(5):
        driver.now += 1
        driver.put([number])
        driver.step(m.Evict(ids_of([number]), m.Tier.SPILL))
        driver.carry_out()
        assert driver.tiers(number) == {m.Tier.SPILL}
    assert spill.capacity == spill.limit


def test_what_vanished_below_is_a_miss() -> None:
    """A load that finds nothing drops the copy; the next Acquire is a MISS."""
    driver = full_host()
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    assert driver.acquire([0]).outcomes.tolist() == [m.Acquired.PENDING]
    driver.carry_out(ok=False, lost=True)
    assert driver.acquire([0]).outcomes.tolist() == [m.Acquired.MISS]
    assert not driver.unlinked or driver.unlinked == [identity(0)]


def test_what_vanished_is_a_miss_also_for_the_sequence_that_pins_it() -> None:
    """The pin of a running sequence does not keep a copy that is gone."""
    driver = full_host()
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0])))
    driver.acquire([0], "s")
    driver.carry_out(ok=False, lost=True)
    assert driver.tiers(0) == set()
    driver.step(m.CloseSequence(SESSION, "s"))


def test_re_admission_brings_the_record_back_to_the_last_bit() -> None:
    """Statistics, checksum and place are the same before demotion and after re-admission."""
    driver = full_host(policy="lrfu")
    driver.release(driver.acquire([0]))
    before = driver.describe(0)
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0])))
    driver.carry_out()
    after = driver.describe(0)
    assert before is not None and after is not None
    assert (before.record, before.checksum, before.position) == (after.record, after.checksum, after.position)


def test_a_drop_must_be_allowed() -> None:
    """Evict without a target needs allow_drop, and then leaves only a ghost."""
    driver = full_host()
    with pytest.raises(InvalidInput, match="allow_drop"):
        driver.step(m.Evict(ids_of([0]), None))
    reply = driver.step(m.Evict(ids_of([0, 9, 0]), None, allow_drop=True))
    assert isinstance(reply, m.Outcomes)
    assert reply.outcomes.tolist() == [m.Evicted.DROPPED, m.Evicted.MISS, m.Evicted.DROPPED]
    assert driver.tiers(0) == set()


def test_a_leased_block_is_not_evicted() -> None:
    """Evict of a leased block changes nothing and says IN_USE."""
    driver = full_host()
    lease = driver.acquire([0])
    for to, drop in ((m.Tier.SPILL, False), (None, True)):
        reply = driver.step(m.Evict(ids_of([0]), to, allow_drop=drop))
        assert isinstance(reply, m.Outcomes) and reply.outcomes.tolist() == [m.Evicted.IN_USE]
    driver.release(lease)


def test_an_eviction_that_failed_says_so_once() -> None:
    """A retry after a failed move is FAILED; a new call tries again."""
    driver = full_host()
    assert driver.step(m.Evict(ids_of([0]), m.Tier.SPILL)).outcomes.tolist() == [m.Evicted.PENDING]
    driver.carry_out(ok=False)
    reply = driver.step(m.Evict(ids_of([0]), m.Tier.SPILL, retry=True))
    assert reply.outcomes.tolist() == [m.Evicted.FAILED]
    assert driver.step(m.Evict(ids_of([0]), m.Tier.SPILL)).outcomes.tolist() == [m.Evicted.PENDING]
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.SPILL}


def test_allow_drop_lets_a_block_go_that_cannot_be_moved() -> None:
    """With the spill down, and when a move fails, an eviction that may drop drops."""
    driver = full_host()
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL, allow_drop=True))
    driver.carry_out(ok=False)
    assert driver.tiers(0) == set()
    driver.step(m.SpillState(up=False))
    reply = driver.step(m.Evict(ids_of([1]), m.Tier.SPILL, allow_drop=True))
    assert reply.outcomes.tolist() == [m.Evicted.DROPPED]
    driver.put([3])
    assert driver.step(m.Evict(ids_of([3]), m.Tier.SPILL)).outcomes.tolist() == [m.Evicted.FAILED]


def test_hbm_sinks_through_host() -> None:
    """An hbm victim goes to host, whose own victim goes to spill first."""
    driver = Driver(host=1, hbm=1, spill=4)
    driver.put([0], tier=m.Tier.HBM)
    driver.reserve(ids_of([1]), m.Tier.HBM)
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HOST}
    driver.put([1], tier=m.Tier.HBM)
    reply = driver.reserve(ids_of([2]), m.Tier.HBM)
    assert reply.outcomes.tolist() == [m.Reserved.PENDING]
    assert [(move.source, move.target) for move in driver.moves] == [(m.Tier.HOST, m.Tier.SPILL)]
    driver.carry_out()
    driver.reserve(ids_of([2]), m.Tier.HBM)
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.SPILL} and driver.tiers(1) == {m.Tier.HOST}
    driver.put([2], tier=m.Tier.HBM)
    assert driver.tiers(2) == {m.Tier.HBM}


def test_two_contents_of_one_identity_never_live_side_by_side() -> None:
    """A commit with other bytes replaces the copy elsewhere; while that is in use, it gives way itself."""
    driver = Driver(host=2, hbm=2, spill=4)
    driver.put([0], checksum=5)
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.put([0], checksum=6)
    assert driver.tiers(0) == {m.Tier.HOST} and driver.unlinked == [identity(0)]
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    reply = driver.reserve(ids_of([0]))
    driver.step(m.Readmit(ids_of([0]), m.Tier.HBM))
    commit = m.Commit(SESSION, ids_of([0]).ids, reply.generations, np.array([7], np.uint64))
    assert driver.step(commit).outcomes.tolist() == [m.Committed.STALE]
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HBM, m.Tier.SPILL}
    view = driver.describe(0)
    assert view is not None and view.checksum == 6


def test_no_more_moves_than_allowed_are_in_flight() -> None:
    """Promotions over the limit wait for those before them."""
    driver = Driver(host=8, spill=8, max_moves=2)
    for number in range(4):
        driver.put([number])
        driver.step(m.Evict(ids_of([number]), m.Tier.SPILL))
        driver.carry_out()
    reply = driver.acquire([0, 1, 2, 3])
    assert len(driver.moves) == 2 and len(reply.waiting) == 2
    driver.carry_out()
    assert sorted(driver.acquire([0, 1, 2, 3]).outcomes.tolist()) == [1, 1, 3, 3]


def test_a_plan_names_the_next_victims_and_changes_nothing() -> None:
    """What Plan lists is what then goes, in that order."""
    driver = Driver(host=4, spill=8)
    driver.put([0, 1, 2, 3], chain=True)
    plan = driver.step(m.Plan(m.Tier.HOST, 3 * BLOCK, 10))
    assert isinstance(plan, m.Planned) and plan.enough and plan.victim_blocks == 3
    assert [victim.identity for victim in plan.victims] == [identity(3), identity(2), identity(1)]
    assert {victim.destination for victim in plan.victims} == {"spill"}
    again = driver.step(m.Plan(m.Tier.HOST, 3 * BLOCK, 10))
    assert again == plan
    driver.reserve(ids_of([10, 11, 12]))
    assert [move.identity for move in driver.moves] == [identity(3), identity(2), identity(1)]
    too_much = driver.step(m.Plan(m.Tier.HOST, 100 * BLOCK, 10))
    assert isinstance(too_much, m.Planned) and not too_much.enough


def test_a_session_that_ends_with_a_living_process_keeps_its_slots_out_of_use() -> None:
    """A half-written slot is quarantined until the session is settled; the identity can be put anew."""
    driver = Driver(host=2)
    driver.reserve(ids_of([0]))
    driver.put([1])
    lease = driver.acquire([1])
    assert lease.lease
    driver.step(m.EndSession(SESSION, settled=False))
    occupancy = driver.step(m.Occupancy())
    assert isinstance(occupancy, m.OccupancyReply)
    host = occupancy.tiers[0]
    assert (host.quarantined_bytes, host.reserved_bytes, host.leased_blocks) == (BLOCK, 0, 1)
    driver.step(m.OpenSession(SESSION + 1, bytes(16)))
    full = driver.step(m.Reserve(SESSION + 1, ids_of([0]), BLOCK))
    assert full.outcomes.tolist() == [m.Reserved.FULL]
    driver.step(m.EndSession(SESSION, settled=True))
    again = driver.step(m.Reserve(SESSION + 1, ids_of([0]), BLOCK))
    assert again.outcomes.tolist() == [m.Reserved.GRANTED]
    check(driver.engine)


def test_a_server_that_others_have_filled_does_not_stop_the_cache() -> None:
    """When the spill server takes nothing at all, victims are dropped for newcomers; once a second one is offered
    to it again, and when it takes one, nothing is dropped any more."""
    driver = full_host()
    assert driver.put([10]) == [m.Reserved.PENDING]
    driver.carry_out(ok=False, full=True)
    assert driver.put([10]) == [m.Reserved.GRANTED]
    assert driver.put([11]) == [m.Reserved.GRANTED]
    driver.now += 1
    assert driver.put([12]) == [m.Reserved.PENDING]
    driver.carry_out()
    assert driver.put([12]) == [m.Reserved.GRANTED]
    assert len(driver.present(m.Tier.SPILL)) == 1


def test_a_parent_held_below_stays_with_a_child_that_cannot_go() -> None:
    """A block that would cost nothing to evict is not taken out of a chain whose end has to stay: with leaf_only
    there are no holes, also when the end's move fails."""
    driver = Driver(2, spill=4, max_moves=1)
    driver.put([0, 1], chain=True)
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0])))
    driver.carry_out()
    assert driver.put([5, 6]) == [m.Reserved.PENDING] * 2
    driver.carry_out(ok=False)
    assert driver.present() == [0, 1]
    assert driver.put([5]) == [m.Reserved.PENDING]
    driver.carry_out()
    assert driver.put([5, 6]) == [m.Reserved.GRANTED] * 2
    assert driver.present() == [5, 6]


def test_the_limit_of_the_spill_tier_holds_for_blocks_of_several_sizes() -> None:
    """Room that was found for one block of a request is not counted again for the next, when what makes way is
    smaller than they are."""
    driver = Driver(host=8, spill=5, rows=64)
    driver.put([0, 1, 2])
    driver.step(m.Evict(ids_of([0, 1, 2]), m.Tier.SPILL))
    driver.carry_out()
    wide = ids_of([10, 11])
    reply = driver.step(m.Reserve(SESSION, wide, 2 * BLOCK))
    driver.step(m.Commit(SESSION, wide.ids, reply.generations, np.full(2, 5, np.uint64)))
    driver.step(m.Evict(wide, m.Tier.SPILL))
    spill = driver.engine.state.tiers[m.Tier.SPILL].copies
    assert spill.free >= 0
    driver.carry_out()
    assert driver.present(m.Tier.SPILL) == [2, 10, 11]


def test_nothing_is_explained_as_held_by_a_spill_tier_that_is_down() -> None:
    """While spill is down a copy there is not relied upon, and Explain says what eviction does: the block stays,
    and after the grace it is dropped."""
    driver = full_host(spill_grace_s=60.0)
    driver.step(m.Evict(ids_of([0]), m.Tier.SPILL))
    driver.carry_out()
    driver.step(m.Readmit(ids_of([0])))
    driver.carry_out()

    def destination() -> str:
        reply = driver.step(m.Explain(ids_of([0]).ids, m.Tier.HOST))
        assert isinstance(reply, m.Explained)
        return reply.blocks[0].destination

    assert destination() == "dropped (spill holds it)"
    driver.step(m.SpillState(up=False))
    assert destination() == "kept (spill is down)"
    driver.now += 61
    assert destination() == "dropped"


@pytest.mark.parametrize("flaps", [True, False])
@pytest.mark.parametrize("pause_s", [1.0, 20.0])
def test_a_server_that_takes_nothing_stops_the_cache_for_the_grace_only(flaps: bool, pause_s: float) -> None:
    """A server that answers probes and refuses each store, so that it is up and down by turns or up all the time,
    keeps victims for `spill_grace_s` and not for ever; when it takes blocks again, victims go there."""
    driver = full_host(spill_grace_s=60.0)
    began, number = driver.now, 10
    while driver.put([number]) != [m.Reserved.GRANTED]:
        assert driver.now <= began + 100.0, "the cache stands still"
        driver.carry_out(ok=False)
        if driver.put([number]) == [m.Reserved.GRANTED]:
            break
        driver.carry_out(ok=False)
        if flaps:
            driver.step(m.SpillState(up=False))
            driver.now += pause_s / 2
            if driver.put([number]) == [m.Reserved.GRANTED]:
                break
            driver.step(m.SpillState(up=True))
        driver.now += pause_s / 2
    assert driver.now >= began + 55.0
    driver.step(m.SpillState(up=True))
    for one in range(20, 24):
        driver.now += 1
        driver.put([one])
        driver.carry_out()
        driver.put([one])
    assert len(driver.present(m.Tier.SPILL)) >= 2


def test_each_outage_has_its_own_grace() -> None:
    """A second outage, long after the first one and without a store between them, keeps victims for its own
    grace."""
    driver = full_host(spill_grace_s=60.0)
    for _ in range(2):
        driver.step(m.SpillState(up=False))
        driver.now += 50.0
        assert driver.put([10]) == [m.Reserved.FULL]
        driver.step(m.SpillState(up=True))
        driver.now += 3_600.0
    assert driver.present() == [0, 1]
