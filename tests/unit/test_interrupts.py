"""Ctrl-C and SIGTERM of commands that start processes."""

from __future__ import annotations

import os
import signal

import pytest

from tierd.interrupts import check_interrupt, terminated_as_interrupt


class Destroyed:
    """Meets a signal in its destructor, where Python drops what the handler raises."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __del__(self) -> None:
        os.kill(os.getpid(), self.number)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("checked", [True, False])
def test_an_interrupt_that_python_drops_is_not_lost(number: signal.Signals, checked: bool) -> None:
    """One that comes while an object is destroyed is raised at the next check, at the latest at the end; the
    handlers from before are back afterwards."""
    before = signal.getsignal(number)
    went_on = False
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupt():
        Destroyed(number)
        if checked:
            check_interrupt()
        went_on = True
    assert went_on is not checked and signal.getsignal(number) is before
