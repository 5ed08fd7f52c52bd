"""Worked examples of LRFU and of the composite priority, through the functions that the engine uses.

The numbers are those of the published formulas (Lee et al., IEEE TC 50(12), 2001) and of the worked example
that this project started from; each was computed by hand or in exact arithmetic, not by this code.
"""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

import numpy as np
import pytest

from tierd.core.catalog import Catalog
from tierd.core.engine import Tables
from tierd.core.gaps import Gaps
from tierd.core.ghosts import Ghosts
from tierd.core.policy.base import Common, Decay, GivenStats, Moment, Stats
from tierd.core.policy.lrfu import Lrfu
from tierd.core.policy.registry import parse
from tierd.core.statistics import Access, StatsOf, access, access_weighted, rescale
from tierd_client.format import CATALOG_MAGIC, Table, catalog_columns

ATTENTION = ("0.45", "0.12", "0.30", "0.08", "0.35")
EXACT = (0.022500000000000003, 0.027375000000000003, 0.04100625, 0.0429559375, 0.05830814062499999)
AS_PRINTED = ("0.023", "0.028", "0.042", "0.044", "0.059")
SEED = Common(alpha=0.05)
REFERENCES = {"a": (0, 4), "b": (3,), "c": (0, 1, 2), "d": (5,)}


def catalog_of(blocks: int) -> Catalog:
    """A catalog with records 0 .. blocks - 1 that were never accessed."""
    catalog = Catalog(Table.create(CATALOG_MAGIC, catalog_columns(16, 64)))
    ids = np.zeros((blocks, 32), np.uint8)
    ids[:, 0] = np.arange(1, blocks + 1)
    catalog.insert(ids)
    return catalog


def one_access(step: int, common: Common) -> Access:
    return Access(step, float(step), common, Gaps(Tables.private(1).learnt["gaps"]), 0)


def report(catalog: Catalog, row: int, weight: float, step: int, steps: int = 1, common: Common = SEED) -> float:
    """One report of attention; the ema after it."""
    access_weighted(catalog, np.array([row]), np.array([weight]), steps, step, float(step), common)
    return float(catalog.ema[row])


def referenced(decay: Decay) -> Stats:
    """Records of a, b, c, d after REFERENCES, in that order."""
    catalog = catalog_of(len(REFERENCES))
    common = Common(alpha=0.05, decay=decay)
    for step in range(6):
        rows = [row for row, times in enumerate(REFERENCES.values()) if step in times]
        if rows:
            access(catalog, np.array(rows), one_access(step, common))
    return StatsOf(catalog, np.arange(len(REFERENCES)))


def order_of(policy: Lrfu, stats: Stats, step: int) -> str:
    """Names in order of eviction: highest rank first, on a tie the older access."""
    ranks = policy.ranks(stats, Moment(step, float(step), 50.0))
    return "".join(np.array(list(REFERENCES))[np.lexsort((stats.last, -ranks))])


def test_ema_follows_the_exact_chain() -> None:
    """The worked example's EMA at alpha 0.05 is the exact chain, to the last bit of the direct form."""
    catalog = catalog_of(1)
    exact = Fraction(0)
    for step, (text, expected) in enumerate(zip(ATTENTION, EXACT, strict=True), 1):
        exact = Fraction(1, 20) * Fraction(text) + Fraction(19, 20) * exact
        got = report(catalog, 0, float(text), step)
        assert got == expected
        assert abs(Fraction(got) - exact) < Fraction(1, 10**15)


def test_ema_rounded_at_each_step_is_the_printed_table() -> None:
    """The worked example prints what comes of rounding to three places, half up, after every step."""
    catalog = catalog_of(1)
    for step, (text, printed) in enumerate(zip(ATTENTION, AS_PRINTED, strict=True), 1):
        after = Decimal(report(catalog, 0, float(text), step))
        rounded = after.quantize(Decimal("0.001"), ROUND_HALF_UP)
        assert rounded == Decimal(printed)
        catalog.ema[0] = float(rounded)


@pytest.mark.parametrize(
    ("ema", "idle", "priority"),
    [
        (0.059, 50, 0.04589311154482812),
        (0.05830814062499999, 50, 0.04592685392471144),
        (0.02, 2000, 0.8473714224281196),
        (0.0, 50, 0.04877057549928599),
        (0.0, 2000, 0.8646647167633873),
        (0.5, 0, 0.0),
    ],
)
def test_composite_priority(ema: float, idle: int, priority: float) -> None:
    """Composite ranks are (1 - ema) (1 - exp(-beta idle)) with alpha 0.05 and beta 0.001."""
    policy = parse("lrfu(ranking=composite)")
    stats = GivenStats(
        np.array([1]), np.array([0]), np.array([0.0]), np.array([ema]), np.array([1.0]), np.array([True])
    )
    assert policy.ranks(stats, Moment(idle, float(idle), 50.0))[0] == pytest.approx(priority, abs=1e-15)


def test_seed_parameters_are_the_defaults_of_composite() -> None:
    """`composite` without parameters is the worked example: alpha 0.05, beta 0.001."""
    policy = parse("lrfu(ranking=composite)")
    assert isinstance(policy, Lrfu)
    assert (policy.common.alpha, policy.beta) == (0.05, 0.001)


@pytest.mark.parametrize("seed", range(3))
def test_auto_is_composite_with_its_time_constants_tied_to_age(seed: int) -> None:
    """`auto` ranks by (1 - ema 2^(-idle / 2T)) (1 - exp(-idle / 4T)) with alpha 0.5."""
    draw = np.random.default_rng(seed)
    idle, ema, age = draw.integers(0, 500, 40), draw.random(40), float(draw.uniform(1, 200))
    stats = GivenStats(
        np.ones(40, np.int64), 1000 - idle, np.zeros(40), ema, np.ones(40), np.ones(40, bool)
    )
    policy = parse("lrfu")
    score = ema * 0.5 ** (idle / (2 * age))
    expected = (1 - score) * -np.expm1(-idle / (4 * age))
    assert policy.common.alpha == 0.5
    assert np.allclose(policy.ranks(stats, Moment(1000, 0.0, age)), expected, rtol=0, atol=1e-15)


@pytest.mark.parametrize(
    ("decay", "crf", "order"),
    [
        (0.0, (2.0, 1.0, 3.0, 1.0), "bdac"),
        (0.25, (1.06066017178, 0.594603557501, 1.27400159822, 0.840896415254), "bdac"),
        (0.5, (0.625, 0.353553390593, 0.551776695297, 0.707106781187), "bcad"),
        (1.0, (0.265625, 0.125, 0.109375, 0.5), "cbad"),
    ],
)
def test_crf_and_order_of_the_lrfu_spectrum(decay: float, crf: tuple[float, ...], order: str) -> None:
    """From lambda 0 (LFU) to 1 (LRU), CRFs decayed to step 6 and the order of eviction are LRFU's."""
    policy = parse(f"lrfu(ranking=decayed,lambda={decay})")
    assert isinstance(policy, Lrfu)
    stats = referenced(policy.common.decay)
    assert np.allclose(-policy.ranks(stats, Moment(6, 6.0, 50.0)), crf, rtol=1e-11, atol=0)
    assert order_of(policy, stats, 6) == order
    by_key = np.lexsort((stats.last, policy.keys(stats)))
    assert "".join(np.array(list(REFERENCES))[by_key]) == order


def test_keys_of_the_decayed_ranking_do_not_change_with_time() -> None:
    """log2(CRF) + lambda last of the worked example, and the order that it states, at any later step."""
    policy = parse("lrfu(ranking=decayed,lambda=0.5)")
    stats = referenced(policy.common.decay)
    assert np.allclose(policy.keys(stats), [2.321928094887362, 1.5, 2.1421564297813918, 2.5], atol=1e-15)
    assert {order_of(policy, stats, step) for step in (6, 60, 600)} == {"bcad"}


def test_half_life_is_lambda_on_the_wall_clock() -> None:
    """A half life of h seconds ranks as lambda = 1 / h does where a step takes a second."""
    by_wall, by_step = parse("lrfu(ranking=decayed,half_life_s=4)"), parse("lrfu(ranking=decayed,lambda=0.25)")
    wall, step = referenced(by_wall.common.decay), referenced(by_step.common.decay)
    assert np.array_equal(wall.crf, step.crf)
    assert np.array_equal(by_wall.keys(wall), by_step.keys(step))


def test_an_access_decays_a_score_once() -> None:
    """alpha CRF with lambda = -log2(1 - alpha) is the step form of the EMA; no second decay at an access."""
    decay = Decay(per_step=-float(np.log2(0.95)))
    stats = referenced(decay)
    now = 0.05 * stats.crf[0] * decay.factor(np.array([2]), np.array([2.0]))[0]
    assert now == pytest.approx(0.08187959453124997, abs=1e-15)
    assert now != pytest.approx(0.08004186480468749, abs=1e-4)


@pytest.mark.parametrize("every", [1, 4, 16])
def test_folded_reports_of_a_constant_mass_are_exact(every: int) -> None:
    """64 steps of mass 0.25 leave the same EMA, however many steps a report folds."""
    catalog = catalog_of(1)
    for step in range(every, 65, every):
        report(catalog, 0, 0.25, step, steps=every)
    assert catalog.ema[0] == pytest.approx(0.240618965197221, abs=1e-15)


def test_unit_accesses_and_unit_reports_agree() -> None:
    """An access is a report of weight 1; both keep the mark that all weights were 1."""
    plain, reported = catalog_of(1), catalog_of(1)
    for step in (3, 4, 9):
        access(plain, np.array([0]), one_access(step, SEED))
        report(reported, 0, 1.0, step)
    one, other = StatsOf(plain, np.array([0])), StatsOf(reported, np.array([0]))
    assert (one.ema[0], one.crf[0], one.touches[0], one.unit[0]) == (
        other.ema[0], other.crf[0], other.touches[0], True,
    )
    assert other.unit[0]
    report(reported, 0, 0.5, 10)
    assert not StatsOf(reported, np.array([0])).unit[0]


def test_another_alpha_rescales_unit_records_exactly() -> None:
    """After a change of alpha a record of unit accesses has the EMA that it would have had; others keep theirs."""
    catalog, wanted = catalog_of(3), catalog_of(3)
    for step in range(1, 6):
        for target, common in ((catalog, SEED), (wanted, Common(alpha=0.3))):
            access(target, np.array([0]), one_access(step, common))
            if step == 2:
                access(target, np.array([1]), one_access(step, common))
    report(catalog, 2, 0.25, 5)
    rescale(catalog, Ghosts(Tables.private(4).ghosts), 0.3)
    assert catalog.ema[:2].tolist() == wanted.ema[:2].tolist()
    assert catalog.ema[2] == 0.05 * 0.25


@pytest.mark.parametrize(("ema", "step"), [(0.5, 64), (0.75, 128), (0.3, 32), (0.0, 0), (1.0, 4096)])
def test_a_score_of_attention_is_ranked_by_the_middle_of_its_step(ema: float, step: int) -> None:
    """A record that met attention is classed by floor(-64 log2(1 - ema)) and ranks by the middle of that step."""
    policy = parse("lrfu(ranking=composite,beta=0.01)")
    stats = GivenStats(
        np.array([3]), np.array([0]), np.array([0.0]), np.array([ema]), np.array([1.0]), np.array([False])
    )
    middle = 2.0 ** (-(step + 0.5) / 64)
    expected = middle * -np.expm1(-0.01 * 70)
    assert policy.ranks(stats, Moment(70, 70.0, 50.0))[0] == pytest.approx(expected, rel=1e-12)
    units = GivenStats(
        np.array([1 << 30]), np.array([0]), np.array([0.0]), np.array([ema]), np.array([1.0]), np.array([True])
    )
    assert policy.classes(stats)[0] - policy.classes(units)[0] == 1 + step
