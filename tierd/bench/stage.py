"""The daemons that are measured: each a process with directories of its own, gone when it is left."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tierd.children import ChildFailed, DaemonChild, short_temporary_directory
from tierd_client import Client

SHARED_MEMORY = Path("/dev/shm")
PAGES_TIMEOUT_S = 60.0
TASKS = "/proc/{pid}/task"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A daemon that answers, and where its files are."""

    child: DaemonChild
    directory: Path
    shm_dir: Path

    def client(self, verify: Literal["always", "sampled", "never"] = "sampled") -> Client:
        """As an engine on the same host has it."""
        return Client(self.child.address, name="bench", verify=verify)

    def cpu_s(self) -> float:
        """CPU time of all its threads so far."""
        tasks = Path(TASKS.format(pid=self.child.pid)).iterdir()
        return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9

    def await_pages(self) -> None:
        """Returns when every page of its shared memory is there: until then a thread of it makes them."""
        files = [file for file in self.shm_dir.rglob("*") if file.is_file()]
        ends_at = time.monotonic() + PAGES_TIMEOUT_S
        while any(file.stat().st_blocks * 512 < file.stat().st_size for file in files):
            if time.monotonic() >= ends_at:
                raise ChildFailed(f"the daemon has not populated its memory within {PAGES_TIMEOUT_S:.0f} s")
            time.sleep(0.05)

    def private_bytes(self) -> int:
        """Memory that is its own: neither shared nor of files."""
        status = Path(f"/proc/{self.child.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) << 10


@contextmanager
def serving(*, tcp: str = "", **settings: Any) -> Iterator[Daemon]:
    """A daemon with these settings, on a Unix socket and where it is given a TCP address. Raises ChildFailed with
    its own words."""
    with _directory(short_temporary_directory()) as directory, shared_memory_directory() as shm_dir:
        listen = [f"unix://{directory}/tierd.sock", *([tcp] if tcp else [])]
        stores_all = "lrfu(admission=none)"
        defaults = {
            "policy": stores_all, "spill": "none", "http_address": "off", "shm_dir": shm_dir, "listen": listen,
        }
        child = DaemonChild(directory / "state", directory / "daemon.log", {**defaults, **settings})
        try:
            child.start()
            yield Daemon(child, directory, shm_dir)
        finally:
            child.stop()


def shared_memory_directory() -> AbstractContextManager[Path]:
    """A directory of shared memory that is removed afterwards."""
    return _directory(str(SHARED_MEMORY))


@contextmanager
def _directory(within: str) -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="tierd-bench-", dir=within))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
