"""Benchmarks: `python tests/bench [NAME ...]` prints what each measured, with machine and date, as JSON."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

NAMES = ("evict_flat", "sim_rate", "spill_tls")


def main(names: list[str]) -> int:
    unknown = set(names) - set(NAMES)
    if unknown:
        print(f"no benchmark {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    results: dict[str, Any] = {}
    for name in names or NAMES:
        print(f"{name} ...", file=sys.stderr)
        results[name] = import_module(name).run()
    print(json.dumps({"machine": machine(), **results}, indent=1))
    return 0


def machine() -> dict[str, Any]:
    """Where and when the numbers were taken."""
    return {
        "cpu": cpu_model(), "cores": os.cpu_count(), "python": platform.python_version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"), "load": round(os.getloadavg()[0], 1),
    }


def cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
