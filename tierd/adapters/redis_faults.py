"""What failures of a Redis or Valkey server, or of the way to it, mean to the daemon: one table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import redis.exceptions as rx

from tierd.adapters.resp import ProtocolError, ReplyError
from tierd.core.errors import BlockDamaged, SpillDown, SpillError, SpillFull, SpillLate, SpillRefused


@dataclass(frozen=True, slots=True)
class Fault:
    """`new_role`: the server is no primary any more, its connections are of no use. `elsewhere`: another server
    may have taken its place, so that whoever can ask (Sentinel, a cluster) asks."""

    error: type[SpillError]
    reason: str
    new_role: bool = False
    elsewhere: bool = False


_UNREACHABLE = Fault(SpillDown, "the server cannot be reached", elsewhere=True)
_LATE = Fault(SpillLate, "no answer within the deadline", elsewhere=True)
_LOADING = Fault(SpillDown, "the server is loading its data", elsewhere=True)
_READ_ONLY = Fault(SpillDown, "the server is a read-only replica", new_role=True, elsewhere=True)
_MASTER_DOWN = Fault(SpillDown, "the server has lost its primary", new_role=True, elsewhere=True)
_LOGIN = Fault(SpillDown, "the server refuses user or password")
_FORBIDDEN = Fault(SpillDown, "the user may not run this command or touch these keys")
_REDIRECTED = Fault(SpillDown, "the server is part of a cluster: its URL begins with redis+cluster://")
_ONE_KEY = Fault(SpillDown, "the cluster refuses a command of several keys")
_CLUSTER_DOWN = Fault(SpillDown, "the cluster is down", elsewhere=True)
_REFUSED = Fault(SpillRefused, "the server refuses the command")
_NO_CONNECTION = Fault(SpillDown, "the server refuses the connection")
_OUT_OF_MEMORY = Fault(SpillFull, "the server has no memory left (maxmemory)")
_NOT_REDIS = Fault(SpillDown, "what answers does not speak the protocol")

FAULTS: Mapping[type[Exception] | str, Fault] = {
    # Error replies, by their first word; any other word counts as ERR.
    "ERR": _REFUSED,
    "OOM": _OUT_OF_MEMORY,
    "LOADING": _LOADING,
    "READONLY": _READ_ONLY,
    "MASTERDOWN": _MASTER_DOWN,
    "NOAUTH": _LOGIN,
    "WRONGPASS": _LOGIN,
    "NOPERM": _FORBIDDEN,
    "MOVED": _REDIRECTED,
    "ASK": _REDIRECTED,
    "TRYAGAIN": _ONE_KEY,
    "CROSSSLOT": _ONE_KEY,
    "CLUSTERDOWN": _CLUSTER_DOWN,
    "MISCONF": Fault(SpillDown, "the server refuses writes because it cannot save its data"),
    "NOREPLICAS": Fault(SpillDown, "the server refuses writes because it has too few replicas"),
    "BUSY": Fault(SpillDown, "the server is busy with a script"),
    "WRONGTYPE": Fault(BlockDamaged, "the key holds something that is not a block"),
    # Exceptions, by the nearest class. Connections are all that redis-py does for us.
    rx.RedisError: _NO_CONNECTION,
    rx.ConnectionError: _UNREACHABLE,
    rx.TimeoutError: _LATE,
    rx.AuthenticationError: _LOGIN,
    rx.AuthorizationError: _LOGIN,
    rx.AuthenticationWrongNumberOfArgsError: _LOGIN,
    rx.ExternalAuthProviderError: _LOGIN,
    rx.NoPermissionError: _FORBIDDEN,
    rx.BusyLoadingError: _LOADING,
    rx.ReadOnlyError: _READ_ONLY,
    rx.MasterDownError: _MASTER_DOWN,
    rx.OutOfMemoryError: _OUT_OF_MEMORY,
    rx.ClusterError: _CLUSTER_DOWN,
    rx.ClusterDownError: _CLUSTER_DOWN,
    rx.ClusterCrossSlotError: _ONE_KEY,
    rx.AskError: _REDIRECTED,
    rx.TryAgainError: _ONE_KEY,
    rx.RedisClusterException: _CLUSTER_DOWN,
    rx.InvalidResponse: _NOT_REDIS,
    ProtocolError: _NOT_REDIS,
    TimeoutError: _LATE,
    OSError: _UNREACHABLE,
}

FAILURES: tuple[type[Exception], ...] = (ReplyError, *(key for key in FAULTS if isinstance(key, type)))


def fault_of(error: Exception) -> Fault:
    """The row of the table that an error belongs to."""
    if isinstance(error, ReplyError):
        return FAULTS.get(error.code, _REFUSED)
    return next(FAULTS[kind] for kind in type(error).__mro__ if kind in FAULTS)


def spill_error(place: object, error: Exception) -> SpillError:
    """The failure in the words of the daemon; `place` is the server that it concerns."""
    fault = fault_of(error)
    return fault.error(f"{place}: {fault.reason} ({error})")


@contextmanager
def in_our_words(place: object) -> Iterator[None]:
    """Failures to find the way to a server are raised as SpillErrors. One that refuses to tell it is down."""
    try:
        yield
    except FAILURES as error:
        found = spill_error(place, error)
        raise (SpillDown(str(found)) if isinstance(found, SpillRefused) else found) from error
