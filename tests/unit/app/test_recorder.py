"""Commands joined to requests, and what the recorder leaves out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tierd.app import recorder as recording
from tierd.app.recorder import GROWS_S, Joining, Noted, Recorder, Request, Shadowed, noted_of
from tierd.core import messages as m
from tierd.sim.traces import identities_of
from tierd_client.format import words_of
from tierd_client.hits import HitRule

IDS = identities_of(20)
CHAIN = m.Ids(1, 0, IDS[:6], chain=True, rule=HitRule(16))


def words(*places: int) -> list[int]:
    return [int(words_of(IDS)[place, 0]) for place in places]


def joined(*commands: tuple[float, m.Command]) -> list[list[int]]:
    """Words of the requests that the commands, each with its time, make; the open ones last."""
    noted = [noted_of(command, at_s) for at_s, command in commands]
    joining = Joining()
    done = joining.take([one for one in noted if one is not None], commands[-1][0])
    return [list(request.words) for request in done + joining.rest()]


def acquire(blocks: m.Ids, sequence: str = "", session: int = 1) -> m.Acquire:
    return m.Acquire(session, blocks, sequence)


def reserve(blocks: m.Ids, sequence: str = "") -> m.Reserve:
    return m.Reserve(1, blocks, 4096, sequence=sequence)


def test_a_sequence_is_one_request() -> None:
    """What a sequence names from its opening to its end is one request, each block once, in order."""
    answer = m.Ids(1, 0, IDS[6:8], chain=True, position=6, parent=IDS[5].tobytes())
    assert joined(
        (0, m.OpenSequence(1, "a", CHAIN)), (1, acquire(CHAIN, "a")),
        (2, reserve(CHAIN.take(np.arange(3, 6)), "a")), (3, reserve(answer, "a")), (4, m.CloseSequence(1, "a")),
    ) == [words(*range(8))]


def test_misses_that_are_stored_belong_to_what_asked_for_them() -> None:
    """Outside sequences a put of what a get did not find goes on with the get; another get is another request."""
    tail = m.Ids(1, 0, IDS[6:8], chain=True, position=6, parent=IDS[5].tobytes())
    assert joined((0, acquire(CHAIN)), (1, reserve(CHAIN)), (2, reserve(tail)), (3, acquire(CHAIN))) == [
        words(*range(8)), words(*range(6)),
    ]


def test_a_put_of_other_blocks_is_another_request() -> None:
    """What is stored without being asked for, or following what was, stands by itself."""
    other = m.Ids(1, 0, IDS[10:12], chain=True)
    assert joined((0, acquire(CHAIN)), (1, reserve(other))) == [words(*range(6)), words(10, 11)]


def test_sessions_are_kept_apart() -> None:
    """Calls of two sessions are two requests, and the end of a session ends its own only."""
    other = m.Ids(1, 0, IDS[10:12], chain=True)
    assert joined(
        (0, acquire(CHAIN)), (1, acquire(other, session=2)), (2, m.EndSession(2, settled=True)),
    ) == [words(10, 11), words(*range(6))]


def test_what_was_counted_before_is_not_noted_again() -> None:
    """The repetition of a call that was PENDING says nothing new; other commands say nothing."""
    for command in (
        replace(acquire(CHAIN), retry=True), replace(acquire(CHAIN), lease=3), replace(reserve(CHAIN), retry=True),
        m.Lookup(CHAIN), m.Occupancy(),
    ):
        assert noted_of(command, 0.0) is None


def test_requests_outside_sequences_end_by_themselves() -> None:
    """After a while without a call what comes next is another request, even if it is a put that would follow."""
    joining = Joining()
    first, later = noted_of(acquire(CHAIN), 0.0), noted_of(acquire(CHAIN, session=2), GROWS_S + 1)
    assert first is not None
    assert later is not None
    assert joining.take([first], 0.0) == []
    assert [list(one.words) for one in joining.take([later], later.at_s)] == [words(*range(6))]


def test_too_many_open_requests_are_written_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sequences that nobody closes take bounded memory."""
    monkeypatch.setattr(recording, "MOST_OPEN_IDS", 12)
    noted = [noted_of(m.OpenSequence(1, str(number), CHAIN), 0.0) for number in range(5)]
    joining = Joining()
    assert len(joining.take([one for one in noted if one is not None], 0.0)) == 3
    assert len(joining.rest()) == 2


def run_recorder(recorder: Recorder) -> None:
    asyncio.run(recorder.stop(5.0))


def test_over_the_bound_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes faster than it can be written is left out and counted."""
    monkeypatch.setattr(recording, "MOST_WAITING_IDS", 10)
    written: list[Request] = []
    recorder = Recorder(written.extend)
    recorder.note(acquire(CHAIN))
    recorder.note(acquire(CHAIN))
    assert recorder.left_out_total == 1
    run_recorder(recorder)
    assert [list(one.words) for one in written] == [words(*range(6))]


def test_a_log_that_cannot_be_written_ends_the_recording() -> None:
    """An error of the disk is the recorder's, not the daemon's: nothing is noted from then on."""

    def full(_: Sequence[Request]) -> None:
        raise OSError(28, "No space left on device")

    recorder = Recorder(full)
    recorder.note(acquire(CHAIN))
    run_recorder(recorder)
    assert recorder.failed
    recorder.note(acquire(CHAIN))
    assert recorder.left_out_total == 0


def shadowed(
    blocks: m.Ids, asked: int, *, begins: bool = True, ends: bool = False, namespace: int = 7, session: int = 1,
    served: int = 0,
) -> Noted:
    """What is noted of a request that is only reported."""
    notes: list[Noted] = []
    recorder = Recorder(lambda _: None, clock=lambda: 0.0)
    recorder._notes = notes
    said = Shadowed(namespace, 4096, asked, served, 0.0)
    recorder.note_shadowed(session, blocks, said, begins=begins, ends=ends)
    asyncio.run(recorder.stop(5.0))
    return notes[0]


def told(*notes: Noted) -> list[tuple[int, int, int]]:
    """Blocks, answers and blocks of the engine's own of the requests that notes make; the open ones last."""
    joining = Joining()
    done = joining.take(notes, 0.0) + joining.rest()
    return [(len(one.words), one.replies, one.served) for one in done]


ANSWER = m.Ids(1, 0, IDS[6:8], chain=True, position=6, parent=IDS[5].tobytes())


@pytest.mark.parametrize(("notes", "requests"), [
    ([shadowed(CHAIN, 6, ends=True, served=2)], [(6, 0, 2)]),
    ([shadowed(CHAIN, 4, ends=True)], [(6, 2, 0)]),
    ([shadowed(CHAIN, 6), shadowed(ANSWER, 0, begins=False)], [(8, 2, 0)]),
    ([shadowed(CHAIN, 6, ends=True), shadowed(ANSWER, 0, begins=False)], [(6, 0, 0), (2, 2, 0)]),
    ([shadowed(CHAIN, 6), shadowed(CHAIN, 6)], [(6, 0, 0), (6, 0, 0)]),
    ([shadowed(CHAIN, 6), shadowed(ANSWER, 2, begins=False, served=1)], [(8, 0, 1)]),
    ([shadowed(CHAIN, 6), shadowed(ANSWER, 0, begins=False, namespace=8)], [(6, 0, 0), (2, 2, 0)]),
    ([shadowed(CHAIN, 6), shadowed(ANSWER, 0, begins=False, session=2)], [(6, 0, 0), (2, 2, 0)]),
], ids=["whole", "with an answer", "in two parts", "ended before", "twice", "asked on", "namespaces", "sessions"])
def test_reported_requests_are_joined(notes: list[Noted], requests: list[tuple[int, int, int]]) -> None:
    """Parts are one request where the second goes on with the first, in its session and namespace, before its end;
    what was not asked for and lies at the end is the answer."""
    assert told(*notes) == requests


def test_a_reported_request_is_none_of_a_client_that_stores() -> None:
    """A session that stores and reports has two requests under way, and neither ends the other."""
    live = noted_of(acquire(CHAIN), 0.0)
    assert live is not None
    assert told(shadowed(CHAIN, 6), live, shadowed(ANSWER, 0, begins=False)) == [(8, 2, 0), (6, 0, 0)]


def test_a_request_that_nobody_goes_on_with_ends_without_another_call() -> None:
    """A recorder that hears nothing more hands the last request out all the same."""
    joining = Joining()
    assert joining.take([shadowed(CHAIN, 6)], 0.0) == []
    assert joining.is_open
    assert len(joining.take([], GROWS_S + 1)) == 1
    assert not joining.is_open
