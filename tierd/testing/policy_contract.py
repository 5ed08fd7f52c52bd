"""What every eviction policy must fulfil, as a test suite: subclass it and name a spec.

    class TestMine(PolicyContract):
        spec = "mine(knob=3)"

It drives the real engine and holds its choices against a brute-force reading of the policy's own ranks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar, cast

import numpy as np

from tierd.core.engine import Engine
from tierd.core.engine_settings import EngineSettings, TierSpec
from tierd.core.errors import InvalidInput
from tierd.core.gaps import CLASSES
from tierd.core.messages import (
    BlockFilter,
    BlockPage,
    BlockView,
    CloseSequence,
    Commit,
    Evict,
    ListBlocks,
    Observe,
    Observed,
    Occupancy,
    OccupancyReply,
    OpenSequence,
    OpenSession,
    Plan,
    Reserve,
    Reserved,
    ReserveReply,
    SetPolicy,
    Tier,
)
from tierd.core.policy.base import (
    WINDOW_REPORTS,
    Attended,
    ByClass,
    ByKey,
    FloatArray,
    GivenStats,
    Moment,
    Policy,
    Stats,
)
from tierd.core.policy.queues import ByQueues
from tierd.core.policy.registry import parse
from tierd.core.tables import Tables
from tierd.plugins import offer_policies
from tierd.testing.plain_queues import PlainQueues
from tierd.testing.prompts import Kind, Prompt, draw_prompt, pack
from tierd_client.format import PAGE_BYTES

KIND = Kind(1, 0, PAGE_BYTES)
CAPACITY = 12
SESSION = 1


class Driver:
    """An engine with one host tier, and requests that come one after the other."""

    def __init__(self, spec: str, capacity: int = CAPACITY, unit: bool = True, seed: int = 0) -> None:
        settings = EngineSettings((TierSpec(Tier.HOST, ((1, capacity * PAGE_BYTES),)),), spec)
        self.engine = Engine(settings, Tables.private(capacity))
        self.engine.step(OpenSession(SESSION), 0.0)
        self.random = random.Random(seed)
        self.unit = unit
        self.now = 0.0

    def request(self, prompt: Prompt) -> None:
        """Opens a sequence, stores what is missing, reports attention if asked to, closes."""
        self.open("one", prompt)
        self.store("one", prompt)
        if not self.unit:
            mass = np.array([self.random.random() for _ in prompt.chain], np.float32)
            self.engine.step(Observe(SESSION, "one", mass / np.float32(mass.sum() + 1)), self.now)
        self.close("one")

    def open(self, name: str, prompt: Prompt) -> None:
        self.now += 1.0
        self.engine.step(OpenSequence(SESSION, name, prompt.ids()), self.now)

    def store(self, name: str, prompt: Prompt) -> None:
        reserve = Reserve(SESSION, prompt.ids(), PAGE_BYTES, sequence=name)
        reply = self.engine.step(reserve, self.now).reply
        assert isinstance(reply, ReserveReply)
        granted = np.flatnonzero(reply.outcomes == Reserved.GRANTED)
        if len(granted):
            ids = pack([prompt.chain[place] for place in granted.tolist()])
            checksums = np.zeros(len(granted), np.uint64)
            self.engine.step(
                Commit(SESSION, ids, reply.generations[granted], checksums, sequence=name), self.now
            )

    def look_at_all(self) -> None:
        """From now on each victim is found by looking at all blocks. For policies with queues, before any block."""
        state = self.engine.state
        tier = state.tiers[Tier.HOST]
        tier.victims = PlainQueues(state.catalog, cast(ByQueues, state.policy), tier.children)

    def close(self, name: str) -> None:
        self.engine.step(CloseSequence(SESSION, name), self.now)

    def draw(self, longest: int = 9) -> Prompt:
        return draw_prompt(self.random, KIND, longest)

    def blocks(self) -> dict[bytes, BlockView]:
        """Resident blocks, with their records."""
        page = self.engine.step(ListBlocks(BlockFilter(tier=Tier.HOST), 10_000), self.now).reply
        assert isinstance(page, BlockPage)
        return {block.identity: block for block in page.blocks if block is not None}

    def attention(self, blocks: Mapping[bytes, BlockView]) -> Attended:
        """What is noted of the attention that blocks were given."""
        catalog = self.engine.state.catalog
        return catalog.attention.of(catalog.find(pack(list(blocks))))

    def moment(self) -> Moment:
        reply = self.engine.step(Occupancy(), self.now).reply
        assert isinstance(reply, OccupancyReply)
        return Moment(reply.step, self.now, reply.tiers[0].characteristic_age_steps, self.engine.state.gaps.index)


class PolicyContract:
    """Each test holds for any policy."""

    spec: ClassVar[str]
    monotone: ClassVar[bool] = True
    """Whether the rank follows what a record has met, so that no block ranks above what follows it in its chain.
    Not of policies that go by place or lot."""

    @classmethod
    def setup_class(cls) -> None:
        offer_policies()

    @property
    def policy(self) -> Policy:
        return parse(self.spec)

    def test_spec_names_the_same_policy(self) -> None:
        """The spec that a policy states makes the same policy again, to the last digit."""
        assert parse(self.policy.spec) == self.policy

    def test_unknown_and_malformed_parameters_are_named(self) -> None:
        """A parameter that the policy does not have, or out of its range, is refused by name."""
        name = self.policy.name
        wrong = {
            "no_such_thing": ("1",), "alpha": ("0", "-0.1", "1.1", "nan", "x"), "persist": ("maybe", "True"),
            "leaf_only": ("1",), "lambda": ("-0.1", "1.1"), "half_life_s": ("0", "-1", "inf", "1e-4"),
            "ghost_factor": ("-1", "nan"),
        }
        for parameter, values in wrong.items():
            for value in values:
                assert refused_field(f"{name}({parameter}={value})") == f"policy.{parameter}"
        assert refused_field(f"{name}(lambda=0.1,half_life_s=1)") == "policy.half_life_s"
        assert refused_field(f"{name}(alpha=0.5,alpha=0.5)") == "policy.alpha"

    def test_limits_of_parameters_are_allowed(self) -> None:
        """The ends of each range belong to it, another value of a parameter is another policy, and with each of
        them requests are served and blocks evicted."""
        texts = ("alpha=1", "alpha=1e-320", "lambda=0", "lambda=1", "half_life_s=0.001", "half_life_s=1e9",
                 "ghost_factor=0", "ghost_factor=1e308", "ghost_factor=inf")
        policies = [parse(f"{self.policy.name}({text})") for text in texts]
        assert len({policy.spec for policy in policies}) == len(texts)
        assert [parse(policy.spec) for policy in policies] == policies
        for policy in policies:
            driver = Driver(policy.spec, capacity=4, unit=False)
            for _ in range(20):
                driver.request(driver.draw(longest=3))
            assert driver.engine.state.tiers[Tier.HOST].counters.evicted

    def test_rank_grows_with_idleness_within_a_class(self) -> None:
        """Of two records of one class the one that is idle longer ranks at least as high."""
        if self.policy.index != "classes":
            return
        policy = cast(ByClass, self.policy)
        for seed in range(20):
            stats, now = random_stats(seed, 200), Moment(1000, 1000.0, float(1 + 7 * seed))
            classes, ranks = policy.classes(stats), policy.ranks(stats, now)
            assert ((classes >= 0) & (classes < 1 << 20)).all()
            for number in np.unique(classes):
                members = np.flatnonzero(classes == number)
                by_age = members[np.argsort(stats.last[members], kind="stable")]
                assert (np.diff(ranks[by_age]) <= 0).all()

    def test_keys_order_as_ranks_do_at_any_time(self) -> None:
        """Where a policy states keys, lowest key first is highest rank first, now and later."""
        if self.policy.index != "keys":
            return
        policy = cast(ByKey, self.policy)
        for seed in range(20):
            stats = random_stats(seed, 200)
            keys = policy.keys(stats)
            for step in (1000, 1010, 2000):
                ranks = policy.ranks(stats, Moment(step, float(step), 50.0))
                differ = np.abs(np.subtract.outer(keys, keys)) > 1e-9
                wrong = differ & (np.less.outer(keys, keys) != np.greater.outer(ranks, ranks))
                assert not wrong.any()

    def test_victims_are_those_of_brute_force(self) -> None:
        """What leaves for a request is what repeated search for the highest rank would have chosen."""
        if self.policy.index == "queues":
            return
        for seed in range(4):
            for unit in (True, False):
                self._follow(Driver(self.spec, seed=seed, unit=unit), 150)

    def _follow(self, driver: Driver, requests: int) -> None:
        evicted = 0
        for _ in range(requests):
            prompt = driver.draw()
            driver.open("one", prompt)
            before, now = driver.blocks(), driver.moment()
            missing = sum(one not in before for one in prompt.chain)
            wanted = max(0, missing - (CAPACITY - len(before)))
            expected = brute_force(self.policy, before, set(prompt.chain), now, wanted, driver.attention(before))
            driver.store("one", prompt)
            gone = set(before) - set(driver.blocks())
            assert gone == set(expected[: len(gone)])
            assert len(gone) == len(expected) or self.policy.common.admission == "learned"
            evicted += len(expected)
            if not driver.unit:
                mass = np.array([driver.random.random() for _ in prompt.chain], np.float32)
                driver.engine.step(Observe(SESSION, "one", mass / np.float32(mass.sum() + 1)), driver.now)
            driver.close("one")
        assert evicted > requests

    def test_queues_give_the_victims_of_plain_lists(self) -> None:
        """What leaves is what looking at all blocks for each victim would have chosen; a plan changes nothing."""
        if self.policy.index != "queues":
            return
        for seed in range(4):
            fast, plain = Driver(self.spec, seed=seed), Driver(self.spec, seed=seed)
            plain.look_at_all()
            for number in range(150):
                fast.request(fast.draw())
                plain.request(plain.draw())
                if number % 3 == 0:
                    fast.engine.step(Plan(Tier.HOST, PAGE_BYTES * (1 + number % 5), 10), fast.now)
                assert fast.blocks().keys() == plain.blocks().keys()

    def test_equal_histories_give_equal_victims(self) -> None:
        """The order is total: two engines that saw the same hold the same blocks."""
        one, other = Driver(self.spec, seed=5), Driver(self.spec, seed=5)
        for _ in range(100):
            one.request(one.draw())
            other.request(other.draw())
            assert one.blocks().keys() == other.blocks().keys()

    def test_running_blocks_are_never_chosen(self) -> None:
        """Blocks of an open sequence stay, however many requests come by."""
        driver = Driver(self.spec, seed=6)
        running = driver.draw()
        driver.open("running", running)
        driver.store("running", running)
        for _ in range(100):
            driver.request(driver.draw())
            assert set(running.chain) <= driver.blocks().keys()

    def test_a_null_report_changes_no_record(self) -> None:
        """A report without attention leaves every record as it was."""
        driver = Driver(self.spec, seed=7)
        prompt = driver.draw()
        driver.request(prompt)
        driver.open("two", prompt)
        before = driver.blocks()
        reply = driver.engine.step(Observe(SESSION, "two", None, 3), driver.now).reply
        assert isinstance(reply, Observed)
        assert reply.updated == 0
        assert {i: b.record for i, b in driver.blocks().items()} == {i: b.record for i, b in before.items()}

    def test_records_survive_eviction_unless_they_shall_not(self) -> None:
        """A block that comes back has its record with `persist`, and a new one without."""
        for persist in (True, False):
            driver = Driver(f"{self.policy.name}(persist={str(persist).lower()})", capacity=4)
            prompt = draw_prompt(random.Random(8), KIND, 1)
            for _ in range(3):
                driver.request(prompt)
            driver.engine.step(Evict(prompt.ids(), None, allow_drop=True), driver.now)
            assert not driver.blocks()
            driver.request(prompt)
            assert driver.blocks()[prompt.chain[0]].record.touches == (4 if persist else 1)

    def test_a_parent_is_worth_its_child(self) -> None:
        """Whatever attention the blocks of a chain receive, none ranks above its own child: a tail goes first."""
        if not self.monotone:
            return
        for seed in range(10):
            driver = Driver(self.spec, unit=False, seed=seed)
            prompt = driver.draw()
            for _ in range(1 + seed % 3):
                driver.request(prompt)
            driver.now += 5.0
            driver.request(Prompt(KIND, (bytes(32 * [255]),)))
            blocks, now = driver.blocks(), driver.moment()
            chain = {one: blocks[one] for one in prompt.chain}
            ranks = ranks_of(self.policy, list(chain.values()), now, driver.attention(chain))
            assert (np.diff(ranks) >= -1e-12).all()

    def test_a_change_of_policy_loses_nothing(self) -> None:
        """Records are the same after a change to another policy and back."""
        driver = Driver(self.spec, seed=10)
        for _ in range(50):
            driver.request(driver.draw())
        before = driver.blocks()
        for spec in ("lru", "lrfu(ranking=decayed)", self.spec):
            driver.engine.step(SetPolicy(spec), driver.now)
        after = driver.blocks()
        assert {i: (b.record.touches, b.record.last, b.record.ema) for i, b in before.items()} == {
            i: (b.record.touches, b.record.last, b.record.ema) for i, b in after.items()
        }


def refused_field(spec: str) -> str:
    """The field that the refusal of a spec names; empty when it is not refused."""
    try:
        parse(spec)
    except InvalidInput as error:
        return error.field
    return ""


def random_stats(seed: int, count: int) -> Stats:
    """Records of all kinds, half of them of unit accesses only."""
    draw = np.random.default_rng(seed)
    touches = draw.integers(1, 9, count)
    unit = draw.random(count) < 0.5
    last = draw.integers(0, 1000, count)
    ema = np.where(unit, 1 - 0.5**touches, draw.random(count))
    return GivenStats(
        touches, last, last.astype(np.float64), ema, draw.random(count) * touches, unit,
        draw.integers(0, 20, count), draw.integers(0, CLASSES + 1, count, np.uint8), random_attention(draw, count),
    )


def random_attention(draw: np.random.Generator, count: int) -> Attended:
    """What reports may have given to so many blocks."""
    reports = draw.integers(0, 40, count)
    window = draw.random((count, WINDOW_REPORTS)) * 4
    return Attended(
        draw.random(count) * reports, draw.random(count), draw.integers(0, reports + 1), reports, window,
        window.sum(1) * draw.integers(0, 2, count), draw.integers(0, 20, count), reports > 0,
    )


def ranks_of(policy: Policy, blocks: list[BlockView], now: Moment, attention: Attended) -> FloatArray:
    """Ranks by the policy's own formula, from the records as they are shown."""
    records = [block.record for block in blocks]
    ema = np.array([record.ema for record in records])
    touches = np.array([record.touches for record in records], np.int64)
    stats = GivenStats(
        touches, np.array([record.last for record in records], np.int64),
        np.array([record.wall for record in records]), ema, np.array([record.crf for record in records]),
        unit_flags(policy, touches, ema), np.array([block.position for block in blocks], np.int64),
        np.array([record.learnt for record in records], np.uint8), attention,
    )
    return policy.ranks(stats, now)


def unit_flags(policy: Policy, touches: np.ndarray, ema: FloatArray) -> np.ndarray:
    """Which records can only have met weight 1: a record of n accesses of weight 1 has just one possible ema."""
    flags = np.zeros(len(touches), bool)
    for place, (count, value) in enumerate(zip(touches.tolist(), ema.tolist(), strict=True)):
        expected = 0.0
        for _ in range(count):
            expected = (1.0 - policy.common.alpha) * expected + policy.common.alpha
        flags[place] = expected == value
    return flags


def brute_force(
    policy: Policy, blocks: dict[bytes, BlockView], pinned: set[bytes], now: Moment, count: int,
    attention: Attended,
) -> list[bytes]:
    """`count` victims, each by a search over all: rank, older, deeper, smaller identity."""
    left = dict(blocks)
    ranks = dict(zip(blocks, ranks_of(policy, list(blocks.values()), now, attention).tolist(), strict=True))
    victims: list[bytes] = []
    for _ in range(count):
        parents = {block.parent for block in left.values()} if policy.common.leaf_only else set()
        open_to = [one for one in left if one not in pinned and one not in parents]
        if not open_to:
            break
        best = min(open_to, key=lambda one: (-ranks[one], left[one].record.last, -left[one].position, one))
        victims.append(best)
        del left[best]
    return victims
