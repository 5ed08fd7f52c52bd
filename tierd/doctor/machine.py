"""Reads what the machine is like: `/proc`, `/sys`, limits of this process, the directories of the settings.

`root` stands in for `/` where files of the kernel are read, so that a test can lay out a machine of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

from tierd.adapters.instance import last_owner
from tierd.adapters.shm import SharedDirectory
from tierd.doctor.facts import MachineFacts, SharedMemoryFacts, StateFacts
from tierd.settings import Settings

UNLIMITED_BYTES = 1 << 60
"""What control groups of version 1 say for "no limit" is above this."""
CAP_IPC_LOCK = 14
CONNECT_TIMEOUT_S = 1.0


def look_at_machine(root: Path = Path("/")) -> MachineFacts:
    status = _fields(root / "proc/self/status")
    return MachineFacts(
        available_bytes=int(_fields(root / "proc/meminfo").get("MemAvailable", "0").split()[0]) << 10,
        cgroup_limit_bytes=min(_cgroup_limits(root), default=None),
        descriptors=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        memlock_bytes=_memlock(status),
        numa_nodes=len(_numbers(_text(root / "sys/devices/system/node/has_memory"))
                       & _numbers(status.get("Mems_allowed_list", ""))),
        numa_policy=_numa_policy(root),
        first_process=_text(root / "proc/1/comm"),
    )


def _memlock(status: dict[str, str]) -> int | None:
    """The soft limit: nothing raises it by itself."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    may_lock_all = int(status.get("CapEff", "0"), 16) >> CAP_IPC_LOCK & 1
    return None if soft == resource.RLIM_INFINITY or may_lock_all else soft


def _cgroup_limits(root: Path) -> Iterator[int]:
    """The memory limits of this process's control group and of those above it, as far as they are seen."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            top, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = top / path.lstrip("/")
        for place in (group, *group.parents):
            limit = _text(place / file) if place.is_relative_to(top) else ""
            if limit.isdecimal() and int(limit) < UNLIMITED_BYTES:
                yield int(limit)


def _numa_policy(root: Path) -> str:
    """Of this process, by the first mapping that has none of its own: `default`, `interleave:0-1`, ..."""
    words = _text(root / "proc/self/numa_maps").partition("\n")[0].split()
    return words[1] if len(words) > 1 else ""


# --- shared memory --------------------------------------------------------------------------------------


def look_at_shm(settings: Settings, root: Path = Path("/")) -> SharedMemoryFacts:
    path = settings.shm_dir
    if not path.is_dir():
        return SharedMemoryFacts(path, problem="not a directory" if path.exists() else "does not exist")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return SharedMemoryFacts(path, problem="may not be written to")
    stat = os.statvfs(path)
    file_system, huge = mount_of(path.resolve(), root)
    held, others = _held_bytes(settings)
    return SharedMemoryFacts(
        path, file_system=file_system, huge=huge, total_bytes=stat.f_blocks * stat.f_frsize,
        free_bytes=stat.f_bavail * stat.f_frsize, held_bytes=held, others_bytes=others,
    )


def mount_of(path: Path, root: Path) -> tuple[str, str]:
    """Type of the file system that holds the path, and its option `huge`; the last mount over a place counts."""
    found, depth = ("unknown", ""), -1
    for line in _text(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        point = Path(_unescaped(before.split()[4]))
        kind, _, options = after.split(" ", 2)
        if path.is_relative_to(point) and len(point.parts) >= depth:
            huge = [one.removeprefix("huge=") for one in options.split(",") if one.startswith("huge=")]
            found, depth = (kind, huge[0] if huge else ""), len(point.parts)
    return found


def _unescaped(text: str) -> str:
    """The kernel writes a space in the name of a mount as \\040."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)


def _held_bytes(settings: Settings) -> tuple[int, int]:
    """Bytes of the files of this instance, and of all other ones'."""
    held = others = 0
    instance, _ = last_owner(settings.state_dir)
    own = SharedDirectory(settings.shm_dir, instance or b"").prefix
    for file in settings.shm_dir.glob("tierd-*-*"):
        with contextlib.suppress(OSError):
            size = file.stat().st_blocks * 512
            if instance and file.name.startswith(own):
                held += size
            else:
                others += size
    return held, others


# --- the state directory --------------------------------------------------------------------------------


def look_at_state(settings: Settings) -> StateFacts:
    path = settings.state_dir
    problem = _place_problem(path)
    if problem or not path.exists():
        return StateFacts(path, problem)
    paths = [settings.attach_path, *(Path(one.removeprefix("unix://")) for one in settings.addresses)]
    sockets = [one for one in paths if one.is_socket()]
    return StateFacts(
        path, mode=path.stat().st_mode & 0o777,
        running_pid=(last_owner(path)[1] or 0) if _answers(settings.attach_path) else None,
        open_sockets=tuple(str(one) for one in sockets if one.stat().st_mode & 0o077),
    )


def _place_problem(path: Path) -> str:
    """Why a directory cannot be used or made; empty when it can."""
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir():
        return f"{there} is not a directory"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{'it' if there == path else there} may not be written to"
    owner = there.stat().st_uid
    if there == path and owner not in (0, os.geteuid()):
        return f"it belongs to user {owner}, this is user {os.geteuid()}"
    if there == path and there.stat().st_mode & stat.S_IWOTH:
        return "every user may write to it"
    return ""


def _answers(path: Path) -> bool:
    """Whether a daemon listens there. The lock of the directory would say it too, but holding it for a moment
    could keep a daemon from starting."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
        return True


# --- files of the kernel --------------------------------------------------------------------------------


def _text(path: Path) -> str:
    """What a file says, empty when it cannot be read: kernels differ in what they show."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _fields(path: Path) -> dict[str, str]:
    """Lines `name: value` of a file."""
    lines = (line.partition(":") for line in _text(path).splitlines())
    return {name: value.strip() for name, _, value in lines}


def _numbers(text: str) -> set[int]:
    """The set that the kernel writes as `0-3,8`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found
