"""The order between deletes and stores of the same identity."""

from __future__ import annotations

import pytest
from app_moves import block, identity, move

from tierd.app import unlinks
from tierd.app.unlinks import Unlinks
from tierd.core.messages import Tier, Unlink


def store(op: int, name: int):
    return move(op, Tier.HOST, Tier.SPILL, data=block(0), name=name)


def test_a_store_cancels_a_waiting_delete() -> None:
    """A delete that has not begun is dropped when its identity is stored again."""
    waiting = Unlinks()
    waiting.add(Unlink(1, (identity(1), identity(2))))
    assert not waiting.holds(store(1, 1))
    call = waiting.begin()
    assert call is not None and call.identities == (identity(2),)


def test_a_store_waits_for_a_delete_under_way() -> None:
    """A store of an identity whose delete is under way comes back when the delete has ended."""
    waiting = Unlinks()
    waiting.add(Unlink(1, (identity(1),)))
    assert waiting.begin() is not None
    first, other = store(1, 1), store(2, 2)
    assert waiting.holds(first) and not waiting.holds(other)
    assert waiting.finished(done=True) == [first]
    assert waiting.begin() is None


def test_one_call_at_a_time() -> None:
    """While a call is under way none begins, and namespaces never share a call."""
    waiting = Unlinks()
    waiting.add(Unlink(1, (identity(1),)))
    waiting.add(Unlink(2, (identity(2),)))
    first = waiting.begin()
    assert first == Unlink(1, (identity(1),)) and waiting.begin() is None
    waiting.finished(done=True)
    assert waiting.begin() == Unlink(2, (identity(2),))


def test_a_failed_call_waits_again_but_not_for_what_was_stored() -> None:
    """After a failure the identities wait again, except those that were stored meanwhile."""
    waiting = Unlinks()
    waiting.add(Unlink(1, (identity(1), identity(2))))
    waiting.begin()
    held = store(1, 1)
    assert waiting.holds(held)
    assert waiting.finished(done=False) == [held]
    assert waiting.begin() == Unlink(1, (identity(2),))


def test_more_than_fit_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue of deletes is bounded; what is left out is counted."""
    monkeypatch.setattr(unlinks, "IDENTITIES_WAITING_MAX", 2)
    waiting = Unlinks()
    waiting.add(Unlink(1, tuple(identity(i) for i in range(1, 5))))
    assert waiting.dropped == 2
    call = waiting.begin()
    assert call is not None and len(call.identities) == 2


def test_a_call_is_bounded() -> None:
    """One call deletes at most so many identities; the rest waits for the next."""
    waiting = Unlinks()
    waiting.add(Unlink(1, tuple(identity(i) for i in range(1, unlinks.IDENTITIES_PER_CALL + 2))))
    first = waiting.begin()
    assert first is not None and len(first.identities) == unlinks.IDENTITIES_PER_CALL
    waiting.finished(done=True)
    second = waiting.begin()
    assert second is not None and len(second.identities) == 1


def test_held_stores_can_be_taken_at_stop() -> None:
    """A store that waits for a delete is not forgotten when the mover stops."""
    waiting = Unlinks()
    waiting.add(Unlink(1, (identity(1),)))
    waiting.begin()
    held = store(1, 1)
    waiting.holds(held)
    assert waiting.take_held() == [held] and waiting.finished(done=True) == []


def test_forgotten_for_good() -> None:
    """When the store was given up nothing that waits is deleted from the next one, not even what was under way."""
    waiting = Unlinks()
    waiting.add(Unlink(1, (identity(1),)))
    assert waiting.begin() is not None
    waiting.add(Unlink(1, (identity(2),)))
    assert waiting.concerns(1, identity(1)) and waiting.concerns(1, identity(2))
    assert not waiting.concerns(2, identity(1))
    waiting.forget()
    assert waiting.holds(store(3, 1))
    assert len(waiting.finished(done=False)) == 1
    assert waiting.begin() is None and len(waiting) == 0
