"""Installs the engines and runs all tests with them: `make clients`. The last line is JSON, how many tests of each
engine passed, failed and were skipped:

    {"engines": {"vllm": {"passed": 4, "failed": 0, "skipped": 0}, ...}}

The exit status is pytest's, or 1 when an engine could not be installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
OUTCOMES = ("passed", "failed", "skipped")


class Counted:
    """A plugin of pytest that counts outcomes by engine, which is the folder of the test."""

    def __init__(self) -> None:
        folders = sorted(path.name for path in HERE.iterdir() if any(path.glob("test_*.py")))
        self.engines = {name: dict.fromkeys(OUTCOMES, 0) for name in folders}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        engine = Path(report.location[0]).parent.name
        counts = report.when == "call" or report.outcome != "passed"  # a fixture that fails or skips, once
        if engine in self.engines and counts:
            self.engines[engine][report.outcome] += 1


def main() -> int:
    installed = subprocess.run([str(HERE / "install.sh")], check=False).returncode
    counted = Counted()
    status = pytest.main([str(HERE), *sys.argv[1:]], plugins=[counted])
    print(json.dumps({"engines": counted.engines}))
    return int(status) or int(installed != 0)


if __name__ == "__main__":
    sys.exit(main())
