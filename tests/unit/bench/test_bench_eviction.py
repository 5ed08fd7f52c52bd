"""The figures of eviction: every block that comes must need a victim."""

from __future__ import annotations

import pytest

from tierd.bench.eviction import GATED, RANKINGS
from tierd.core.policy.registry import parse


@pytest.mark.parametrize("spec", [*GATED.values(), *RANKINGS.values()])
def test_policies_that_are_measured_decline_nothing(spec: str) -> None:
    """No policy whose victims are timed declines newcomers: there would be fewer victims than blocks."""
    assert parse(spec).common.admission == "none"
