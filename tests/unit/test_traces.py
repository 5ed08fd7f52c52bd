"""Reading of trace files: both formats, and errors that name what is wrong."""

from __future__ import annotations

import json
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tierd.core.errors import InvalidInput
from tierd.sim.attention_trace import read_attention
from tierd.sim.traces import identities_of, read_arrivals, read_trace, with_arrivals


def lines_file(folder: Path, *requests: Any) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join(r + "\n" if isinstance(r, str) else json.dumps(r) + "\n" for r in requests))
    return path


def packed_file(folder: Path, **changes: Any) -> Path:
    arrays: dict[str, Any] = {
        "run_start": np.array([10, 40, 10], np.int32), "run_len": np.array([3, 1, 2], np.int32),
        "run_off": np.array([0, 2, 3], np.int32), "ts": np.array([0.5, 1.5]),
    }
    arrays.update(changes)
    path = folder / "trace.npz"
    with path.open("wb") as file:
        np.savez(file, **{name: value for name, value in arrays.items() if value is not None})
    return path


def test_json_lines_give_blocks_in_prefix_order(tmp_path: Path) -> None:
    """Requests keep their order and length, ids are numbered densely, times are seconds."""
    path = lines_file(
        tmp_path, {"timestamp": 0, "hash_ids": [7, 900, 8], "input_length": 3}, "",
        {"timestamp": 2500, "hash_ids": [7]},
    )
    trace = read_trace(path)
    assert (trace.name, trace.requests, trace.accesses, trace.distinct) == ("trace.jsonl", 2, 4, 3)
    assert trace.request(0).tolist() == [0, 2, 1]
    assert trace.request(1).tolist() == [0]
    assert trace.times_s.tolist() == [0.0, 2.5]


@pytest.mark.parametrize(
    ("tokens", "blocks", "block_tokens"),
    [([1000, 1024], [2, 2], 512), ([9, 33], [1, 3], 16), ([None, "x"], [1, 1], 16)],
)
def test_lines_say_what_a_block_is(
    tmp_path: Path, tokens: list[Any], blocks: list[int], block_tokens: int
) -> None:
    """The power of two that the longest requests fill is the tokens of a block; 16 where nothing is said."""
    said = zip(tokens, blocks, strict=True)
    lines = [{"timestamp": 0, "hash_ids": list(range(n)), "input_length": t} for t, n in said]
    assert read_trace(lines_file(tmp_path, *lines)).block_tokens == block_tokens


def test_times_of_chats_are_seconds(tmp_path: Path) -> None:
    """Lines that name a chat count time in seconds, others in milliseconds."""
    lines = [{"timestamp": 2.5, "hash_ids": [1], "chat_id": 7}, {"timestamp": 4, "hash_ids": [1], "chat_id": 7}]
    assert read_trace(lines_file(tmp_path, *lines)).times_s.tolist() == [2.5, 4.0]


def test_arrivals_replace_times(tmp_path: Path) -> None:
    """Requests come when the rows of the CSV say, over and over when there are more requests than rows."""
    arrivals = tmp_path / "arrivals.csv"
    arrivals.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:04.0000000,1,2\n"
        "2023-11-16 18:17:03.5000000,3,4\n"
    )
    trace = with_arrivals(read_trace(lines_file(tmp_path, *[{"timestamp": 0, "hash_ids": [1]}] * 3)), arrivals)
    assert trace.times_s.tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("text", ["", "A,B\n1,2\n", "TIMESTAMP\nyesterday\n", "TIMESTAMP\n"])
def test_bad_arrivals_are_refused(tmp_path: Path, text: str) -> None:
    """A file without a column of times is refused by name."""
    (tmp_path / "arrivals.csv").write_text(text)
    with pytest.raises(InvalidInput, match=r"arrivals\.csv"):
        read_arrivals(tmp_path / "arrivals.csv")


def test_packed_runs_are_unfolded(tmp_path: Path) -> None:
    """A request of a packed file is the concatenation of its ranges."""
    trace = read_trace(packed_file(tmp_path))
    assert trace.request(0).tolist() == [0, 1, 2, 3]
    assert trace.request(1).tolist() == [0, 1]
    assert trace.times_s.tolist() == [0.5, 1.5]


def test_packed_request_without_runs_is_empty(tmp_path: Path) -> None:
    """A request of no block keeps its place."""
    trace = read_trace(packed_file(tmp_path, run_off=np.array([0, 0, 3]), ts=np.array([0.0, 1.0])))
    assert [len(trace.request(i)) for i in range(2)] == [0, 6]


def test_format_is_told_by_content(tmp_path: Path) -> None:
    """The name of a file says nothing about its format."""
    path = packed_file(tmp_path).rename(tmp_path / "trace.jsonl")
    assert read_trace(path).accesses == 6


def test_time_never_runs_back(tmp_path: Path) -> None:
    """A timestamp before its predecessor's is read as the predecessor's."""
    requests = [{"timestamp": t, "hash_ids": [1]} for t in (3000, 1000, 4000)]
    assert read_trace(lines_file(tmp_path, *requests)).times_s.tolist() == [3.0, 3.0, 4.0]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("{", ":2"),
        ("[]", ":2"),
        ("[" * 100_000, ":2"),
        ('{"hash_ids": [1]}', ":2: timestamp"),
        ('{"timestamp": true, "hash_ids": [1]}', ":2: timestamp"),
        ('{"timestamp": NaN, "hash_ids": [1]}', ":2: timestamp"),
        ('{"timestamp": 1e12, "chat_id": 1, "hash_ids": [1]}', ":2: timestamp"),
        ('{"timestamp": 1}', ":2: hash_ids"),
        ('{"timestamp": 1, "hash_ids": [1], "reply_blocks": 2}', ":2: reply_blocks"),
        ('{"timestamp": 1, "hash_ids": [1], "reply_blocks": -1}', ":2: reply_blocks"),
        ('{"timestamp": 1, "hash_ids": [1], "reply_blocks": true}', ":2: reply_blocks"),
        ('{"timestamp": 1, "hash_ids": [1], "reply_blocks": "all"}', ":2: reply_blocks"),
        ('{"timestamp": 1, "hash_ids": 5}', ":2: hash_ids"),
        ('{"timestamp": 1, "hash_ids": [1, 2.5]}', ":2: hash_ids"),
        ('{"timestamp": 1, "hash_ids": [true]}', ":2: hash_ids"),
        ('{"timestamp": 1, "hash_ids": [9223372036854775808]}', ":2: hash_ids"),
    ],
)
def test_bad_line_is_named(tmp_path: Path, line: str, field: str) -> None:
    """An error in a line names the file, the line and the field."""
    path = lines_file(tmp_path, {"timestamp": 0, "hash_ids": [1]}, line)
    with pytest.raises(InvalidInput) as caught:
        read_trace(path)
    assert caught.value.field == f"{path}{field}"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"run_start": None}, "run_start"),
        ({"run_len": np.array([1, -1, 2])}, "run_len"),
        ({"run_len": np.array([1, 2])}, "run_len"),
        ({"run_len": np.array([1.0, 2.0, 3.0])}, "run_len"),
        ({"run_len": np.array([1, 1 << 62, 1 << 62])}, "run_len"),
        ({"run_start": np.array([0, (1 << 63) - 1, 0])}, "run_start"),
        ({"run_start": np.array([0, 1 << 63, 0], np.uint64)}, "run_start"),
        ({"run_off": np.array([], np.int64)}, "run_off"),
        ({"run_off": np.array([0, 2, 4])}, "run_off"),
        ({"run_off": np.array([0, 3, 2])}, "run_off"),
        ({"ts": np.array([0.0])}, "ts"),
        ({"ts": np.array([0.0, np.nan])}, "ts"),
        ({"ts": np.array([0.0, 1e12])}, "ts"),
        ({"ts": np.zeros((2, 1))}, "ts"),
        ({"bt": np.array([16, 16])}, "bt"),
        ({"bt": np.array(0)}, "bt"),
    ],
)
def test_bad_array_is_named(tmp_path: Path, changes: dict[str, Any], field: str) -> None:
    """An error in a packed file names the file and the array."""
    path = packed_file(tmp_path, **changes)
    with pytest.raises(InvalidInput) as caught:
        read_trace(path)
    assert caught.value.field == f"{path}: {field}"


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    """A file that is missing, empty, cut or pickled is refused by name."""
    torn = tmp_path / "torn.npz"
    torn.write_bytes(packed_file(tmp_path).read_bytes()[:200])
    empty = lines_file(tmp_path)
    pickled = packed_file(tmp_path, ts=np.array([{}, {}], dtype=object))
    for path in (tmp_path / "absent", torn, empty, pickled):
        with pytest.raises(InvalidInput, match=str(path)):
            read_trace(path)


@pytest.mark.parametrize("read", [read_trace, read_attention])
def test_damaged_files_are_refused(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    """Whatever is wrong with bytes of an npz, it is refused by name or read, and no other error comes."""
    draw, path = random.Random(3), tmp_path / "damaged.npz"
    arrays = {"run_start": np.arange(9), "run_len": np.ones(9, int), "run_off": np.arange(10), "ts": np.arange(9.0)}
    with path.open("wb") as file:
        np.savez_compressed(file, weights=np.full((2, 1, 2, 64), 1 / 64, np.float16), **arrays)
    whole, refused = path.read_bytes(), 0
    for _ in range(400):
        bad = bytearray(whole)
        bad[draw.randrange(len(bad))] = draw.randrange(256)
        path.write_bytes(bad)
        try:
            read(path)
        except InvalidInput as error:
            refused += 1
            assert str(path) in error.field
    assert refused > 40


@pytest.mark.parametrize("read", [read_trace, read_attention])
def test_archives_of_other_things_are_refused(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    """An archive whose entries are no arrays is refused by name."""
    path = tmp_path / "texts.npz"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("run_start", "run_len.npy", "run_off", "ts", "weights.npy"):
            archive.writestr(name, "text")
    with pytest.raises(InvalidInput, match=r"texts\.npz"):
        read(path)


def test_identities_are_distinct_and_stable() -> None:
    """Every block of a trace has its own identity, the same in every run."""
    few, many = identities_of(3), identities_of(50_000)
    assert np.array_equal(few, many[:3])
    assert len(np.unique(many.view("<u8").reshape(-1, 4)[:, 0])) == 50_000
    # First output of splitmix64 seeded with 0, from its published reference code.
    assert few[0, :8].view("<u8")[0] == 0xE220A8397B1DCDAF
