"""What the depth of a chain must not cost."""

from __future__ import annotations

import pytest
from engine_driver import Driver, ids_of

from tierd.core import messages as m
from tierd.core.victim_rows import VictimRows

DEPTH = 200


def test_a_chain_that_grows_by_one_block_is_not_put_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a block is appended under pressure the chain before it is protected; when that ends, only blocks
    without a child here are put back into the order of victims."""
    driver = Driver(DEPTH + 20, rows=2 * DEPTH)
    driver.put(range(DEPTH), chain=True)
    for number in range(10_000, 10_020):
        driver.put([number])
    sought: list[int] = []
    place = VictimRows.place

    def counted(rows: VictimRows, row: int) -> tuple[int, int, bytes]:
        sought.append(row)
        return place(rows, row)

    monkeypatch.setattr(VictimRows, "place", counted)
    for number in range(DEPTH, DEPTH + 10):
        blocks = ids_of([number], chain=True, first=number, parent=number - 1)
        assert driver.put_ids(blocks) == [m.Reserved.GRANTED]
    whole = ids_of([*range(DEPTH + 10)], chain=True)
    assert driver.step(m.Lookup(whole)).hit_blocks == DEPTH + 10
    assert len(sought) < 100
