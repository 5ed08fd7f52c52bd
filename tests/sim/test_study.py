"""Many replays at once, and what is made of their results."""

from __future__ import annotations

import csv
import io
import os
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from tierd.sim.command import sim
from tierd.sim.files import draw
from tierd.sim.plots import heat_map, hit_rates
from tierd.sim.replay import replay
from tierd.sim.report import as_csv
from tierd.sim.rows import Costs, Row, gap_closed
from tierd.sim.study import ReplayFailed, Task, play_all
from tierd.sim.workloads import make_trace

SVG = "{http://www.w3.org/2000/svg}"
CHATS = "chained-zipf(requests=150,prompts=20,most_prompt_blocks=8,most_turn_blocks=4)"


def row(policy: str, prefix_hits: int, capacity: int = 10) -> Row:
    moved = {"engine>host": 7}
    return Row("made up", policy, capacity, 100, prefix_hits, prefix_hits, 0, 0, 16, moved, {}, capacity)


def run_command(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(sim)
    return CliRunner().invoke(app, list(arguments))


def test_processes_count_what_one_counts() -> None:
    """Replays in processes give the results of the same replays one by one, in the order of the tasks, and tell of
    all accesses but a rest."""
    trace = make_trace(CHATS)
    tasks = [Task("lru", 30), Task("belady", 30), Task("lrfu", 60)]
    told: list[int] = []
    beside = play_all(trace, tasks, 2, told.append)
    alone = play_all(trace, tasks, 1)
    assert [one.prefix_hits.tolist() for one in beside] == [one.prefix_hits.tolist() for one in alone]
    assert 0 <= sum(told) <= 3 * trace.accesses


def test_an_error_of_a_process_arrives() -> None:
    """What a replay refuses in its process is told to the caller."""
    with pytest.raises(ReplayFailed, match="policy"):
        play_all(make_trace(CHATS), [Task("lru", 30), Task("nothing", 30)], 2)


def test_share_of_the_gap() -> None:
    """A policy half way between lru and the optimum has closed half of the gap at its capacity."""
    rows = [row("lru", 20), row("belady", 60), row("lrfu", 40), row("lrfu", 50, 20)]
    assert [gap_closed(one, rows) for one in rows] == [0.0, 1.0, 0.5, None]


def test_what_a_gib_saves() -> None:
    """64 blocks of 16 tokens of 1 MiB are a GiB: it saves the tokens of its hits, in seconds of prefill."""
    costs = Costs(kv_bytes_per_token=1 << 20, prefill_tokens_per_s=100.0)
    one = row("lru", 50, 64)
    assert costs.tokens_per_gib(one) == pytest.approx(50 * 16)
    assert costs.seconds_per_gib(one) == pytest.approx(8.0)


def test_blocks_stored_are_misses() -> None:
    """What came in from the engine is what was asked for and was not there, where all fits."""
    trace = make_trace(CHATS)
    one = replay(trace, "lru", 100)
    assert one.moved_blocks == {"engine>host": one.accesses - one.block_hits}


def test_csv_has_a_line_a_row() -> None:
    """A reader of CSV gets each row back, edges as columns."""
    rows = [row("lru", 20), row("lrfu(alpha=0.5,beta=1)", 40)]
    read = list(csv.DictReader(io.StringIO(as_csv(rows, Costs(kv_bytes_per_token=2)))))
    assert [(one["policy"], one["prefix_percent"]) for one in read] == [
        ("lru", "20.0"), ("lrfu(alpha=0.5,beta=1)", "40.0"),
    ]
    assert read[0]["bytes engine>host"] == str(7 * 16 * 2)


def test_a_plot_has_a_line_a_policy() -> None:
    """Each policy is a line through its capacities and a name, inside the picture."""
    drawn = ElementTree.fromstring(hit_rates([row("lru", 20), row("lru", 50, 99), row("belady<", 60)]))
    lines = list(drawn.iter(f"{SVG}polyline"))
    assert [len(one.attrib["points"].split()) for one in lines] == [2, 1]
    assert "belady<" in {one.text for one in drawn.iter(f"{SVG}text")}
    assert all(0 <= float(one.attrib["cx"]) <= float(drawn.attrib["width"]) for one in drawn.iter(f"{SVG}circle"))


def test_a_map_marks_its_greatest_value() -> None:
    """A heat map has a cell a pair, and the greatest value in bold."""
    picture = heat_map("t", "beta", ["0", "1"], "alpha", ["a"], [[1.0], [3.5]], [["1"], ["3.5"]])
    drawn = ElementTree.fromstring(picture)
    assert [one.text for one in drawn.iter(f"{SVG}text") if one.attrib["font-weight"] == "bold"] == ["t", "3.5"]
    assert len(list(drawn.iter(f"{SVG}rect"))) == 1 + 2


def test_a_png_shows_what_the_svg_does(tmp_path: Path) -> None:
    """A picture asked for as PNG has twice the pixels of the SVG, with lines and dots of the same colours there."""
    image = pytest.importorskip("PIL.Image", reason="Pillow, the extra plots, is not installed")
    drawn = hit_rates([row("lru", 20), row("lru", 50, 99), row("belady", 60), row("belady", 70, 99)])
    draw(tmp_path / "rates.png", drawn)
    root, picture = ElementTree.fromstring(drawn), image.open(tmp_path / "rates.png")
    assert picture.size == (2 * int(root.attrib["width"]), 2 * int(root.attrib["height"]))
    for dot in root.iter(f"{SVG}circle"):
        place = tuple(round(2 * float(dot.attrib[one])) for one in ("cx", "cy"))
        assert "#{:02x}{:02x}{:02x}".format(*picture.getpixel(place)) == dot.attrib["fill"]


def test_a_picture_that_cannot_be_drawn_is_refused_before_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another ending, PNG without Pillow and a missing folder end the command with status 2 and are named."""
    monkeypatch.setitem(sys.modules, "PIL", None)
    wrong = {"rates.gif": ".svg nor in .png", "rates.png": "tierd[plots]", "/nowhere/rates.svg": "no directory"}
    for name, problem in wrong.items():
        refused = run_command("nowhere.jsonl", "--plot", name)
        assert refused.exit_code == 2
        assert problem in refused.stderr


def test_files_are_written(tmp_path: Path) -> None:
    """--csv and --plot write files, and say so when they cannot."""
    table, plot = tmp_path / "rows.csv", tmp_path / "rates.svg"
    assert run_command(CHATS, "--jobs", "1", "--csv", str(table), "--plot", str(plot)).exit_code == 0
    assert len(table.read_text().splitlines()) == 7
    assert plot.read_text().startswith("<svg")
    refused = run_command(CHATS, "--jobs", "1", "--csv", str(tmp_path))
    assert refused.exit_code == 2
    assert str(tmp_path) in refused.stderr


def test_an_interrupt_while_processes_start_ends_all_of_them() -> None:
    """Ctrl-C at a terminal, which all processes get, ends `tierd sim` while its replays are only starting: with the
    status of an interrupt, without a traceback, and nothing goes on."""
    words = ["sim", "chat", "--policy", "lru", "--policy", "lrfu", "--capacity", "5%,10%", "--jobs", "2"]
    command = subprocess.Popen(
        [sys.executable, "-m", "tierd.cli", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )
    while command.poll() is None and len(_spawned_by(command.pid)) < 2:
        threading.Event().wait(0.01)
    started = _spawned_by(command.pid)
    os.killpg(command.pid, signal.SIGINT)
    said, _ = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in said
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]


def _spawned_by(pid: int) -> list[int]:
    """Processes of a pool that this process has started."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return [int(one) for one in children if b"spawn_main" in Path(f"/proc/{one}/cmdline").read_bytes()]
    except OSError:
        return []
