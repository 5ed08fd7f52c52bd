"""Worker scripts of these tests as processes: they print a JSON object a line, and read commands as lines.

A worker ends when its standard input does, so it never outlives its test.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ENDS_WITHIN_S = 20.0


class WorkerProcess:
    """A running script of this directory, and all that it has printed."""

    def __init__(self, script: str, *arguments: object) -> None:
        command = [sys.executable, str(Path(__file__).with_name(script)), *map(str, arguments)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.lines: list[dict[str, Any]] = []
        self._ended = False
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()

    def ask(self, command: str, within_s: float = 30.0) -> dict[str, Any]:
        """Sends a command and waits for the line that answers it: one with its first word as a key."""
        seen, name = len(self.lines), command.split()[0]
        self.tell(command)
        return self.wait_for(lambda: next((x for x in self.lines[seen:] if name in x), None), within_s)

    def wait_for(self, found: Callable[[], Any], within_s: float = 30.0) -> Any:
        """Waits until `found` gives something; fails when it does not in time, or the process ends."""
        with self._news:
            self._news.wait_for(lambda: found() or self._ended, within_s)
            result = found()
        assert result, f"{self.process.args}: not seen in {within_s} s; last lines {self.lines[-3:]}"
        return result

    def finish(self) -> None:
        """Ends its input and waits for an orderly exit."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(ENDS_WITHIN_S) == 0, self.lines[-3:]
        with self._news:
            self._news.wait_for(lambda: self._ended, ENDS_WITHIN_S)

    def kill(self) -> None:
        """kill -9. Idempotent."""
        self.process.kill()
        self.process.wait(ENDS_WITHIN_S)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(json.loads(line))
                self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()


def say(**values: Any) -> None:
    """Prints one line for the test; on the worker's side."""
    print(json.dumps(values), flush=True)


def commands() -> Iterator[str]:
    """What the test tells this worker, until it is to end; on the worker's side."""
    for line in sys.stdin:
        yield line.strip()
