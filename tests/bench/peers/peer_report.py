"""BENCHMARKS.md, made of results. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from peer_figures import Figure, Verdict, Work, judged, promised
from peer_results import Result
from peer_subjects import LIMIT, NOT_COMPARED, OURS

HEAD = """# tierd beside its peers

Made by `make bench-peers`; nothing here is written by hand. Each peer runs as its users run it, in an environment
of its own, with 1 GiB of memory, its servers and one client thread on one machine. In one run the peer, tierd and a
memcpy into and out of shared memory take turns, so that what else the machine does hits all three: **compare within
a row, not between tables.** Blocks are random bytes; they are put, and read in another random order into the
caller's poisoned buffers, more than the caches hold, and compared with what was put. Times are of one call, in
microseconds: the median, and the tenth percentile in parentheses. Ids are made before the timing, in each peer's
own form.
"""

VERDICT = """
## Faster than every peer daemon?

Faster than every peer daemon that runs here on single-block get and put at 128 KiB, 640 KiB, 2 MiB, 5 MiB and on
lookup of 1,024 and 8,192 ids, in the same run: **{answer}**

The same with tierd's queued puts, which do not wait for their commit; each bears its share of the wait for all of
them in the end: **{answer_queued}**

A cell is the peer's median over tierd's: above 1 tierd is faster, bold where it is not. A dash: the peer has no
such call, or did not do it rightly. Queued puts are compared with the peer's puts.

"""

REPEAT = """
## To repeat it

```
tests/bench/peers/install.sh     # environments under ~/.cache/tierd-peers, or where BENCH_PEERS_DIR says; some 3 GB
make bench-peers                 # all, in under 15 minutes; ONLY=redis for one, QUICK=1 to see that all works
```

`ONLY` measures one peer and keeps what was measured of the others: each table names its own date. A peer whose
environment is missing, that does not start or fails is listed with what it said. Adapters are
[tests/bench/peers/adapters](tests/bench/peers/adapters), one small file each; corrections are welcome.
"""


def report(results: Sequence[Result], plot_path: str) -> str:
    """The whole document. `plot_path`: of the plot, relative to the document."""
    measured = [result for result in results if result.figures]
    answers = {"answer": _answer(measured, promised()), "answer_queued": _answer(measured, promised("queue"))}
    parts = [HEAD, f"\n![Times memcpy]({plot_path})\n", VERDICT.format(**answers)]
    parts += [_verdict_table(measured), _losses(measured), _peers(results)]
    parts += [_tables(result) for result in measured]
    parts += [_not_compared(), REPEAT]
    return "".join(parts)


def _answer(results: Sequence[Result], works: Sequence[Work]) -> str:
    cells = [result.verdicts[work] for result in results for work in works if work in result.verdicts]
    lost = sum(not verdict.is_faster for verdict in cells)
    if not cells:
        return "nothing was measured."
    return f"not on {lost} of {len(cells)}, listed below." if lost else f"yes, on all {len(cells)}."


def _verdict_table(results: Sequence[Result]) -> str:
    head = ["peer", *(work.label.removeprefix("lookup of ") for work in judged())]
    rows = [[result.subject.title, *(_ratio(result.verdicts.get(work)) for work in judged())] for result in results]
    return _table(head, rows)


def _ratio(verdict: Verdict | None) -> str:
    if verdict is None:
        return "-"
    text = f"{verdict.ratio:.2f}" if verdict.ratio < 10 else f"{verdict.ratio:.0f}"
    return text if verdict.is_faster else f"**{text}**"


def _losses(results: Sequence[Result]) -> str:
    """Each of them with both medians, and what tierd's time consists of there."""
    lost = [(r.subject.title, one) for r in results for one in r.verdicts.values() if not one.is_faster]
    if not lost:
        return ""
    rows = [[name, one.work.label, f"{one.theirs_us:,.0f}", f"{one.ours_us:,.0f}"] for name, one in lost]
    verbs = dict.fromkeys(one.work.verb for _, one in lost)
    why = "".join(f"* {WHY_NOT[verb]}\n" for verb in verbs)
    return f"\nWhere not, and why:\n\n{_table(['peer', 'call', 'its us', 'tierd us'], rows)}\n{why}"


WHY_NOT = {
    "get": "A get finds the block, copies it, looks whether it is still the same, and notes the access, in Python.",
    "put": "A put that waits is one call over a Unix stream; the daemon wakes up and books it, in Python.",
    "queue": "Queued puts share RPCs; each copies the block, computes its checksum, and is booked by the daemon.",
    "lookup": "A lookup probes the catalog for all ids by columns in numpy; the peer's server is in C or C++.",
}
"""What tierd's time consists of where a peer is faster, by verb."""


def _peers(results: Sequence[Result]) -> str:
    own = next((result.versions[OURS.name] for result in results if OURS.name in result.versions), "")
    rows = [[OURS.title, own, OURS.path, ""]] + [
        [result.subject.title, result.versions.get(result.peer, ""), result.subject.path, result.error or "ran"]
        for result in results
    ]
    return "\n## Who was measured\n\n" + _table(["peer", "version", "way of the bytes, calls", "here"], rows)


def _tables(result: Result) -> str:
    head = ["call", result.subject.title, OURS.title, LIMIT.title, "peer / memcpy", "tierd / memcpy",
            "CPU s/GB: peer client + server", "tierd"]
    rows = [_row(result, work) for work in result.ours if work in result.theirs]
    return f"\n## {result.subject.title}\n\n{_place(result)}\n\n{_table(head, rows)}{_wrongs(result)}"


def _place(result: Result) -> str:
    """Machine and date."""
    where = result.machine
    return (
        f"{where['cpu']}, {where['cores']} cores, {where['memory_bytes'] / 2**30:.0f} GiB, "
        f"Linux {where['kernel']}, Python {where['python']}, load {where['load']} at the start, {where['date']}; "
        f"took {result.wall_s:.0f} s.")


def _row(result: Result, work: Work) -> list[str]:
    theirs, ours, limit = result.theirs[work], result.ours[work], result.limit.get(work)
    moved = work.verb != "lookup"
    over = ["", ""] if limit is None else [_times(one, limit) for one in (theirs, ours)]
    return [
        work.label, _time(theirs), _time(ours), "" if limit is None else _time(limit), *over,
        _cpu(theirs) if moved else "", _cpu(ours) if moved else "",
    ]


def _times(figure: Figure, limit: Figure) -> str:
    return f"{figure.p50_us / limit.p50_us:.2f}" if figure.calls else "-"


def _time(figure: Figure) -> str:
    if not figure.calls:
        return "-"
    return f"{figure.p50_us:,.0f} ({figure.p10_us:,.0f})"


def _cpu(figure: Figure) -> str:
    return f"{figure.client_cpu_s_per_gb:.2f} + {figure.server_cpu_s_per_gb:.2f}"


def _wrongs(result: Result) -> str:
    """What was not as it was put, of anybody."""
    lines = [
        f"* {name}, {figure.work.label}: {figure.wrong} wrong, {figure.missed} calls did not find what was put."
        for name, figures in result.figures.items() for figure in figures if figure.wrong or figure.missed
    ]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def _not_compared() -> str:
    return "\n## Who was not, and why\n\n" + _table(["peer", "why"], [list(one) for one in NOT_COMPARED.items()])


def _table(head: Iterable[str], rows: Iterable[Sequence[str]]) -> str:
    columns = list(head)
    lines = [columns, ["---"] * len(columns), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
