"""Named files of shared memory: made, mapped, found again after a restart, populated in the background.

Files are `<shm_dir>/tierd-<instance>-<name>`. They outlive the process on purpose: that is the warm restart.
Pages are allocated when a file is made (posix_fallocate), so that a full shm_dir is an error at the start and
never a SIGBUS under load.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tierd.core.errors import Unavailable
from tierd_client.format import U8Array

MADV_HUGEPAGE = 14
MADV_POPULATE_WRITE = 23
POPULATE_STEP_BYTES = 16 << 20
"""Populated in one call: some milliseconds, so that a stop need not wait for gigabytes."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class NoRoom(Unavailable):
    """The directory of shared memory cannot hold what the settings ask for."""


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file to be had. `setting`: which setting decides its size, for the error that names it."""

    name: str
    size: int
    setting: str


class SharedFile:
    """One mapped file of shared memory."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self.mapping = mmap.mmap(fd, size)

    def array(self) -> U8Array:
        """All of its bytes, writable. The view keeps the mapping alive."""
        return np.frombuffer(self.mapping, np.uint8)

    def descriptor(self, *, writable: bool) -> int:
        """A new close-on-exec descriptor for another process; the caller closes it.

        A descriptor opened read-only cannot be mapped writable, which `dup` could not give.
        """
        access = os.O_RDWR if writable else os.O_RDONLY
        return os.open(f"/proc/self/fd/{self._fd}", access | os.O_CLOEXEC)

    def close(self) -> None:
        """Unmaps and closes; idempotent. While a view is out the mapping stays, until the process ends."""
        with contextlib.suppress(BufferError):
            self.mapping.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class SharedDirectory:
    """The files of one instance in one directory. Files of other instances are never touched."""

    def __init__(self, path: Path, instance: bytes) -> None:
        self.path = path
        self.prefix = f"tierd-{instance.hex()}-"

    def path_of(self, name: str) -> Path:
        return self.path / (self.prefix + name)

    @property
    def pattern(self) -> str:
        """What names all files of this instance in a shell."""
        return f"{self.path_of('')}*"

    def names(self) -> list[str]:
        """Names of this instance's files that exist."""
        return sorted(found.name[len(self.prefix) :] for found in self.path.glob(self.prefix + "*"))

    def remove(self, names: Iterable[str]) -> None:
        """Unlinks files. Who has one mapped keeps its own memory of it, which nobody else sees."""
        for name in names:
            self.path_of(name).unlink(missing_ok=True)

    def open(self, wanted: WantedFile) -> SharedFile | None:
        """The existing file, or None when there is none of that size."""
        try:
            fd = os.open(self.path_of(wanted.name), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        if os.fstat(fd).st_size != wanted.size:
            os.close(fd)
            return None
        return SharedFile(self.path_of(wanted.name), fd, wanted.size)

    def replace(self, wanted: Sequence[WantedFile], old: Iterable[str] = ()) -> dict[str, SharedFile]:
        """New zeroed files, all or none, in the place of `old` ones and of those that have their names.

        Raises NoRoom naming sizes, path and setting; where that is plain from the start nothing is removed.
        """
        names = {one.name for one in wanted}.union(old)
        self._check_room(wanted, freed=sum(self._size_of(name) for name in names))
        self.remove(names)
        made: dict[str, SharedFile] = {}
        try:
            for one in wanted:
                made[one.name] = self._create_one(one)
        except BaseException:
            for file in made.values():
                file.close()
            self.remove(made)
            raise
        return made

    def _create_one(self, wanted: WantedFile) -> SharedFile:
        path = self.path_of(wanted.name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(fd, 0, wanted.size)
            return SharedFile(path, fd, wanted.size)
        except OSError as error:
            os.close(fd)
            path.unlink(missing_ok=True)
            if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
                raise NoRoom(_no_room_text([wanted], self.room_bytes(), self.path)) from error
            raise

    def room_bytes(self) -> int:
        """Bytes that can be allocated now: by the file system and, where that is memory, by the machine."""
        stat = os.statvfs(self.path)
        free = stat.f_bavail * stat.f_frsize
        return min(free, *_memory_limits()) if self._in_memory() else free

    def _in_memory(self) -> bool:
        magic_tmpfs = 0x01021994
        buffer = ctypes.create_string_buffer(256)
        if _libc.statfs(os.fsencode(self.path), buffer) != 0:
            return False
        return int.from_bytes(buffer.raw[:8], "little") == magic_tmpfs

    def _size_of(self, name: str) -> int:
        try:
            return self.path_of(name).stat().st_blocks * 512
        except FileNotFoundError:
            return 0

    def _check_room(self, wanted: Sequence[WantedFile], freed: int) -> None:
        try:
            room = self.room_bytes() + freed
        except FileNotFoundError:
            raise NoRoom(f"shm_dir: {self.path} does not exist") from None
        if sum(one.size for one in wanted) > room:
            raise NoRoom(_no_room_text(wanted, room, self.path))


def _no_room_text(wanted: Sequence[WantedFile], room: int, path: Path) -> str:
    per_setting: dict[str, int] = {}
    for one in wanted:
        per_setting[one.setting] = per_setting.get(one.setting, 0) + one.size
    setting, largest = max(per_setting.items(), key=lambda item: item[1])
    total = sum(per_setting.values())
    return (
        f"{setting}: {total:,} bytes of shared memory requested ({largest:,} of them by {setting}), "
        f"{room:,} available in {path}; lower {setting} or set shm_dir to a larger file system"
    )


def _memory_limits() -> Iterator[int]:
    """What the machine and the control group still give, in bytes. Over it the kernel kills, not refuses."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) << 10
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        yield max(0, limit - int((group / "memory.current").read_text()))


class Populator:
    """A thread that touches every page of mappings, so that first use does not pay for it (measured: 5x)."""

    def __init__(self, arrays: Sequence[U8Array], report: Callable[[str, int], None]) -> None:
        """`report(event, bytes)` is called once, on the thread: populated, populate_refused or _stopped."""
        self._arrays = arrays
        self._report = report
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tierd-populate", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        self._stop.set()
        self._thread.join(timeout_s)

    def join(self, timeout_s: float) -> bool:
        """Waits for the end; False when the time ran out."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        done = 0
        for array in self._arrays:
            _advise(array, 0, array.size, MADV_HUGEPAGE)
            for start in range(0, array.size, POPULATE_STEP_BYTES):
                size = min(POPULATE_STEP_BYTES, array.size - start)
                if self._stop.is_set() or not _advise(array, start, size, MADV_POPULATE_WRITE):
                    self._report("populate_stopped" if self._stop.is_set() else "populate_refused", done)
                    return
                done += size
        self._report("populated", done)


def _advise(array: U8Array, start: int, size: int, advice: int) -> bool:
    """madvise through ctypes: mmap.madvise would hold the GIL for as long as the kernel works."""
    return bool(_libc.madvise(array.ctypes.data + start, size, advice) == 0)
