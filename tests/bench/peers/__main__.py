"""`make bench-peers`: measures, keeps each result, and writes BENCHMARKS.md and its plot from all that are kept."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from peer_driver import PeerFailed, Plan, compare
from peer_plot import plot
from peer_report import report
from peer_results import Result
from peer_subjects import BY_NAME, ENVIRONMENTS, PEERS, Subject

from tierd.bench.report import machine

ROOT = Path(__file__).resolve().parents[3]
REPORT = ROOT / "BENCHMARKS.md"
PLOT = ROOT / "docs/peers.svg"
RESULTS = ENVIRONMENTS / "results"


def main(words: list[str]) -> int:
    said = _arguments(words)
    plan = Plan.quick() if said.quick else Plan()
    for peer in [BY_NAME[name] for name in said.only] or PEERS:
        print(f"{peer.name} ...", file=sys.stderr, flush=True)
        result = _measured(peer, plan)
        print(f"{peer.name}: {result.error or f'{result.wall_s:.0f} s'}", file=sys.stderr, flush=True)
        result.keep(RESULTS)
    results = [kept for peer in PEERS if (kept := Result.kept(RESULTS, peer.name)) is not None]
    REPORT.write_text(report(results, str(PLOT.relative_to(ROOT))))
    PLOT.write_text(plot(results))
    return 0


def _measured(peer: Subject, plan: Plan) -> Result:
    """What was measured, or why nothing was."""
    began, where = time.monotonic(), machine()
    try:
        versions, figures = compare(peer, plan)
    except PeerFailed as failure:
        return Result(peer.name, where, time.monotonic() - began, error=str(failure))
    return Result(peer.name, where, time.monotonic() - began, versions, figures)


def _arguments(words: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/bench/peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the calls: to see that all works")
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME), default=[], metavar="PEER",
                        help=f"measures this one and keeps the others' results; one of {', '.join(BY_NAME)}")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
