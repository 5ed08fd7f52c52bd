"""Errors of the daemon.

    TierdError
    ├── InvalidInput          a field is malformed: names it
    ├── NotFound              no such session, namespace, lease, sequence
    ├── Refused               right in form, wrong now: ended session, stale epoch, layout mismatch
    ├── LimitReached          a named limit
    ├── Unavailable           starting, stopping, tier off
    ├── IllegalTransition     a bug: an event that the table of slot states does not have
    └── SpillError
        ├── SpillDown         the server cannot be reached, or is loading or read-only
        │   └── SpillLate     it has not answered within the deadline of the call
        ├── SpillFull         it refuses writes for want of memory
        ├── SpillRefused      it refuses this one command, for no reason that we know
        ├── BlockVanished     the key does not exist (a miss)
        └── BlockDamaged      the stored value is not what was stored

rpc/status.py turns each into a gRPC status; a test keeps that table complete.
"""

from __future__ import annotations


class TierdError(Exception):
    """Base of all errors that the daemon raises on purpose."""


class InvalidInput(TierdError):
    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


class NotFound(TierdError):
    pass


class Refused(TierdError):
    pass


class LimitReached(TierdError):
    pass


class Unavailable(TierdError):
    pass


class IllegalTransition(TierdError):
    pass


class SpillError(TierdError):
    pass


class SpillDown(SpillError):
    pass


class SpillLate(SpillDown):
    pass


class SpillFull(SpillError):
    pass


class SpillRefused(SpillError):
    pass


class BlockVanished(SpillError):
    pass


class BlockDamaged(SpillError):
    pass
