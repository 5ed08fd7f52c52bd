"""The ring of ghosts and its index against a dictionary, one by one and in batches."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tierd.core import ghost_index
from tierd.core.ghost_index import MOST_NUMBER
from tierd.core.ghosts import MANY_HOLES, Ghosts, Records
from tierd_client.format import GHOST_MAGIC, WORD_HEAD, WORD_TAIL, Table, ghost_columns

IDENTITIES = 60
PLACES = 32


def identities(crowded: bool) -> np.ndarray:
    """Crowded ones are all of one chain, and have the same first word."""
    made = np.random.default_rng(1).integers(0, 256, (IDENTITIES, 32)).astype(np.uint8)
    if crowded:
        made[:, :16] = made[0, :16]
    return made


def records(numbers: list[int]) -> Records:
    """A record per number that says the number."""
    n = np.array(numbers)
    return Records(
        n.astype(np.uint32) + 1, n, n.astype(np.float64), n / 1.0, n / 1.0, n >= 0, n.astype(np.uint8)
    )


@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("batch", [0, 3, 1000])
@pytest.mark.parametrize("begun", [0, MOST_NUMBER - 40, MOST_NUMBER + 5])
@pytest.mark.parametrize("seed", range(3))
def test_ghosts_agree_with_a_dictionary(
    seed: int, begun: int, batch: int, crowded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However ghosts come, come back and are forgotten, each that is remembered is found with its record, and no
    other; so after a restart, and where the numbers of places run out."""
    monkeypatch.setattr(ghost_index, "FEW_CHAINS", batch)
    draw, ids = random.Random(seed), identities(crowded)
    table = Table.create(GHOST_MAGIC, ghost_columns(PLACES))
    table.words[WORD_HEAD] = table.words[WORD_TAIL] = begun
    ghosts, known = Ghosts(table), list[int]()
    for turn in range(120):
        if draw.random() < 0.6:
            new = draw.sample(sorted(set(range(IDENTITIES)) - set(known)), draw.randint(1, 12))
            ghosts.add(ids[new], records(new), limit := draw.choice([20, 100]))
            known = (known + new)[-limit:]
            assert len(known) >= len(ghosts) >= min(len(known), PLACES - max(len(new), PLACES // MANY_HOLES))
            known = known[len(known) - len(ghosts) :]
        else:
            back = draw.sample(range(IDENTITIES), 8)
            ghosts.take(ids[back], ghosts.places(ids[back]))
            known = [number for number in known if number not in back]
        if turn % 40 == 39:
            ghosts = Ghosts(table)
        found, got = ghosts.peek(ids)
        assert found.tolist() == sorted(known) and (got.touches - 1).tolist() == sorted(known)
    assert ghosts.tail < MOST_NUMBER
