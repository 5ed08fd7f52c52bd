"""Errors of the client.

    TierdClientError
    ├── InvalidArgument       (ValueError)       a malformed argument: names it
    ├── NotFound              (LookupError)      no such namespace, lease or sequence
    ├── FailedPrecondition                       right in form, wrong now: stale epoch, layout mismatch
    │   └── AccessDenied                         the token is missing, unknown, or does not allow the call
    ├── LimitReached                             a named limit of the daemon
    ├── Unavailable           (ConnectionError)  the daemon is down, starting, stopping, or a tier is off
    │   └── ConnectFailed                        no daemon answered within the connect timeout
    ├── TimedOut              (TimeoutError)     no answer by the deadline
    ├── SharedMemoryUnavailable                  shared_memory="require", and it cannot be mapped
    ├── ForkedClientError                        a client of the parent process, used after a fork
    ├── ClientClosed                             used after close()
    └── BrokenPeer                               the answer breaks the protocol, or the daemon has a bug

What a call may expect (a miss, a full tier) is an outcome per identity, never an error.
"""

from __future__ import annotations


class TierdClientError(Exception):
    """Base of all errors that the client raises on purpose."""


class InvalidArgument(TierdClientError, ValueError):
    pass


class NotFound(TierdClientError, LookupError):
    pass


class FailedPrecondition(TierdClientError):
    pass


class AccessDenied(FailedPrecondition):
    pass


class LimitReached(TierdClientError):
    pass


class Unavailable(TierdClientError, ConnectionError):
    pass


class ConnectFailed(Unavailable):
    pass


class TimedOut(TierdClientError, TimeoutError):
    pass


class SharedMemoryUnavailable(TierdClientError):
    pass


class ForkedClientError(TierdClientError):
    pass


class ClientClosed(TierdClientError):
    pass


class BrokenPeer(TierdClientError):
    pass


STATUS_ERRORS: dict[str, type[TierdClientError]] = {
    "INVALID_ARGUMENT": InvalidArgument,
    "OUT_OF_RANGE": InvalidArgument,
    "NOT_FOUND": NotFound,
    "ALREADY_EXISTS": FailedPrecondition,
    "FAILED_PRECONDITION": FailedPrecondition,
    "PERMISSION_DENIED": AccessDenied,
    "UNAUTHENTICATED": AccessDenied,
    "RESOURCE_EXHAUSTED": LimitReached,
    "UNAVAILABLE": Unavailable,
    "CANCELLED": Unavailable,
    "ABORTED": Unavailable,
    "DEADLINE_EXCEEDED": TimedOut,
    "UNIMPLEMENTED": BrokenPeer,
    "INTERNAL": BrokenPeer,
    "DATA_LOSS": BrokenPeer,
    "UNKNOWN": BrokenPeer,
}
"""Which error each gRPC status is, by the status's name; OK has none. A test keeps it complete."""


def error_of_status(status: str, text: str) -> TierdClientError:
    """The error for a gRPC status other than OK."""
    return STATUS_ERRORS.get(status, BrokenPeer)(text or status)
