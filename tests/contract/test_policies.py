"""The shipped policies under the shipped contract."""

from __future__ import annotations

from tierd.testing.policy_contract import PolicyContract


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
