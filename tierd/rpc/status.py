"""The border between the daemon's errors and gRPC: one table, and the wrappers that every handler wears.

A test holds the table complete over all subclasses of TierdError. What is in no row is a bug: INTERNAL, with
a reference under which the log has the traceback. Nothing maps to UNKNOWN.
"""

from __future__ import annotations

import functools
import hashlib
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, TypeVar

import grpc
import structlog

from tierd.core import errors

log = structlog.get_logger(__name__)

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

DETAILS_CHARS_MAX = 2000
"""gRPC sends the message as a header, and peers limit those to 8 KiB."""

STATUS: dict[type[errors.TierdError], grpc.StatusCode] = {
    errors.InvalidInput: grpc.StatusCode.INVALID_ARGUMENT,
    errors.NotFound: grpc.StatusCode.NOT_FOUND,
    errors.Refused: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LimitReached: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.Unavailable: grpc.StatusCode.UNAVAILABLE,
    errors.SpillError: grpc.StatusCode.UNAVAILABLE,
    errors.SpillDown: grpc.StatusCode.UNAVAILABLE,
    errors.SpillLate: grpc.StatusCode.UNAVAILABLE,
    errors.SpillFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.SpillRefused: grpc.StatusCode.UNAVAILABLE,
    errors.BlockVanished: grpc.StatusCode.NOT_FOUND,
    errors.BlockDamaged: grpc.StatusCode.DATA_LOSS,
    errors.IllegalTransition: grpc.StatusCode.INTERNAL,
    errors.TierdError: grpc.StatusCode.INTERNAL,
}


def status_of(error: Exception) -> grpc.StatusCode:
    """The status of an error: its own row, or that of the kind it is one of; INTERNAL for any other."""
    rows = (STATUS[kind] for kind in type(error).__mro__ if kind in STATUS)
    return next(rows, grpc.StatusCode.INTERNAL)


def answers_errors(handler: F) -> F:
    """Wraps a handler `(self, request, context)`: what it raises becomes the status of the call."""

    @functools.wraps(handler)
    async def wrapped(self: object, request: Any, context: Any) -> Any:
        try:
            return await handler(self, request, context)
        except Exception as error:
            await _abort(context, error, handler.__name__)

    return wrapped  # type: ignore[return-value]


def _reference(call: str, error: Exception) -> str:
    """The same for each occurrence of a fault: of repeated ones not every line is logged."""
    trace = traceback.extract_tb(error.__traceback__)
    where = f"{trace[-1].filename}:{trace[-1].lineno}" if trace else ""
    return hashlib.sha256(f"{call} {type(error).__name__} {where}".encode()).hexdigest()[:12]


async def _abort(context: Any, error: Exception, call: str) -> NoReturn:
    code = status_of(error)
    details = str(error)
    if code is grpc.StatusCode.INTERNAL:
        reference = _reference(call, error)
        log.error("internal_error", call=call, reference=reference, exc_info=error)
        details = f"internal error in {call}; the daemon's log has it under {reference}"
    await context.abort(code, details[:DETAILS_CHARS_MAX])
    raise AssertionError("abort raises")
