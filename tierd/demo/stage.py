"""The processes of the demo and the directories they live in; all are gone when the stage is left.

    demo ── valkey-server     the spill tier; outlives the daemon
         ├─ tierd serve       killed and started again
         ├─ worker a, b       one model each
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tierd.adapters.spill_embedded import EmbeddedValkey
from tierd.children import DaemonChild, short_temporary_directory, stop, tail
from tierd.core.errors import TierdError
from tierd.demo.channel import Channel, ChannelClosed
from tierd.demo.model import ModelSource

LOAD_TIMEOUT_S = 180.0
"""For a worker to import torch and load its model on a busy machine."""
PROMPT_TIMEOUT_S = 120.0
SPILL_BYTES_MAX = 2**30
CATALOG_ROWS = 1024
"""Enough for some hundred blocks, and small enough for the 64 MiB of shared memory of a container."""
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_SPARE_BYTES = 4 * 2**20
"""Shared memory is used when it has so much more free than the tiers take; else the file system is."""


class DemoFailed(TierdError):
    """A process of the demo died or did not answer; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Capacities of the tiers above spill."""

    hbm_bytes: int
    host_bytes: int


@dataclass(slots=True)
class WorkerHandle:
    """The demo's side of one worker."""

    name: str
    process: subprocess.Popen[bytes]
    channel: Channel
    log: Path

    def send(self, message: dict[str, Any]) -> None:
        with self._explained():
            self.channel.send(message, PROMPT_TIMEOUT_S)

    def receive(self, timeout_s: float = PROMPT_TIMEOUT_S) -> dict[str, Any]:
        with self._explained():
            message = self.channel.receive(timeout_s)
        if "error" in message:
            raise DemoFailed(f"worker {self.name}: {message['error']}\n{tail(self.log)}")
        return message

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (ChannelClosed, TimeoutError) as error:
            raise DemoFailed(f"worker {self.name}: {error}\n{tail(self.log)}") from error


class Stage:
    """Use as a context manager; leaving it stops every process and removes every file."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._daemon: DaemonChild | None = None
        self.state_dir = Path()
        self.spill_url = ""

    def __enter__(self) -> Stage:
        with ExitStack() as stack:
            made = tempfile.mkdtemp(prefix="tierd-demo-", dir=short_temporary_directory())
            self.state_dir = Path(made)
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def server(self) -> str:
        return f"unix://{self.state_dir / 'tierd.sock'}"

    # --- valkey and the daemon ------------------------------------------------------------------------

    def start_spill(self) -> None:
        valkey = EmbeddedValkey(self.state_dir / "spill", SPILL_BYTES_MAX)
        self._stack.callback(valkey.stop)
        valkey.start()
        self.spill_url = valkey.url

    def start_daemon(self, sizes: Sizes) -> None:
        """Starts it for the first time and waits until it answers."""
        settings = {
            "listen": self.server, "shm_dir": self._shared_memory(sizes), "spill": self.spill_url,
            "catalog_rows": CATALOG_ROWS, "hbm_bytes": sizes.hbm_bytes, "host_bytes": sizes.host_bytes,
        }
        self._daemon = DaemonChild(self.state_dir / "state", self.state_dir / "daemon.log", settings)
        self._stack.callback(self._daemon.stop)
        self._daemon.start()

    def _shared_memory(self, sizes: Sizes) -> Path:
        """A directory of the demo's own, so that whatever the daemon leaves in it can be removed."""
        need = sizes.hbm_bytes + sizes.host_bytes + SHARED_MEMORY_SPARE_BYTES
        roomy = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free >= need
        made = SHARED_MEMORY / self.state_dir.name if roomy else self.state_dir / "shm"
        made.mkdir(mode=0o700)
        self._stack.callback(shutil.rmtree, made, ignore_errors=True)
        return made

    def restart_daemon(self) -> None:
        self._the_daemon().start()

    def kill_daemon(self) -> None:
        """SIGKILL, and waits for the end."""
        self._the_daemon().kill()

    def _the_daemon(self) -> DaemonChild:
        assert self._daemon is not None, "start_daemon comes first"
        return self._daemon

    # --- workers --------------------------------------------------------------------------------------

    def start_workers(self, names: list[str], source: ModelSource) -> list[WorkerHandle]:
        """Starts them at the same time; they load their models before they know of a daemon."""
        return [self._start_worker(name, source) for name in names]

    def _start_worker(self, name: str, source: ModelSource) -> WorkerHandle:
        ours, theirs = socket.socketpair()
        log = self.state_dir / f"worker-{name}.log"
        command = [sys.executable, "-m", "tierd.demo.worker", str(theirs.fileno())]
        with log.open("ab") as out, theirs:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
                pass_fds=[theirs.fileno()], env=_one_thread(os.environ, self.state_dir),
            )
        self._stack.callback(stop, process)
        worker = WorkerHandle(name, process, Channel(ours), log)
        self._stack.callback(worker.channel.close)
        worker.send({"source": asdict(source)})
        return worker


def _one_thread(environ: Mapping[str, str], temporary: Path) -> dict[str, str]:
    """For a worker: no network, one thread each, and temporary files (torch makes some) where they are removed."""
    return {**environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TMPDIR": str(temporary)}

