"""A race: a writer that re-uses slots all the time, and readers of the same files in processes of their own.

    race_writer.py: engine ──▶ catalog, segment (shared memory) ◀── race_reader.py x n, read-only, no RPC
                           ◀── hazard pages ◀── race_holder.py x n, read-only but for its page
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
from collections import Counter
from pathlib import Path

from race_blocks import HOLDERS


class Race:
    """A writer at work on files of its own, and readers that are started on them."""

    def __init__(self, shm_dir: Path, *options: str) -> None:
        self._where = [str(shm_dir), secrets.token_hex(16)]
        self.start_writer(*options)

    def start_writer(self, *options: str) -> None:
        self._writer = self._start("race_writer.py", *options)
        assert self.next_line() == "ready"

    def next_line(self) -> str:
        """What the writer says next."""
        assert self._writer.stdout is not None
        return self._writer.stdout.readline().strip()

    def start_readers(self, readers: int, reads: int, *options: str) -> list[subprocess.Popen[str]]:
        return [self._start("race_reader.py", str(seed), str(reads), *options) for seed in range(readers)]

    def start_holders(self, holds: int, *options: str) -> list[subprocess.Popen[str]]:
        return [self._start("race_holder.py", str(session), str(holds), *options) for session in HOLDERS]

    def stop_writer(self) -> int:
        """Ends the writer in an orderly way; how many blocks it wrote."""
        out, _ = self._writer.communicate(timeout=30)
        assert self._writer.returncode == 0
        return int(out.split()[-1])

    def kill_writer(self) -> None:
        self._writer.kill()
        self._writer.wait(30)

    def _start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name(script)), *self._where, *arguments]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def counts_of(readers: list[subprocess.Popen[str]], within_s: float = 240.0) -> Counter[str]:
    """Waits for readers; the sum of what they counted."""
    total: Counter[str] = Counter()
    for reader in readers:
        out, _ = reader.communicate(timeout=within_s)
        assert reader.returncode == 0
        total.update(json.loads(out))
    return total
