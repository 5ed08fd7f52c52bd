"""What the engine does when nobody says otherwise."""

from __future__ import annotations

from dataclasses import fields
from enum import Enum

import numpy as np
import pytest
from engine_driver import SESSION, Driver, ids_of

from tierd.core import messages as m
from tierd.core.engine_settings import EngineSettings
from tierd.core.errors import InvalidInput
from tierd.settings import Settings


def test_the_engine_s_own_defaults_are_those_of_the_daemon_s_settings() -> None:
    """Each number that the engine takes and that users can set has one default, wherever it is left out."""
    known = {field.name: field.default for field in fields(EngineSettings)}
    of_users = {name: field.default for name, field in Settings.model_fields.items()}
    shared = sorted(known.keys() & of_users.keys())
    assert len(shared) >= 15, "most of them have one name in both"
    for name in shared:
        theirs = of_users[name]
        assert known[name] == (theirs.value if isinstance(theirs, Enum) else theirs), name


def test_attention_sums_to_one_but_for_rounding() -> None:
    """A report that sums to 1.0009 is taken, one of 1.0011 is refused and names its sum."""
    driver = Driver(host=4, policy="lrfu")
    driver.step(m.OpenSequence(SESSION, "s", ids_of([0, 1], chain=True)))
    driver.put([0, 1], chain=True, sequence="s")
    for total, taken in ((1.0009, True), (1.0011, False)):
        report = m.Observe(SESSION, "s", np.array([total / 2] * 2, np.float32))
        if taken:
            assert driver.step(report).updated == 2
        else:
            with pytest.raises(InvalidInput, match=r"attention: .*1\.0011"):
                driver.step(report)
