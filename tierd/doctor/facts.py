"""What the doctor knows: measurements of a machine, a spill server and a GPU, and what the settings want."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tierd.settings import Settings


@dataclass(frozen=True, slots=True)
class SharedMemoryFacts:
    """The file system of `shm_dir`.

    `problem`: why it cannot be used, empty when it can. `huge`: the mount's option for huge pages, empty when it
    has none. `held_bytes`: files of this instance that are there already; `others_bytes`: those of other ones.
    """

    path: Path
    problem: str = ""
    file_system: str = "tmpfs"
    huge: str = ""
    total_bytes: int = 0
    free_bytes: int = 0
    held_bytes: int = 0
    others_bytes: int = 0


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Memory and limits of the process that asks.

    `cgroup_limit_bytes`: the least memory limit of its control groups, None without one. `memlock_bytes`: what it
    may lock, None for any amount. `numa_nodes`: nodes whose memory it may use. `first_process`: name of pid 1.
    """

    available_bytes: int
    cgroup_limit_bytes: int | None
    descriptors: int
    memlock_bytes: int | None
    numa_nodes: int
    numa_policy: str
    first_process: str


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The state directory. `mode`: None where it is still to be made. `running_pid`: of the daemon that answers on
    its attach socket, None without one. `open_sockets`: sockets that other users may connect to."""

    path: Path
    problem: str = ""
    mode: int | None = None
    running_pid: int | None = None
    open_sockets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SecretFacts:
    """Files of tokens, keys and passwords. `problems`: why the daemon cannot use one. `open_files`: those that
    other users can read."""

    problems: tuple[str, ...] = ()
    open_files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One server, by its own account; `version` is empty where the user may not ask. `clustered`: it is part of a
    cluster. `skew_s`: by how much its clock is surely ahead of ours, None when it does not tell its time.
    """

    place: str
    product: str = ""
    version: tuple[int, ...] = ()
    maxmemory_bytes: int = 0
    policy: str = "noeviction"
    clustered: bool = False
    skew_s: float | None = None


@dataclass(frozen=True, slots=True)
class SpillFacts:
    """The Redis or Valkey servers of the spill tier. `problem`: why they cannot be reached; nothing else is known
    then. `nodes`: one, or the primaries of a cluster.

    `refused`: commands of the daemon that were refused, with the server's words. Rates are of values of 1 MiB on
    one connection, one after the other, 0 when they were refused.
    """

    place: str
    problem: str = ""
    nodes: tuple[NodeFacts, ...] = ()
    refused: tuple[str, ...] = ()
    ping_ms: float = 0.0
    store_bytes_per_s: float = 0.0
    load_bytes_per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class CudaFacts:
    """`torch`: its version, empty when it is not installed; `cuda`: what it was built for, empty for none.
    `driver`: of the kernel, empty for none. `expandable_segments`: torch's allocator is told to use them."""

    torch: str
    cuda: str
    driver: str
    devices: tuple[Device, ...]
    expandable_segments: bool


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that is looked at. `shm_bytes`: shared memory that the settings want; `process_bytes`: what the
    daemon and its children take beside it. `spill` and `cuda` are None where the settings want none; `embedded`
    says why the embedded server cannot run, empty when it can."""

    settings: Settings
    shm_bytes: int
    process_bytes: int
    shm: SharedMemoryFacts
    machine: MachineFacts
    state: StateFacts
    secrets: SecretFacts = SecretFacts()
    spill: SpillFacts | None = None
    cuda: CudaFacts | None = None
    embedded: str = ""
