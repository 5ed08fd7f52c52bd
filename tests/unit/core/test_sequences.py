"""Running requests: what they remember, and for how long."""

from __future__ import annotations

import numpy as np
import pytest
from engine_driver import SESSION, Driver, ids_of

from tierd.core import holders, sequences
from tierd.core import messages as m
from tierd.core.errors import LimitReached, NotFound


def test_what_a_sequence_has_touched_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence that stays open for days and names ever new blocks remembers a bounded number of them, and none
    once it is closed."""
    monkeypatch.setattr(sequences, "MOST_TOUCHED", 8)
    driver = Driver(64)
    driver.step(m.OpenSequence(SESSION, "long", ids_of([0])))
    (sequence,) = driver.engine.state.sequences.values()
    for number in range(30):
        driver.put([number], sequence="long")
        assert len(sequence.touched) <= 8
    driver.step(m.CloseSequence(SESSION, "long"))
    assert not sequence.touched


def test_what_open_sequences_name_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sequence that would make the open ones name more identities than the limit nothing is kept; when another
    has closed it can be opened."""
    monkeypatch.setattr(holders, "MOST_HELD", 10)
    driver = Driver(64)
    driver.step(m.OpenSequence(SESSION, "a", ids_of(range(6))))
    for _ in range(2):
        with pytest.raises(LimitReached, match="sequence ids: 6 in open ones, 5 more are over 10"):
            driver.step(m.OpenSequence(SESSION, "b", ids_of(range(3)), others=(ids_of(range(10, 12)),)))
    driver.step(m.CloseSequence(SESSION, "a"))
    driver.step(m.OpenSequence(SESSION, "b", ids_of(range(3)), others=(ids_of(range(10, 12)),)))


def test_reports_of_one_step_count_once_with_the_larger_weight() -> None:
    """Of a block that two sequences share, two reports in one step are one access, of the larger weight."""
    records = []
    for masses in ([0.5, 0.25], [0.25, 0.5], [0.5]):
        driver = Driver(host=2, policy="lrfu")
        driver.put([0])
        for name in ("a", "b"):
            driver.step(m.OpenSequence(SESSION, name, ids_of([0], chain=True)))
        for name, mass in zip("ab", masses, strict=False):
            driver.step(m.Observe(SESSION, name, np.array([mass], np.float32)))
        view = driver.describe(0)
        assert view is not None
        records.append(view.record)
    assert records[0] == records[1] == records[2]


def test_reports_of_two_steps_count_twice() -> None:
    """A request between two reports makes them two accesses."""
    driver = Driver(host=2, policy="lrfu")
    driver.put([0])
    driver.step(m.OpenSequence(SESSION, "a", ids_of([0], chain=True)))
    touches = []
    for _ in range(2):
        driver.step(m.Observe(SESSION, "a", np.array([0.5], np.float32)))
        driver.put([1])
        view = driver.describe(0)
        assert view is not None
        touches.append(view.record.touches)
    assert touches[1] == touches[0] + 1


def test_sequences_that_closed_are_remembered_up_to_a_number_of_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three that closed, of four blocks each and ten remembered, reports on the last two are taken still."""
    monkeypatch.setattr(sequences, "RECENT_IDS", 10)
    driver = Driver(64)
    for name in "abc":
        driver.step(m.OpenSequence(SESSION, name, ids_of(range(4))))
        driver.step(m.CloseSequence(SESSION, name))
    for name in "bc":
        driver.step(m.Observe(SESSION, name, np.zeros(4, np.float32)))
    with pytest.raises(NotFound, match="'a'"):
        driver.step(m.Observe(SESSION, "a", np.zeros(4, np.float32)))
