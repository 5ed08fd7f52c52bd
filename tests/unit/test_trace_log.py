"""The recorded trace on disk: its lines, its bounds, and what its numbers do not tell."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import numpy as np
import pytest

from tierd.adapters.trace_log import NAME, OLD_NAME, TraceLog, numbers_of
from tierd.app.recorder import Request
from tierd.sim.traces import read_trace

MIB = 1 << 20


def request(at_s: float, *words: int) -> Request:
    return Request(at_s, at_s, 16, dict.fromkeys(words))


def test_numbers_are_siphash() -> None:
    """The number of a block is the published test vector of SipHash-2-4 for a message of 8 bytes, to 63 bits."""
    message = np.frombuffer(bytes(range(8)), "<u8")
    assert numbers_of(message, bytes(range(16))).tolist() == [0x93F5F5799A932462 & ((1 << 63) - 1)]


def test_what_is_written_is_a_trace(tmp_path: Path) -> None:
    """The simulator reads the log: requests in order, shared prefixes shared, times from the first request on."""
    log = TraceLog(tmp_path / "new", MIB)
    log.write([request(100.0, 1, 2, 3), request(101.5, 1, 2, 4)])
    log.write([request(102.0, 1)])
    trace = read_trace(tmp_path / "new" / NAME)
    assert trace.times_s.tolist() == [0.0, 1.5, 2.0]
    assert (trace.requests, trace.distinct, trace.block_tokens) == (3, 4, 16)
    assert trace.request(0)[:2].tolist() == trace.request(1)[:2].tolist()


def test_identities_are_not_in_the_log(tmp_path: Path) -> None:
    """Numbers differ from the identities that they stand for, and from run to run."""
    told = []
    for run in ("a", "b"):
        TraceLog(tmp_path / run, MIB).write([request(0.0, 7, 8)])
        told.append(json.loads((tmp_path / run / NAME).read_text())["hash_ids"])
    assert not set(told[0]) & set(told[1])
    assert not {7, 8} & set(told[0])


def test_files_are_bounded(tmp_path: Path) -> None:
    """However much is recorded, two files remain that are no larger than was said, with the newest requests."""
    most = MIB
    log = TraceLog(tmp_path, most)
    for number in range(60):
        log.write([request(float(number), *range(1000 * number, 1000 * number + 2000))])
        assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= most
    assert {path.name for path in tmp_path.iterdir()} == {NAME, OLD_NAME}
    assert json.loads((tmp_path / NAME).read_text().splitlines()[-1])["timestamp"] == 59_000


def test_a_new_run_begins_a_new_file(tmp_path: Path) -> None:
    """Numbers of two runs, which mean different blocks, never stand in one file."""
    TraceLog(tmp_path, MIB).write([request(0.0, 1)])
    TraceLog(tmp_path, MIB).write([request(0.0, 1), request(1.0, 1)])
    assert len((tmp_path / NAME).read_text().splitlines()) == 2
    assert len((tmp_path / OLD_NAME).read_text().splitlines()) == 1


def test_a_request_larger_than_a_file_is_left_out(tmp_path: Path) -> None:
    """What fits into no file is not written, and what comes after it is."""
    log = TraceLog(tmp_path, 2000)
    log.write([request(0.0, *range(500)), request(1.0, 1)])
    assert read_trace(tmp_path / NAME).accesses == 1


def test_requests_larger_than_a_file_turn_none(tmp_path: Path) -> None:
    """What fits into no file does not push out what was written."""
    trace_log = TraceLog(tmp_path, 2000)
    trace_log.write([request(0.0, 1)])
    for at_s in (1.0, 2.0):
        trace_log.write([request(at_s, *range(500)), request(at_s, 2)])
    assert read_trace(tmp_path / NAME).requests == 3


def test_a_full_disk_leaves_whole_lines(tmp_path: Path) -> None:
    """What was written before a disk was full can be read, and nothing of the line that did not fit is there."""
    trace_log = TraceLog(tmp_path, MIB)
    trace_log.write([request(0.0, *range(200))])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / NAME).stat().st_size + 10_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            trace_log.write([request(float(at), *range(200)) for at in range(1, 9)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert 1 <= read_trace(tmp_path / NAME).requests < 9


@pytest.mark.parametrize("torn_bytes", [1, 200_000])
def test_a_kill_in_a_line_leaves_a_trace(tmp_path: Path, torn_bytes: int) -> None:
    """A line that a killed daemon had begun is gone after the next start, and those before it are there."""
    TraceLog(tmp_path, MIB).write([request(0.0, 1), request(1.0, 2)])
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"{" * torn_bytes)
    TraceLog(tmp_path, MIB)
    assert read_trace(tmp_path / OLD_NAME).requests == 2


def test_a_smaller_limit_holds_for_what_lay_there(tmp_path: Path) -> None:
    """Two files are no larger than the limit of this start, whatever that of the one before was."""
    TraceLog(tmp_path, MIB).write([request(float(at), *range(50)) for at in range(20)])
    TraceLog(tmp_path, 2000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 2000


def test_files_are_the_owners_alone(tmp_path: Path) -> None:
    """Nobody else reads when which blocks were asked for."""
    TraceLog(tmp_path / "new", MIB).write([request(0.0, 1)])
    assert (tmp_path / "new" / NAME).stat().st_mode & 0o077 == 0
    assert (tmp_path / "new").stat().st_mode & 0o077 == 0


def test_answers_are_told_apart(tmp_path: Path) -> None:
    """Of a request whose last blocks were not asked for the trace says how many; of others it says nothing of
    it."""
    log = TraceLog(tmp_path / "new", MIB)
    answered = request(1.0, 1, 2, 3)
    answered.replies = 2
    log.write([request(0.0, 1, 2), answered])
    first, second = [json.loads(line) for line in (tmp_path / "new" / NAME).read_text().splitlines()]
    assert "reply_blocks" not in first and second["reply_blocks"] == 2
    assert read_trace(tmp_path / "new" / NAME).asked.tolist() == [2, 1]
