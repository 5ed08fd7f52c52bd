"""Commands about sessions: their begin and end, their process, and the page where it says what it looks at."""

from __future__ import annotations

from dataclasses import dataclass

from tierd_client.format import U64Array


@dataclass(frozen=True, slots=True)
class OpenSession:
    session: int
    token: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class BindProcess:
    """The session's process, as the kernel names it (attach socket). start_time from /proc/PID/stat."""

    session: int
    pid: int
    start_time: int


@dataclass(frozen=True, slots=True)
class OpenPage:
    """The session will say in this page, (n, 2) words of shared memory, which slots it looks at (hazards.py)."""

    session: int
    page: U64Array


@dataclass(frozen=True, slots=True)
class EndSession:
    """The session is over. `settled`: its process is dead or vouched for it, so its slots are free; else
    its leases keep their pins and its reservations turn to quarantine until it is settled."""

    session: int
    settled: bool


SessionCommand = OpenSession | BindProcess | OpenPage | EndSession
