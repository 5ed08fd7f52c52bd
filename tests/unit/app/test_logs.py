"""What the log shows of an error, and what it never shows."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAILING = """
import sys
import structlog
from tierd.app import logs

logs.configure("info", sys.argv[1] == "json")


def login(password):
    raise OSError("the server refuses")


try:
    login("".join(reversed("terces")))
except OSError:
    structlog.get_logger("tierd").exception("probe_failed")
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_a_traceback_shows_no_variables(log_format: str) -> None:
    """An error is logged with its message and the way to it, and without what the frames on that way held."""
    run = subprocess.run(
        [sys.executable, "-c", FAILING, log_format], capture_output=True, text=True, check=True, timeout=60)
    assert "probe_failed" in run.stderr and "the server refuses" in run.stderr and "login" in run.stderr
    assert "secret" not in run.stderr
