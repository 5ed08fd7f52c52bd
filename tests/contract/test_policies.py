"""The shipped policies under the shipped contract."""

from __future__ import annotations

from tierd.core.policy.lrfu import Lrfu
from tierd.core.policy.registry import POLICIES, parse
from tierd.testing.policy_contract import PolicyContract, refused_field


class TestLru(PolicyContract):
    spec = "lru"


class TestLruOfAnyBlock(PolicyContract):
    spec = "lru(leaf_only=false)"


class TestLrfuAuto(PolicyContract):
    spec = "lrfu"


class TestLrfuAutoOfAnyBlock(PolicyContract):
    spec = "lrfu(leaf_only=false,alpha=0.3)"


class TestLrfuComposite(PolicyContract):
    spec = "lrfu(ranking=composite)"


class TestLrfuCompositeWithoutPersistence(PolicyContract):
    spec = "lrfu(ranking=composite,alpha=0.123456789,beta=0.0123456789,persist=false)"


class TestLrfuDecayed(PolicyContract):
    spec = "lrfu(ranking=decayed,lambda=0.25)"


class TestLrfuLfu(PolicyContract):
    spec = "lrfu(ranking=decayed,lambda=0)"


class TestLrfuHalfLife(PolicyContract):
    spec = "lrfu(ranking=decayed,half_life_s=17.5)"


class TestLfu(PolicyContract):
    spec = "lfu"


class TestLfuOfAnyBlockInCache(PolicyContract):
    spec = "lfu(leaf_only=false,persist=false)"


class TestGab(PolicyContract):
    spec = "gab"


class TestGabThatStoresAll(PolicyContract):
    spec = "gab(admission=none)"


class TestGabOfAnyBlock(PolicyContract):
    spec = "gab(leaf_only=false,admission=none)"


class TestGittins(PolicyContract):
    spec = "gittins"


class TestGittinsOfAnyBlockThatDeclines(PolicyContract):
    spec = "gittins(leaf_only=false,admission=learned)"


class TestEma(PolicyContract):
    spec = "ema"


class TestEmaOfAnyBlock(PolicyContract):
    spec = "ema(leaf_only=false,alpha=0.3)"


class TestRandom(PolicyContract):
    spec = "random"


class TestRandomOfAnyBlock(PolicyContract):
    spec = "random(seed=7,leaf_only=false)"


class TestArc(PolicyContract):
    spec = "arc"


class TestArcOfAnyBlock(PolicyContract):
    spec = "arc(leaf_only=false,persist=false)"


class TestS3Fifo(PolicyContract):
    spec = "s3fifo(small=0.25)"


class TestS3FifoOfAnyBlock(PolicyContract):
    spec = "s3fifo(leaf_only=false)"


class TestSieve(PolicyContract):
    spec = "sieve"


class TestSieveOfAnyBlock(PolicyContract):
    spec = "sieve(leaf_only=false)"


class TestStreaming(PolicyContract):
    spec = "streaming"
    monotone = False


class TestStreamingOfLeaves(PolicyContract):
    spec = "streaming(sink_blocks=2,leaf_only=true)"
    monotone = False


class TestSlidingWindow(PolicyContract):
    spec = "sliding_window"
    monotone = False


class TestH2O(PolicyContract):
    spec = "h2o"


class TestH2ONormalised(PolicyContract):
    spec = "h2o(normalise=true,leaf_only=false)"


class TestH2OOfTwoPools(PolicyContract):
    spec = "h2o(recent_blocks=2,leaf_only=false)"
    monotone = False


class TestTova(PolicyContract):
    spec = "tova"


class TestScissorhands(PolicyContract):
    spec = "scissorhands(leaf_only=false)"


class TestSnapKV(PolicyContract):
    spec = "snapkv"


class TestSnapKVOfNeighbours(PolicyContract):
    spec = "snapkv(pool=3,leaf_only=false)"


class TestSnapKVOnAverage(PolicyContract):
    spec = "snapkv(pool=5,pooling=average)"


class TestStrided(PolicyContract):
    spec = "strided(stride=3)"
    monotone = False


def test_each_registered_policy_is_under_the_contract() -> None:
    """No policy of this package goes without the contract suite."""
    suites = [value for name, value in globals().items() if name.startswith("Test")]
    assert {parse(suite.spec).name for suite in suites} == set(POLICIES)


def test_integer_parameters_are_integers_in_range() -> None:
    """A seed, a stride or a number of sinks that is no integer, or out of its range, is refused by name."""
    wrong = {
        "random(seed=-1)": "policy.seed", "random(seed=4294967296)": "policy.seed",
        "random(seed=1.5)": "policy.seed", "s3fifo(small=0)": "policy.small", "s3fifo(small=1.1)": "policy.small",
        "strided(stride=0)": "policy.stride", "strided(stride=65537)": "policy.stride",
        "streaming(sink_blocks=-1)": "policy.sink_blocks", "streaming(sink_blocks=65537)": "policy.sink_blocks",
        "streaming(sink_blocks=true)": "policy.sink_blocks", "sliding_window(sink_blocks=1)": "policy.sink_blocks",
    }
    assert {spec: refused_field(spec) for spec in wrong} == wrong
    for spec in ("random(seed=4294967295)", "strided(stride=65536)", "streaming(sink_blocks=65536)"):
        assert parse(parse(spec).spec) == parse(spec) != parse(spec.partition("(")[0])


def test_parameters_of_lrfu_are_refused_by_name() -> None:
    """A ranking that there is not, a beta out of range, or one where none is used, is named."""
    wrong = {
        "lrfu(ranking=best)": "policy.ranking", "lrfu(ranking=composite,beta=-1)": "policy.beta",
        "lrfu(ranking=composite,beta=1e7)": "policy.beta", "lrfu(beta=0.1)": "policy.beta", "lfru": "policy",
        "lrfu(alpha)": "policy", "lrfu(alpha=)": "policy", "lrfu(=1)": "policy", "lrfu(": "policy",
        "lrfu" + " " * 2000: "policy", "": "policy",
    }
    assert {spec: refused_field(spec) for spec in wrong} == wrong


def test_beta_reaches_from_nothing_up() -> None:
    """Beta 0 and 1e6 are allowed, and say so in the spec."""
    for beta in (0.0, 1e6, 0.0123456789):
        policy = parse(f"lrfu(ranking=composite,beta={beta})")
        assert isinstance(policy, Lrfu)
        assert policy.beta == beta
        assert parse(policy.spec) == policy


def test_spaces_and_defaults_in_specs_mean_nothing() -> None:
    """A spec may be spaced out, and may say what holds anyway."""
    assert parse(" lrfu( ranking = auto , alpha = 0.5 ) ") == parse("lrfu") == parse("lrfu()")


def test_a_spec_has_at_most_so_many_characters() -> None:
    """1,024 characters are read, one more is refused before it is looked at."""
    assert refused_field("lru" + " " * 1021) == ""
    assert refused_field("lru" + " " * 1022) == "policy"
