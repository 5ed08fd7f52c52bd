"""The spill tier that is off: takes nothing, holds nothing, and is not unwell."""

from __future__ import annotations

import numpy as np
import pytest

from tierd.adapters.spill_noop import NoopSpillStore
from tierd.core.errors import BlockVanished, SpillFull
from tierd.ports import SpillStore
from tierd.testing.spill_contract import DEADLINE_S, FINGERPRINT, identity_of, put_random


def test_noop() -> None:
    """A put is refused as by a full server, a get is a miss, and nothing is ever SpillDown."""
    store: SpillStore = NoopSpillStore()
    with pytest.raises(SpillFull, match="off"):
        put_random(store, 1)
    with pytest.raises(BlockVanished):
        store.get(FINGERPRINT, identity_of(1), np.empty(1, np.uint8), DEADLINE_S)
    store.unlink(FINGERPRINT, [identity_of(1)], DEADLINE_S)
    assert not store.probe(DEADLINE_S).same
    store.close()
    store.close()
