"""What is said of peers follows from what was measured: arithmetic, verification, verdicts, the report."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from peer_adapter import Adapter, Block
from peer_driver import Peer, PeerFailed
from peer_figures import Figure, Times, Verdict, Work, figure_of, percentile, promised, size_text, verdicts
from peer_plot import plot
from peer_report import report
from peer_results import Result
from peer_runner import Clocks, Runner
from peer_subjects import LIMIT, OURS, PEERS, Subject

HERE = Path(__file__).parent
GET, PUT, BATCH = Work("get", 131072, 1), Work("put", 131072, 1), Work("get", 131072, 16)
QUEUE, LOOKUP = Work("queue", 131072, 1), Work("lookup", 0, 1024)
MACHINE = {
    "cpu": "Some CPU", "cores": 2, "memory_bytes": 24 << 30, "kernel": "6.1", "python": "3.11.7", "load": 0.1,
    "date": "2026-11-30 04:00 UTC",
}


def figure(work: Work, p50_us: float, **more: Any) -> Figure:
    return Figure(work, p50_us * 0.9, p50_us, 40, 0.2, 0.1, **more)


def result(**more: Any) -> Result:
    """tierd is faster at get and at queued puts, slower at puts that wait and at lookup."""
    figures = {
        "redis": [figure(GET, 200.0), figure(PUT, 50.0), figure(BATCH, 3000.0), figure(LOOKUP, 400.0)],
        OURS.name: [figure(GET, 40.0), figure(PUT, 100.0), figure(QUEUE, 32.0), figure(BATCH, 600.0),
                    figure(LOOKUP, 800.0)],
        LIMIT.name: [figure(GET, 20.0), figure(PUT, 25.0), figure(BATCH, 320.0)],
    }
    return Result("redis", MACHINE, 71.0, {"redis": "redis 8.1.0", OURS.name: "0.1.0"}, figures, **more)


class Careless(Adapter):
    """Keeps blocks in a dictionary; gives other bytes than were put for the first `spoilt` gets, and forgets `lost`
    ids."""

    def __init__(self, spoilt: int = 0, lost: int = 0) -> None:
        self._of: dict[str, Block] = {}
        self._spoilt, self._lost = spoilt, lost

    def put(self, ids: Sequence[str], blocks: Sequence[Block]) -> None:
        for key, block in zip(ids, blocks, strict=True):
            self._of[key] = block.copy()

    def get_into(self, ids: Sequence[str], blocks: Sequence[Block]) -> bool:
        if self._lost:
            self._lost -= 1
            return False
        for key, block in zip(ids, blocks, strict=True):
            np.copyto(block, self._of[key])
            if self._spoilt:
                self._spoilt -= 1
                block[-1] ^= 1
        return True

    def exists(self, ids: Sequence[str]) -> int:
        return sum(key in self._of for key in ids)

    def clear(self) -> None:
        self._of.clear()


class Hasty(Careless):
    """Stores what was queued when it is flushed, but for the first call."""

    can_queue = True

    def __init__(self) -> None:
        super().__init__()
        self._waiting: list[tuple[Sequence[str], Sequence[Block]]] = []

    def queue(self, ids: Sequence[str], blocks: Sequence[Block]) -> None:
        self._waiting.append((ids, [block.copy() for block in blocks]))

    def flush(self) -> None:
        for ids, blocks in self._waiting[1:]:
            self.put(ids, blocks)

    def get_into(self, ids: Sequence[str], blocks: Sequence[Block]) -> bool:
        return all(key in self._of for key in ids) and super().get_into(ids, blocks)


@pytest.mark.parametrize(("share", "expected"), [(0.1, 1.0), (0.5, 5.0), (0.55, 6.0), (1.0, 10.0), (0.0, 1.0)])
def test_percentile_is_a_sample(share: float, expected: float) -> None:
    """A percentile is the smallest sample that a share of them does not exceed, in whatever order they come."""
    assert percentile([float(one) for one in (7, 3, 10, 1, 5, 2, 9, 8, 6, 4)], share) == expected


def test_a_figure_is_of_all_rounds() -> None:
    """Medians are over the calls of all rounds, CPU seconds over the bytes of all rounds."""
    rounds: list[Times] = [
        {"seconds": [1e-6, 2e-6], "blocks": 1000, "client_cpu_s": 0.5, "server_cpu_s": 0.0},
        {"seconds": [9e-6], "blocks": 1000, "client_cpu_s": 0.5, "server_cpu_s": 1.0},
    ]
    made = figure_of(Work("get", 500_000, 1), rounds, wrong=3)
    assert [made.p50_us, made.p10_us] == pytest.approx([2.0, 1.0])
    assert [made.client_cpu_s_per_gb, made.server_cpu_s_per_gb] == pytest.approx([1.0, 1.0])
    assert (made.calls, made.wrong) == (3, 3)


def test_a_lookup_moves_no_bytes() -> None:
    """CPU seconds per GB of a lookup are none, not a division by zero."""
    made = figure_of(LOOKUP, [{"seconds": [1e-3], "blocks": 1024, "client_cpu_s": 0.5, "server_cpu_s": 0.5}])
    assert (made.client_cpu_s_per_gb, made.server_cpu_s_per_gb) == (0.0, 0.0)


def test_a_verdict_is_theirs_over_ours() -> None:
    """Above 1 tierd is faster; equal is not faster."""
    assert Verdict(GET, 40.0, 200.0).ratio == 5.0
    assert Verdict(GET, 40.0, 200.0).is_faster
    assert not Verdict(GET, 40.0, 40.0).is_faster


def test_verdicts_are_on_what_is_promised() -> None:
    """Batches are reported and not judged; what the peer did wrongly or not at all is no verdict. What tierd did
    wrongly is lost."""
    assert set(result().verdicts) == {GET, PUT, QUEUE, LOOKUP}
    ours = {GET: figure(GET, 40.0)}
    assert not verdicts(ours, {GET: figure(GET, 10.0, wrong=1)})
    assert not verdicts(ours, {PUT: figure(PUT, 10.0)})
    assert not verdicts(ours, {GET: figure_of(GET, [], missed=9)})
    assert not verdicts({GET: figure(GET, 1.0, wrong=1)}, {GET: figure(GET, 10.0)})[GET].is_faster


def test_what_is_promised() -> None:
    """Single blocks of four sizes both ways, and lookups of two sizes."""
    assert [work.label for work in promised()] == [
        "get 128 KiB", "get 640 KiB", "get 2 MiB", "get 5 MiB",
        "put 128 KiB", "put 640 KiB", "put 2 MiB", "put 5 MiB",
        "lookup of 1,024 ids", "lookup of 8,192 ids",
    ]
    assert size_text(640 << 10) == "640 KiB"


def test_a_result_is_kept_whole(tmp_path: Path) -> None:
    """What is read back from the file of a result is that result; None for a peer that was never measured."""
    result().keep(tmp_path)
    assert Result.kept(tmp_path, "redis") == result()
    assert Result.kept(tmp_path, "ray") is None


def test_report_is_as_agreed() -> None:
    """The report of two small results is, word for word, the one that is kept beside this test."""
    failed = Result("ray", MACHINE, 1.0, error="ray, start: RuntimeError: no room")
    expected = (HERE / "expected_report.md").read_text()
    assert report([result(), failed], "docs/peers.svg") == expected


def test_losses_are_shown() -> None:
    """The first words of the verdict count what tierd lost, and each loss is listed with both times."""
    text = report([result()], "docs/peers.svg")
    assert "**not on 2 of 3, listed below.**" in text
    assert "**not on 1 of 3, listed below.**" in text
    assert "| Valkey by redis-py | put 128 KiB | 50 | 100 |" in text
    won = Result("redis", MACHINE, 1.0, {}, {"redis": [figure(GET, 9.0)], OURS.name: [figure(GET, 3.0)]})
    assert "**yes, on all 1.**" in report([won], "docs/peers.svg")


def test_wrong_bytes_are_shown() -> None:
    """A peer that gave other bytes than were put is named with how many."""
    figures = {"redis": [figure(GET, 9.0, wrong=7)], OURS.name: [figure(GET, 3.0)]}
    spoilt = Result("redis", MACHINE, 1.0, {}, figures)
    assert "* redis, get 128 KiB: 7 wrong, 0 calls" in report([spoilt], "docs/peers.svg")


def test_plot_has_a_bar_for_each() -> None:
    """The plot is XML with tierd's and the peer's bar for each verb, longer for who is slower."""
    drawn = ElementTree.fromstring(plot([result()]))
    bars = [one for one in drawn.iter("{http://www.w3.org/2000/svg}rect") if one.get("height") == "13"]
    assert len(bars) == 4
    ours, theirs = (float(bars[at].attrib["width"]) for at in (0, 1))
    assert theirs > ours


def test_wrong_blocks_and_misses_are_counted() -> None:
    """A round counts blocks that are not what was put, and calls that found nothing, and no others."""
    for spoilt, lost in ((0, 0), (2, 0), (0, 1)):
        runner = Runner(Careless(spoilt, lost), Path())
        runner.use(512, 8)
        answer = runner.round(per_call=1, budget_s=10.0)
        assert (answer["wrong"], answer["missed"]) == (spoilt, lost)
        assert len(answer["put"]["seconds"]) == answer["put"]["blocks"] == 8
        assert len(answer["get"]["seconds"]) == answer["get"]["blocks"] == 8 - lost


def test_queued_puts_are_read_after_the_wait() -> None:
    """What was queued and is not there after the flush counts as wrong; puts of the same round do not."""
    runner = Runner(Hasty(), Path())
    runner.use(512, 8)
    answer = runner.round(per_call=1, budget_s=10.0)
    assert (answer["queue_wrong"], answer["wrong"], answer["queue"]["blocks"]) == (1, 0, 8)


def test_a_wait_is_shared_in_equal_parts() -> None:
    """Each of four calls bears a quarter of a wait for all of them."""
    clocks = Clocks()
    clocks.seconds = [0.0, 1.0, 2.0, 3.0]
    clocks.share(lambda: threading.Event().wait(0.004))
    assert clocks.seconds[0] >= 0.001
    assert [second - clocks.seconds[0] for second in clocks.seconds] == pytest.approx([0.0, 1.0, 2.0, 3.0])


def test_batches_take_so_many_blocks() -> None:
    """Calls of a batched round move `per_call` blocks each, as long as there are so many."""
    runner = Runner(Careless(), Path())
    runner.use(512, 40)
    answer = runner.round(per_call=16, budget_s=10.0)
    assert (len(answer["put"]["seconds"]), answer["put"]["blocks"], answer["wrong"]) == (2, 32, 0)


def test_lookups_are_checked() -> None:
    """A lookup counts answers that are not the number of blocks that were put, and finds none that were not."""
    peer = Careless()
    runner = Runner(peer, Path())
    runner.fill(128)
    assert runner.lookup(count=64, calls=3, budget_s=10.0)["wrong"] == 0
    peer.clear()
    assert runner.lookup(count=64, calls=3, budget_s=10.0)["wrong"] == 3


def test_a_peer_that_is_not_installed_is_said_to_be() -> None:
    """An environment that is not there is a failure that says so, before any process is started."""
    with pytest.raises(PeerFailed, match="not installed"):
        Peer(Subject("none", "None", "redis_plain", "no-such-environment", ""))


def test_a_peer_that_dies_is_quoted() -> None:
    """A peer whose process ends is a failure with its last words."""
    peer = Peer(Subject("none", "None", "no_such_adapter", "", ""))
    with pytest.raises(PeerFailed, match="no_such_adapter"):
        peer.__enter__()


def test_every_peer_can_be_installed() -> None:
    """Each subject has its adapter, each environment its versions, all of them pinned, and install.sh knows it."""
    script = (HERE / "install.sh").read_text()
    known = re.search(r"^all=\((.*)\)$", script, flags=re.MULTILINE)
    assert known is not None
    assert set(known[1].split()) == {peer.environment for peer in PEERS}
    for peer in (*PEERS, OURS, LIMIT):
        assert (HERE / f"adapters/{peer.adapter}.py").exists()
    for path in (HERE / "requirements").iterdir():
        assert path.stem in known[1].split()
        assert all("==" in line for line in path.read_text().splitlines())
