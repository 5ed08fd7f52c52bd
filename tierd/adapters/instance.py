"""The state directory: the instance id that lives in it, under a lock that one daemon holds."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from tierd.core.errors import InvalidInput, Unavailable

INSTANCE_BYTES = 16


class StateDirBusy(Unavailable):
    """Another daemon runs on the state directory."""


class StateDirectory:
    """A directory that belongs to one daemon at a time.

    Its file `instance` holds the instance id and the pid of the last owner as text; the lock on it (flock)
    is the ownership, so it ends with the process, however that dies.
    """

    def __init__(self, path: Path, lock_fd: int, instance: bytes) -> None:
        self.path = path
        self.instance = instance
        self._lock_fd = lock_fd

    @classmethod
    def claim(cls, path: Path) -> StateDirectory:
        """Takes the directory, making it (mode 0700) if need be. Raises StateDirBusy, InvalidInput, OSError."""
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(path)
            fd = os.open(path / "instance", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise InvalidInput("state_dir", f"{path} cannot be made or written to: {error.strerror}") from error
        try:
            _lock(fd, path)
            instance = _read_instance(fd) or secrets.token_bytes(INSTANCE_BYTES)
            _write_instance(fd, instance)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, instance)

    def secret(self, name: str) -> bytes:
        """16 random bytes in a file of that name, made on first use and the same from then on."""
        path = self.path / name
        with contextlib.suppress(FileNotFoundError, ValueError):
            found = bytes.fromhex(path.read_text().strip())
            if len(found) == INSTANCE_BYTES:
                return found
        made = secrets.token_bytes(INSTANCE_BYTES)
        self._write(name, made.hex())
        return made

    def count(self, name: str) -> int:
        """The number kept under that name; 0 before the first, and for a file that is none."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return max(0, int((self.path / name).read_text()))
        return 0

    def keep_count(self, name: str, number: int) -> None:
        """Keeps a number under that name for the next daemon. OSError."""
        self._write(name, str(number))

    def numbers(self, name: str) -> dict[int, int]:
        """Positive numbers kept under that name; none before the first, and for a file that is no such thing."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            pairs = [line.split() for line in (self.path / name).read_text().splitlines()]
            found = {int(key): int(number) for key, number in pairs}
            return found if all(key > 0 and number > 0 for key, number in found.items()) else {}
        return {}

    def keep_numbers(self, name: str, numbers: Mapping[int, int]) -> None:
        """Keeps numbers under that name for the next daemon. OSError."""
        self._write(name, "\n".join(f"{key} {number}" for key, number in numbers.items()))

    def _write(self, name: str, text: str) -> None:
        path = self.path / name
        fresh = path.with_suffix(".new")
        fresh.write_text(text + "\n")
        fresh.replace(path)

    def release(self) -> None:
        """Gives the directory up; idempotent. The id stays for the next daemon."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1


def last_owner(path: Path) -> tuple[bytes | None, int | None]:
    """Instance id and pid of the daemon that took the directory last, without taking it; None where unknown."""
    try:
        words = (path / "instance").read_text(errors="replace").split()
        return bytes.fromhex(words[0]), int(words[1])
    except (OSError, IndexError, ValueError):
        return None, None


def _check_private(path: Path) -> None:
    """Another user who can write here could put his sockets in the place of ours, and links to what we may write.
    The default lies in /tmp where there is no runtime directory: there anybody can be the first to make it."""
    status = path.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise InvalidInput("state_dir", f"{path} belongs to user {status.st_uid}, who could change what lies there")
    if status.st_mode & stat.S_IWOTH:
        raise InvalidInput("state_dir", f"{path} can be written by every user: {stat.filemode(status.st_mode)}")


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(fd, 256, 0).decode(errors="replace").split()[1:2]
        who = f" (pid {owner[0]})" if owner else ""
        raise StateDirBusy(
            f"state directory {path} is in use by another tierd{who}; give this one its own --state-dir"
        ) from None


def _read_instance(fd: int) -> bytes | None:
    """The id of an earlier daemon; None when the file is new or was torn by a crash."""
    words = os.pread(fd, 256, 0).split()
    try:
        instance = bytes.fromhex(words[0].decode())
    except (IndexError, ValueError):
        return None
    return instance if len(instance) == INSTANCE_BYTES else None


def _write_instance(fd: int, instance: bytes) -> None:
    line = f"{instance.hex()} {os.getpid()}\n".encode()
    os.pwrite(fd, line, 0)
    os.ftruncate(fd, len(line))
