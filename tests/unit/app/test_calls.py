"""Numbered calls: each order in which a call and its being given up can meet."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.app.calls import BLOCKS_MAX, CALLS_MAX, Calls
from tierd.core.errors import Refused
from tierd.core.messages import Abort, Release

UNDO = Release(1, (2,))


def test_a_done_call_is_undone_once() -> None:
    """What a call took is handed out to be undone, the first time."""
    calls = Calls()
    calls.begin(1)
    assert calls.took(1, UNDO)
    assert calls.give_up(1) is UNDO
    assert calls.give_up(1) is None


def test_a_running_call_takes_nothing_once_it_was_given_up() -> None:
    """Giving up comes first: the call is told to undo itself."""
    calls = Calls()
    calls.begin(1)
    assert calls.give_up(1) is None
    assert not calls.took(1, UNDO)


def test_a_call_given_up_before_it_came_is_refused() -> None:
    """As on the wire, where a later message may overtake an earlier one."""
    calls = Calls()
    assert calls.give_up(1) is None
    with pytest.raises(Refused, match="given up"):
        calls.begin(1)


def test_calls_without_a_number_are_not_remembered() -> None:
    """0 may be used by any number of calls at once."""
    calls = Calls()
    for _ in range(2):
        calls.begin(0)
        assert calls.took(0, UNDO)
    assert calls.give_up(0) is None


def test_the_oldest_are_forgotten_aloud() -> None:
    """However many calls a session makes, a bounded number is kept; who gives up one that is not is refused, and
    one that is to come still is not."""
    calls = Calls()
    for call in range(1, 2 * CALLS_MAX):
        calls.begin(call)
        calls.took(call, UNDO)
    assert len(calls._known) == CALLS_MAX
    with pytest.raises(Refused, match="detach"):
        calls.give_up(1)
    assert calls.give_up(2 * CALLS_MAX - 1) is UNDO
    assert calls.give_up(3 * CALLS_MAX) is None


def test_what_large_calls_took_is_bounded() -> None:
    """Calls that reserved many blocks are kept as long as their blocks are not too many in all."""
    calls, blocks = Calls(), BLOCKS_MAX // 4
    large = Abort(1, np.zeros((blocks, 32), np.uint8), np.zeros(blocks, np.uint64))
    for call in range(1, 10):
        calls.begin(call)
        calls.took(call, large)
    with pytest.raises(Refused, match="detach"):
        calls.give_up(5)
    assert [calls.give_up(call) for call in range(6, 10)] == [large] * 4
    for call in range(10, 10 + CALLS_MAX // 2):
        calls.begin(call)
        calls.took(call, UNDO)
    assert calls.give_up(10) is UNDO
