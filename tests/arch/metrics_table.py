"""Prints docs/metrics.md from the table of metrics; `make docs` writes it, test_documents.py compares it."""

from __future__ import annotations

import sys

from tierd.app.measures import BOUNDS_S
from tierd.web.metrics import METRICS, PROCESS

INTRODUCTION = """# Metrics

What `/metrics` exports, in Prometheus' text format, at the address that the setting `http_address` names (default
`http://127.0.0.1:9400`). Bytes are bytes, durations seconds; `tier` is hbm, host or spill, as far as they are on.
Counters start at 0 with each start of the daemon and stand still while it is idle. Histograms have the bounds
{bounds}. Made by `make docs` from `tierd/web/metrics.py`.

| metric | kind | labels | is |
|---|---|---|---|
"""


def table() -> str:
    rows = [(one.name, one.kind, ", ".join(one.labels), one.help) for one in METRICS]
    rows += [(name, "counter" if name.endswith("_total") else "gauge", "", help) for name, help in PROCESS.items()]
    lines = [f"| `{name}` | {kind} | {labels} | {help} |" for name, kind, labels, help in rows]
    return INTRODUCTION.format(bounds=", ".join(map(str, BOUNDS_S))) + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
