"""kill -9 between any two bytecodes of the engine: the next boot keeps all that was acknowledged."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
from crash_machine import PAGE, SESSIONS, Killed, Killer, Machine, identity_of

from tierd.core.invariants import check
from tierd.core.messages import Commit, Ids, OpenSession, Reserve
from tierd_client.format import WORD_INDEX_EPOCH

OPERATIONS = 40
POINTS = 9
"""Crashes per seed, spread at random over all bytecodes of its commands."""
OPENING_COMMANDS = 4
"""Before the run: two sessions open and say which process they are."""


def crashed(seed: int, *, writing: bool = False) -> Iterator[tuple[Machine, str]]:
    """Machines of one seed whose daemons died at different points, and where. `writing`: while a record was
    half-written."""
    chance = random.Random(seed)
    whole = Machine(seed)
    whole.run(OPERATIONS)
    points = 0
    while points < POINTS:
        fatal = chance.randint(OPENING_COMMANDS + 1, whole.commands)
        measured = Killer(0, writing=writing)
        Machine(seed, fatal, measured).run(OPERATIONS)
        if measured.count == 0:
            continue
        at = chance.randint(1, measured.count)
        machine = Machine(seed, fatal, Killer(at, writing=writing))
        with pytest.raises(Killed):
            machine.run(OPERATIONS)
        points += 1
        yield machine, f"seed {seed}, writing {writing}, command {fatal}, bytecode {at} of {measured.count}"


def hold_to_its_word(machine: Machine, where: str) -> None:
    try:
        machine.assert_kept()
        machine.assert_held_slots_are_kept_aside()
    except AssertionError as error:
        raise AssertionError(f"{where}: {error}") from error


@pytest.mark.parametrize("writing", [False, True], ids=["anywhere", "in a record"])
@pytest.mark.parametrize("seed", range(14))
def test_a_kill_at_any_point_loses_nothing_acknowledged(seed: int, writing: bool) -> None:
    """After a kill between any two bytecodes the next boot has every acknowledged block with its bytes and
    accesses, hands out no slot that a client may touch, and can free all slots in the end."""
    for machine, where in crashed(seed, writing=writing):
        machine.restart()
        hold_to_its_word(machine, where)


@pytest.mark.parametrize("seed", range(100, 106))
def test_a_start_that_is_killed_loses_nothing_either(seed: int) -> None:
    """The same holds when the next boot is killed as well, in the middle of taking over."""
    chance = random.Random(seed)
    for machine, where in crashed(seed):
        killer = Killer(chance.randint(1, 3000))
        try:
            machine.restart(killer)
            where += ", restarted"
        except Killed:
            where += f", bytecode {killer.at} of the start"
        machine.restart()
        hold_to_its_word(machine, where)


def test_a_boot_moves_every_sequence() -> None:
    """A reader that noted a record before a restart finds another sequence after it, also where the copy is
    gone and the slot is another's."""
    machine = Machine(1)
    machine.run(OPERATIONS)
    before = machine.tables.catalog["sequence"].copy()
    machine.restart()
    after = machine.tables.catalog["sequence"]
    assert (after != before).all()
    assert not (after % 2).any()


def test_an_interrupted_rebuild_of_the_index_is_made_good() -> None:
    """The epoch of the index is even after a start, whatever it was when the daemon died."""
    machine = Machine(2)
    machine.run(OPERATIONS)
    words = machine.tables.catalog.words
    words[WORD_INDEX_EPOCH] |= np.uint64(1)
    machine.restart()
    assert words[WORD_INDEX_EPOCH] % np.uint64(2) == 0



def test_the_row_of_a_lost_parent_has_no_children_left() -> None:
    """A child whose parent did not survive the restart is not taken for a child of the row's next block, which
    could never be evicted then."""
    machine = Machine(3)
    one = SESSIONS[0]
    ids = np.frombuffer(identity_of(1, 0, 0) + identity_of(1, 0, 1), np.uint8).reshape(2, 32)
    granted = machine.step(Reserve(one, Ids(1, 0, ids, chain=True), PAGE))
    machine.step(Commit(one, ids[1:], granted.generations[1:], np.ones(1, np.uint64)))
    machine.restart()
    machine.step(OpenSession(99))
    for chain in range(1, 6):  # one of them gets the row that the parent had
        other = np.frombuffer(identity_of(1, chain, 0), np.uint8)[None, :]
        machine.step(Reserve(99, Ids(1, 0, other), PAGE))
        check(machine.engine)
