"""Budgets of sequences: the cap on blocks in hbm, who goes, and where the slots end up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from budget_model import Model
from engine_driver import SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.errors import InvalidInput, Refused
from tierd.core.loans import FIRST_POOL

KEPT, AWAY, LEAVING, GIVEN_UP = m.Residency


def opened(driver: Driver, budget: m.Budget | None, numbers: Sequence[int] = (0,), name: str = "a") -> None:
    driver.step(m.OpenSequence(SESSION, name, ids_of(numbers, chain=True)))
    if budget is not None:
        told(driver, name, budget=budget)


def chained(first: int, count: int = 1) -> m.Ids:
    """Blocks `first` and on of the one chain of these tests."""
    return ids_of(range(first, first + count), chain=True, first=first, parent=first - 1 if first else None)


def put(driver: Driver, first: int, count: int = 1, name: str = "a") -> list[m.Reserved]:
    """Stores blocks into hbm in a sequence; where copies down must end first they do."""
    outcomes = driver.put_ids(chained(first, count), tier=m.Tier.HBM, sequence=name)
    if m.Reserved.PENDING in outcomes and driver.carry_out():
        again = driver.put_ids(chained(first, count), tier=m.Tier.HBM, sequence=name)
        outcomes = [new if old is m.Reserved.PENDING else old for old, new in zip(outcomes, again, strict=True)]
    return outcomes


def told(driver: Driver, name: str = "a", **fields: object) -> list[m.Residency]:
    reply = driver.step(m.SetBudget(SESSION, name, **fields))
    assert isinstance(reply, m.BudgetSet)
    return [m.Residency(one) for one in reply.outcomes.tolist()]


def report(driver: Driver, masses: Sequence[float], steps: int = 1, name: str = "a") -> None:
    driver.step(m.Observe(SESSION, name, np.array(masses, np.float32), steps))


def slot_of(driver: Driver, number: int) -> int:
    """Address in hbm of a block that is there."""
    view = driver.describe(number)
    assert view is not None
    return next(copy.address for copy in view.copies if copy.tier is m.Tier.HBM)


def used(driver: Driver) -> int:
    """Blocks in hbm, and slots in hand of sequences."""
    copies = driver.engine.state.tiers[m.Tier.HBM].copies
    return (copies.used + copies.reserved) // 4096


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_step_does_what_counting_by_hand_does(seed: int, lossy: bool) -> None:
    """After each of random puts, reports, leases, pins and changes of the budget the sequence keeps in hbm what a
    brute-force choice keeps, never more than the cap, its slots are its own, and only a lossy one loses bytes."""
    rng = np.random.default_rng(seed)
    driver = Driver(host=200, hbm=24, rows=300)
    model = Model(8, 3, 1)
    opened(driver, m.Budget(8, 3, 1, lossy))
    length, addresses, stored = 0, set[int](), set[int]()
    for _ in range(60):
        match int(rng.integers(5)):
            case 0 | 1 | 2:
                count = int(rng.integers(1, model.recent + 1))
                over = len(model.kept) + count - model.blocks
                model.leave(max(0, over), count)
                assert put(driver, length, count) == [m.Reserved.GRANTED] * count
                model.kept += range(length, length + count)
                stored |= set(range(length, length + count)) if not lossy else set()
                length += count
            case 3 if length:
                masses = rng.integers(0, 8, length) / 8 / 8 / length
                masses = np.floor(masses * 4096) / 4096
                model.report(masses.tolist(), 2)
                report(driver, masses.tolist(), 2)
            case _ if length:
                model.blocks, model.recent = int(rng.integers(5, 12)), int(rng.integers(1, 4))
                over = len(model.kept) - model.blocks
                model.leave(max(0, over), 0)
                told(driver, budget=m.Budget(model.blocks, model.recent, 1, lossy))
                driver.carry_out()
        residency = told(driver)
        assert [place for place, one in enumerate(residency) if one is KEPT] == model.kept
        assert len(model.kept) <= used(driver) <= max(model.blocks, len(model.kept))
        addresses |= {slot_of(driver, place) for place in model.kept}
        assert not stored or driver.step(m.Lookup(ids_of(sorted(stored), chain=True))).hit_blocks == len(stored)
    assert len(addresses) <= 24
    driver.step(m.CloseSequence(SESSION, "a"))
    assert used(driver) == len(model.kept)


def test_a_lossy_sequence_writes_its_next_block_where_the_last_victim_was() -> None:
    """With room for four, the fifth block comes into the slot of the one that had the least attention, of which no
    copy is left."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(4, 1, lossy=True))
    put(driver, 0, 4)
    report(driver, [0.5, 0.125, 0.25, 0.125])
    slot = slot_of(driver, 1)
    put(driver, 4)
    assert slot_of(driver, 4) == slot
    assert driver.tiers(1) == set()
    assert told(driver) == [KEPT, GIVEN_UP, KEPT, KEPT, KEPT]


def test_nobody_else_gets_the_slot_that_a_copy_down_frees() -> None:
    """A lossless sequence's victim goes to host, and its slot waits for the sequence's next block, also while
    another fills hbm to the last slot."""
    driver = Driver(host=8, hbm=6)
    opened(driver, m.Budget(3, 1))
    put(driver, 0, 3)
    slot = slot_of(driver, 0)
    assert driver.put_ids(chained(3), tier=m.Tier.HBM, sequence="a") == [m.Reserved.PENDING]
    driver.carry_out()
    outcomes = driver.put([20, 21, 22, 23], tier=m.Tier.HBM)
    assert outcomes.count(m.Reserved.GRANTED) == 3
    assert put(driver, 3) == [m.Reserved.GRANTED]
    assert slot_of(driver, 3) == slot
    assert driver.tiers(0) == {m.Tier.HOST}


@pytest.mark.parametrize(("lossy", "becomes"), [(False, AWAY), (True, GIVEN_UP)])
def test_what_another_sequence_holds_stays_for_it(lossy: bool, becomes: m.Residency) -> None:
    """A block of two sequences that is over the budget of one stays in hbm for the other, and does not count; where
    it is held still it counts again once the other has closed."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(3, 1, lossy=lossy))
    put(driver, 0, 3)
    opened(driver, None, [0, 1], name="b")
    put(driver, 3)
    assert told(driver) == [becomes, KEPT, KEPT, KEPT]
    assert driver.tiers(0) == {m.Tier.HBM}
    driver.step(m.CloseSequence(SESSION, "b"))
    assert told(driver)[0] is (GIVEN_UP if lossy else LEAVING)
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HBM if lossy else m.Tier.HOST}


def test_what_a_lossy_sequence_found_is_the_caches() -> None:
    """Blocks that were in hbm before a lossy sequence are given up by it, and stay."""
    driver = Driver(host=8, hbm=8)
    driver.put_ids(chained(0, 3), tier=m.Tier.HBM)
    opened(driver, m.Budget(2, 1, lossy=True), [0, 1, 2])
    assert told(driver) == [GIVEN_UP, KEPT, KEPT]
    assert driver.tiers(0) == {m.Tier.HBM}


def test_what_is_leased_or_pinned_is_not_chosen() -> None:
    """The least of all blocks that are neither leased nor pinned goes."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(4, 1, lossy=True))
    put(driver, 0, 4)
    lease = driver.acquire_ids(chained(0))
    driver.step(m.Pin(chained(1), 60.0))
    put(driver, 4)
    assert told(driver) == [KEPT, KEPT, GIVEN_UP, KEPT, KEPT]
    driver.release(lease)
    put(driver, 5)
    assert told(driver) == [GIVEN_UP, KEPT, GIVEN_UP, KEPT, KEPT, KEPT]


def test_nothing_is_lost_where_there_is_no_room_below() -> None:
    """A lossless sequence whose blocks fit nowhere below keeps them, and its next one is FULL."""
    driver = Driver(host=1, hbm=8)
    opened(driver, m.Budget(2, 1))
    put(driver, 0, 2)
    assert put(driver, 2) == [m.Reserved.GRANTED]
    assert put(driver, 3) == [m.Reserved.FULL]
    assert [driver.tiers(number) for number in range(3)] == [{m.Tier.HOST}, {m.Tier.HBM}, {m.Tier.HBM}]


def test_copies_down_that_fail_are_not_tried_for_ever() -> None:
    """A failed copy down leaves its block in hbm, and is tried again when somebody asks."""
    driver = Driver(host=8, hbm=8)
    opened(driver, None, range(4))
    put(driver, 0, 4)
    assert told(driver, budget=m.Budget(3, 1)) == [LEAVING, KEPT, KEPT, KEPT]
    driver.carry_out(ok=False)
    assert not driver.moves
    assert driver.tiers(0) == {m.Tier.HBM}
    told(driver)
    driver.carry_out()
    assert driver.tiers(0) == {m.Tier.HOST}


def test_a_prompt_of_64000_tokens_is_cut_to_4000_before_generation() -> None:
    """Of 4,000 blocks of 16 tokens, scored once over a window of 32 queries, 250 stay: the sink, the window's two,
    and of the others those 247 that have most of the attention. By hand: block 16 k, k from 0 to 249, has (k + 1) /
    32,000 of it, 31,375 / 32,000 in all, so that k from 3 to 249 stay, and the two last ones, 3,998 and 3,999."""
    driver = Driver(host=0, hbm=4_000, rows=4_096)
    opened(driver, None, range(4_000))
    put(driver, 0, 4_000)
    mass = np.zeros(4_000, np.float32)
    mass[::16] = np.arange(1, 251) / 32_000
    residency = told(driver, budget=m.Budget(250, 2, 1, lossy=True), attention=mass, steps=32)
    kept = [place for place, one in enumerate(residency) if one is KEPT]
    assert kept == [0, *range(48, 3_985, 16), 3_998, 3_999]
    assert len(kept) * 16 == 4_000
    assert used(driver) == 250
    assert residency.count(GIVEN_UP) == 3_750


def test_a_cut_of_many_blocks_goes_on_by_itself() -> None:
    """Ten blocks over the budget, of which two can be copied at once, are down after five answers."""
    driver = Driver(host=16, hbm=16, max_moves=2)
    opened(driver, None, range(12))
    put(driver, 0, 12)
    told(driver, budget=m.Budget(2, 1))
    rounds = 0
    while driver.carry_out():
        rounds += 1
    assert rounds == 5
    assert told(driver) == [AWAY] * 10 + [KEPT] * 2
    assert used(driver) == 2


@pytest.mark.parametrize(("policy", "goes"), [
    ("h2o", 3), ("tova", 0), ("snapkv(obs=1)", 0), ("snapkv(obs=2,pool=3)", 2), ("scissorhands", 3),
])
def test_the_policy_of_the_budget_chooses(policy: str, goes: int) -> None:
    """Among blocks 0 to 3 of 5 with masses 4 1 2 1, then 0 2 1 1, in eighths, 3 has the least in sum, 0 in the last
    report; beside their neighbours 2 and 3 have 3, 0 and 1 have 4; 3 alone never has more than a fifth."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(5, 2, lossy=True, policy=policy))
    put(driver, 0, 5)
    for masses in ([4, 1, 2, 1, 0], [0, 2, 1, 1, 1]):
        report(driver, [mass / 8 for mass in masses])
    put(driver, 5)
    assert told(driver).index(GIVEN_UP) == goes


def test_a_report_of_several_steps_counts_as_that_many() -> None:
    """Three steps of 1/8 are more than one of 1/4."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(3, 2, lossy=True))
    put(driver, 0, 3)
    report(driver, [0.125, 0.0, 0.0], steps=3)
    report(driver, [0.0, 0.25, 0.0])
    put(driver, 3)
    assert told(driver) == [KEPT, GIVEN_UP, KEPT, KEPT]


@pytest.mark.parametrize(("budget", "field"), [
    (m.Budget(0, 1), "budget.blocks: 0 is not from 1 to 262144"),
    (m.Budget(4, 0), "budget.recent_blocks: 0"),
    (m.Budget(4, 1, -1), "budget.sink_blocks: -1"),
    (m.Budget(4, 3, 2), "budget.blocks: 4 is less than sink_blocks [+] recent_blocks, 2 [+] 3 = 5"),
    (m.Budget(4, 1, policy="lru"), "budget.policy: lru does not go by attention"),
    (m.Budget(4, 1, policy="h2o(recent_blocks=2)"), "budget.policy: recent_blocks is a field of the budget"),
    (m.Budget(4, 1, policy="snapkv(pool=2)"), "budget.policy: policy.pool: 2 is even"),
])
def test_a_budget_that_cannot_be_is_refused_by_name(budget: m.Budget, field: str) -> None:
    """The error names the field of the budget, and the sequence has the one that it had, or none."""
    driver = Driver(host=8, hbm=8)
    opened(driver, None)
    with pytest.raises(InvalidInput, match=field):
        told(driver, budget=budget)
    with pytest.raises(Refused, match="has no budget yet"):
        told(driver)
    told(driver, budget=m.Budget(4, 1))
    with pytest.raises(InvalidInput, match=field):
        told(driver, budget=budget)
    told(driver)


def test_what_cannot_have_a_budget_is_refused() -> None:
    """Free-standing blocks, several chains, a daemon without hbm; and what a budget cannot be about."""
    budget = m.Budget(4, 1)
    driver = Driver(host=8, hbm=8)
    driver.step(m.OpenSequence(SESSION, "free", ids_of([0])))
    with pytest.raises(InvalidInput, match=r"blocks\.chain"):
        told(driver, "free", budget=budget)
    driver.step(m.OpenSequence(SESSION, "two", chained(0), others=(ids_of([9], chain=True),)))
    with pytest.raises(InvalidInput, match="others"):
        told(driver, "two", budget=budget)
    with pytest.raises(InvalidInput, match="the hbm tier is off"):
        opened(Driver(host=8), budget)
    opened(driver, budget, range(2))
    for blocks, field in ((ids_of([7]), r"blocks\.chain"), (chained(3), r"blocks\.position"),
                          (ids_of([8], chain=True, first=1, parent=0), r"blocks\.ids")):
        with pytest.raises(InvalidInput, match=field):
            driver.reserve(blocks, m.Tier.HBM, "a")


def test_what_was_lost_is_not_called_lossless() -> None:
    """A sequence that has given blocks up takes another budget, but none that promises to lose nothing."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(2, 1, lossy=True))
    put(driver, 0, 2)
    put(driver, 2)
    with pytest.raises(Refused, match=r"budget\.lossy: false, but the sequence has given up 1 blocks"):
        told(driver, budget=m.Budget(4, 1))
    assert told(driver, budget=m.Budget(1, 1, lossy=True)) == [GIVEN_UP, GIVEN_UP, KEPT]


def test_nobody_brings_back_what_is_over_a_budget() -> None:
    """A block that its one sequence has no room for in hbm is not re-admitted there; after its end it is."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(2, 1))
    put(driver, 0, 2)
    put(driver, 2)
    outcomes = driver.step(m.Readmit(chained(0), m.Tier.HBM))
    assert outcomes.outcomes.tolist() == [m.Readmitted.FULL]
    driver.step(m.CloseSequence(SESSION, "a"))
    outcomes = driver.step(m.Readmit(chained(0), m.Tier.HBM))
    assert outcomes.outcomes.tolist() == [m.Readmitted.PENDING]


def test_a_write_that_is_given_up_counts_no_more() -> None:
    """A reserved block counts from its reservation on, until that is aborted."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(2, 1, lossy=True))
    put(driver, 0)
    reply = driver.reserve(chained(1), m.Tier.HBM, "a")
    assert told(driver) == [KEPT, KEPT]
    driver.step(m.Abort(SESSION, chained(1).ids, reply.generations, m.Tier.HBM))
    assert told(driver) == [KEPT, AWAY]
    assert put(driver, 1) == [m.Reserved.GRANTED]


def test_a_closed_sequence_leaves_nothing_behind() -> None:
    """A slot in hand is free with the close of its sequence, or with its session."""
    for last in (m.CloseSequence(SESSION, "a"), m.EndSession(SESSION, settled=True)):
        driver = Driver(host=8, hbm=4)
        opened(driver, m.Budget(3, 1))
        put(driver, 0, 3)
        driver.reserve(chained(3), m.Tier.HBM, "a")
        driver.carry_out()
        assert (used(driver), len(driver.present(m.Tier.HBM))) == (3, 2)
        driver.step(last)
        assert (used(driver), len(driver.present(m.Tier.HBM))) == (2, 2)
        assert not driver.engine.state.awaited


def test_explain_says_why_a_block_left() -> None:
    """Of a block that a budget had leave hbm its worth is told, the worth of the next one, and the budget."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(4, 1, lossy=True))
    put(driver, 0, 4)
    report(driver, [0.5, 0.125, 0.25, 0.125])
    put(driver, 4)
    reply = driver.step(m.Explain(ids_of([1, 0, 9]).ids, m.Tier.HBM))
    assert isinstance(reply, m.Explained)
    left, kept, unknown = reply.blocks
    assert kept.protected_by == "in 1 running sequences"
    assert left.rule == "over the budget of sequence 'a': worth least to h2o"
    assert left.terms == {
        "place": 1, "worth": 0.125, "worth_of_next": 0.125, "budget_blocks": 4, "recent_blocks": 1,
        "sink_blocks": 0,
    }
    assert left.destination == "given up"
    assert unknown.rule == ""


def test_sequences_are_listed_with_their_budgets() -> None:
    """By session and name, page by page: blocks, budget, and what of it is kept, leaving, given up or in hand."""
    driver = Driver(host=8, hbm=8)
    opened(driver, None, [7], name="b")
    opened(driver, m.Budget(3, 1))
    put(driver, 0, 3)
    driver.reserve(chained(3), m.Tier.HBM, "a")
    first = driver.step(m.ListSequences(1))
    assert isinstance(first, m.SequencePage)
    assert first.more
    assert first.sequences == [m.SequenceView(SESSION, "a", 1, 0, 4, m.Budget(3, 1), 2, 1, 0, 0)]
    driver.carry_out()
    assert driver.step(m.ListSequences(1)).sequences[0].spare_slots == 1
    last = driver.step(m.ListSequences(1, 1))
    assert last == m.SequencePage([m.SequenceView(SESSION, "b", 1, 0, 1)], more=False)
    occupancy = driver.step(m.Occupancy())
    assert (occupancy.budgeted_sequences, occupancy.budgeted_blocks) == (1, 2)
    assert occupancy.tiers[0].over_budget_total == 1


def test_pages_that_an_engine_lends_count_and_are_its_own_to_withdraw() -> None:
    """Blocks in lent pages are kept within the budget; that one is over the daemon says, and touches no page."""
    driver = Driver(host=8, lends=True)
    opened(driver, m.Budget(3, 1))
    for number in range(4):
        none = np.zeros(1, np.uint64)
        driver.step(m.Adopt(SESSION, chained(number), 4096, FIRST_POOL, none + np.uint64(number), none, "a"))
        report(driver, [0.5] + [0.0] * number)
    assert told(driver) == [KEPT, AWAY, KEPT, KEPT]
    assert driver.tiers(1) == {m.Tier.HBM}
    for _ in range(2):
        driver.step(m.Withdraw(SESSION, FIRST_POOL, np.array([1], np.uint64), save=True))
        driver.carry_out()
    assert driver.tiers(1) == {m.Tier.HOST}
    assert told(driver) == [KEPT, AWAY, KEPT, KEPT]


def test_a_slot_for_which_there_is_no_room_is_free() -> None:
    """A copy down that ends once a block that another sequence held counts again leaves no slot in hand."""
    driver = Driver(host=8, hbm=8)
    opened(driver, m.Budget(2, 1))
    put(driver, 0, 2)
    opened(driver, None, [0], name="b")
    put(driver, 2)
    driver.reserve(chained(3), m.Tier.HBM, "a")
    driver.step(m.CloseSequence(SESSION, "b"))
    driver.carry_out()
    assert driver.step(m.ListSequences(1)).sequences[0].spare_slots == 0
    assert told(driver) == [KEPT, AWAY, KEPT, AWAY]
