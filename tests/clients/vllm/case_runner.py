"""Cases that are run in vLLM's environment, many in one process since it takes long to start: methods of a class.

A script prints a line of JSON for each: its name, and what went wrong, which is nothing or a traceback.
"""

from __future__ import annotations

import inspect
import json
import subprocess
import traceback
from pathlib import Path
from typing import Any

RUN_WITHIN_S = 600.0


def run(cases: Any, chosen: tuple[str, ...]) -> None:
    """All cases, or those that are named; those that take `load_async` are tried both ways."""
    names = [name for name in vars(type(cases)) if not name.startswith("_")]
    for name in chosen or names:
        case = getattr(cases, name)
        both = "load_async" in inspect.signature(case).parameters
        for options in [{"load_async": False}, {"load_async": True}] if both else [{}]:
            wrong = ""
            try:
                case(**options)
            except Exception:
                wrong = traceback.format_exc()
            finally:
                cases._end()
            print(json.dumps({"case": f"{name} {options or ''}", "wrong": wrong}), flush=True)


def failures(python: Path, script: Path, *arguments: str) -> dict[str, str]:
    """What went wrong, by case."""
    command = [str(python), str(script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_WITHIN_S, check=False)
    cases = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"case"')]
    assert done.returncode == 0 and cases, done.stderr
    return {one["case"]: one["wrong"] for one in cases if one["wrong"]}
