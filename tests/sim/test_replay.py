"""Replay of traces through the engine, and the command that does it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from tierd.core.errors import InvalidInput
from tierd.sim.belady import next_uses, replay_optimum
from tierd.sim.command import sim
from tierd.sim.replay import parse_capacities, replay
from tierd.sim.traces import Trace, build_trace
from tierd.sim.workloads import make_trace

LRU, DECAYED = "lru(leaf_only=false)", "lrfu(ranking=decayed,lambda=0.2,leaf_only=false"


def trace_of(*requests: list[int]) -> Trace:
    ids = np.array([block for request in requests for block in request], np.int64)
    lengths = np.array([len(request) for request in requests], np.int64)
    return build_trace("made up", ids, lengths, np.arange(len(requests), dtype=np.float64))


def letters(text: str) -> Trace:
    """One request of one block per letter."""
    return trace_of(*[[ord(letter)] for letter in text])


def chat(seed: int, requests: int) -> Trace:
    """Turns of a few conversations: each request repeats its conversation's blocks and adds some."""
    draw = random.Random(seed)
    talks: list[list[int]] = [[] for _ in range(8)]
    made = []
    for number in range(requests):
        talk = draw.choice(talks)
        talk += [1000 * number + place for place in range(draw.randint(1, 4))]
        made.append(list(talk))
        if len(talk) > 20:
            talk.clear()
    return trace_of(*made)


def test_lru_of_single_blocks_is_textbook_lru() -> None:
    """ABCBACA through two slots of LRU hits B once and A once, and evicts A, C and B."""
    row = replay(letters("ABCBACA"), LRU, 2)
    assert (row.accesses, row.block_hits, row.prefix_hits, row.evictions) == (7, 2, 2, 3)


@pytest.mark.parametrize(
    ("text", "persist", "hits"),
    [("ABCBACA", False, 1), ("ABCBACA", True, 2), ("ABACBCA", False, 2), ("ABACBCA", True, 1)],
)
def test_persistence_helps_one_sequence_and_hurts_another(text: str, persist: bool, hits: int) -> None:
    """Records that survive eviction turn 1 hit into 2 on one sequence, and 2 into 1 on the other."""
    spec = f"{DECAYED},persist={str(persist).lower()},ghost_factor=inf)"
    assert replay(letters(text), spec, 2).block_hits == hits


def test_a_request_is_looked_up_before_room_is_made() -> None:
    """Blocks of the request in hand are pinned: making room for its tail never takes its head."""
    row = replay(trace_of([1, 2], [3], [1, 2, 4]), LRU, 3)
    assert (row.block_hits, row.prefix_hits) == (2, 2)


def test_of_a_request_that_is_too_large_the_head_is_kept() -> None:
    """Of five blocks the leading three are stored in three slots, and hit the next time."""
    row = replay(trace_of([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]), LRU, 3)
    assert (row.block_hits, row.prefix_hits, row.evictions) == (3, 3, 0)


def test_prefix_hits_end_at_the_first_hole() -> None:
    """A resident block behind a missing one is a block hit and no prefix hit."""
    row = replay(trace_of([1, 2], [2], [3], [1, 2]), LRU, 2)
    assert (row.block_hits, row.prefix_hits) == (2, 1)


def test_an_empty_request_changes_nothing() -> None:
    """A request without a block is neither access nor tick."""
    full, holey = replay(letters("ABCA"), LRU, 2), replay(trace_of([65], [], [66], [], [67], [65]), LRU, 2)
    assert (full.block_hits, full.evictions) == (holey.block_hits, holey.evictions)


@pytest.mark.parametrize("seed", range(3))
def test_leaves_first_costs_lru_nothing(seed: int) -> None:
    """On chains, LRU chooses the same victims with and without the rule that children go first."""
    trace = chat(seed, 120)
    free, leaves = replay(trace, LRU, 60), replay(trace, "lru", 60)
    assert (free.block_hits, free.evictions) == (leaves.block_hits, leaves.evictions)
    assert leaves.block_hits == leaves.prefix_hits


@pytest.mark.parametrize("capacity", [5, 20, 60])
def test_nothing_beats_the_optimum(capacity: int) -> None:
    """No policy hits more than belady, whose block hits are prefix hits."""
    for seed in range(2):
        trace = chat(seed, 80)
        best = replay(trace, "belady", capacity)
        assert best.block_hits == best.prefix_hits
        for policy in ("lru", "lrfu", "lrfu(ranking=composite)", LRU):
            assert replay(trace, policy, capacity).block_hits <= best.block_hits


@pytest.mark.parametrize("capacity", [40, 400])
def test_the_optimum_of_a_trace_with_answers(capacity: int) -> None:
    """Where requests end with answers that are stored and not asked for, no policy hits more than belady either."""
    trace = make_trace("multi-turn(sessions=6,turns=40,most_context_tokens=1040)")
    best, lru = replay(trace, "belady", capacity), replay(trace, "lru", capacity)
    assert 0 < lru.block_hits <= best.block_hits <= best.accesses


def test_optimum_of_a_textbook_sequence() -> None:
    """Three slots, the reference string of Belady's own examples with bypass: 7 hits of 20."""
    text = "70120304230321201701"
    played = replay_optimum(letters(text), 3)
    assert played.block_hits.sum() == played.prefix_hits.sum() == brute_optimum(text, 3)


def brute_optimum(text: str, capacity: int) -> int:
    """Most hits of any sequence of choices, by trying all of them."""
    states: dict[frozenset[str], int] = {frozenset(): 0}
    for letter in text:
        after: dict[frozenset[str], int] = {}
        for held, hits in states.items():
            now = hits + (letter in held)
            choices = [held, *([held | {letter}] if len(held | {letter}) <= capacity else [])]
            choices += [held - {gone} | {letter} for gone in held]
            for choice in choices:
                after[choice] = max(after.get(choice, 0), now)
        states = after
    return max(states.values())


@pytest.mark.parametrize("seed", range(5))
def test_optimum_is_optimal(seed: int) -> None:
    """On random single-block requests the optimum hits as often as the best of all possible choices."""
    text = "".join(random.Random(seed).choices("abcdefg", k=30))
    assert replay_optimum(letters(text), 3).block_hits.sum() == brute_optimum(text, 3)


def test_next_uses_name_the_next_request() -> None:
    """Each access knows which request uses its block next; the number of requests stands for none."""
    assert next_uses(trace_of([1, 2], [3], [2, 1])).tolist() == [2, 2, 3, 3, 3]


@pytest.mark.parametrize(
    ("text", "blocks"), [("7", [7]), ("5%, 10%,3", [10, 20, 3]), ("0.7%", [1]), ("33.3%", [66]), ("100%", [200])]
)
def test_capacities(text: str, blocks: list[int]) -> None:
    """Capacities are blocks, or percent of the distinct blocks rounded down."""
    assert parse_capacities(text, 200) == blocks


@pytest.mark.parametrize("text", ["", "x", "5%,", "0", "-3", "0.1%", "1.5", "%", "1/0%", "inf%", "1e9%", "9" * 15])
def test_bad_capacities_are_refused(text: str) -> None:
    """What is no capacity of at least one block is refused, naming the option."""
    with pytest.raises(InvalidInput) as caught:
        parse_capacities(text, 200)
    assert caught.value.field == "--capacity"


def test_progress_adds_up() -> None:
    """Over a replay, the work told is the accesses of the trace."""
    for policy in ("lru", "belady"):
        told: list[int] = []
        trace = chat(2, 30)
        replay(trace, policy, 10, told.append)
        assert sum(told) == trace.accesses


def run_command(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(sim)
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def trace_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.jsonl"
    requests: list[dict[str, Any]] = [
        {"timestamp": 10 * n, "hash_ids": [0, n % 3 + 1, 10 + n]} for n in range(20)
    ]
    path.write_text("\n".join(map(json.dumps, requests)))
    return path


def test_json_is_alone_on_stdout(trace_file: Path) -> None:
    """--json prints an array of rows with exactly the promised fields, and nothing else."""
    result = run_command(str(trace_file), "--policy", "lru", "--policy", "belady", "--capacity", "6,50%", "--json")
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [(row["policy"], row["capacity_blocks"]) for row in rows] == [
        ("lru", 6), ("lru", 12), ("belady", 6), ("belady", 12),
    ]
    assert list(rows[0]) == [
        "trace", "policy", "capacity_blocks", "accesses", "block_hits", "prefix_hits", "evictions",
        "self_evictions", "block_percent", "prefix_percent", "gap_closed", "tokens_saved_per_gib",
        "seconds_saved_per_gib", "tiers", "moved_bytes",
    ]
    assert rows[0]["trace"] == "small.jsonl"
    assert rows[0]["accesses"] == 60


def test_table_names_policies_and_rates(trace_file: Path) -> None:
    """Without --json a person reads policy, capacity and hit rates."""
    result = run_command(str(trace_file), "--policy", "lru", "--capacity", "6")
    assert result.exit_code == 0
    assert "lru" in result.stdout
    assert "prefix hits" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--capacity", "nine"], "--capacity"), (["--policy", "lfru"], "lfru"),
        (["--policy", "lrfu(beta=1)"], "policy.beta"), (["--warm-up", "100%"], "--warm-up"),
        (["--policy", "lrfu", "--unpinned"], "--unpinned"), (["--arrivals", "nowhere.csv"], "nowhere.csv"),
        (["--hbm", "x"], "'x'"), (["--setting", "colour=1"], "colour"),
        (["--setting", "spill_high"], "spill_high"),
        (["--setting", "spill_high=much"], "spill_high"), (["--setting", "spill_low=nan"], "spill_low"),
        (["--setting", "spill_high=0.5", "--setting", "spill_high=0.6"], "spill_high"), (["--hbm", "5,6"], "--hbm"),
        (["--setting", "max_moves=0"], "max_moves"), (["--policy", "lru", "--unpinned", "--spill", "5"], "tier"),
        (["--setting", "spill_low=0.9", "--setting", "spill_high=0.5"], "spill_low"),
        (["--setting", "spill_write=sometimes", "--spill", "5"], "spill_write"),
    ],
)
def test_bad_options_are_named(trace_file: Path, arguments: list[str], named: str) -> None:
    """A wrong option ends the command with status 2 and a message that names it, before any replay."""
    result = run_command(str(trace_file), *arguments)
    assert result.exit_code == 2
    assert named in result.stderr
    assert result.stdout == ""


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A file that is not there is named."""
    result = run_command(str(tmp_path / "nowhere.npz"))
    assert result.exit_code == 2
    assert "nowhere.npz" in result.stderr


def test_a_workload_stands_for_a_file() -> None:
    """A workload is replayed like a file; what comes before the end of the warm-up is not counted."""
    arguments = ["multi-turn(sessions=2,turns=10)", "--policy", "lru", "--capacity", "50%", "--json"]
    whole = json.loads(run_command(*arguments).stdout)[0]
    half = json.loads(run_command(*arguments, "--warm-up", "50%").stdout)[0]
    assert 0 < half["accesses"] < whole["accesses"]
    assert half["evictions"] == whole["evictions"]


def test_without_pinning_a_request_pushes_out_its_own(trace_file: Path) -> None:
    """--unpinned lets requests evict their own blocks, which the engine never does."""
    arguments = [str(trace_file), "--policy", "lru", "--capacity", "2", "--json"]
    assert json.loads(run_command(*arguments).stdout)[0]["self_evictions"] == 0
    assert json.loads(run_command(*arguments, "--unpinned").stdout)[0]["self_evictions"] > 0
