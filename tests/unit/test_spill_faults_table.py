"""The table that turns what redis-py, the server and the kernel say into the five spill errors is complete."""

from __future__ import annotations

import inspect
import socket
import ssl

import pytest
import redis.exceptions
from redis._parsers.base import BaseParser

from tierd.adapters.redis_faults import FAULTS, fault_of
from tierd.adapters.resp import ProtocolError, ReplyError
from tierd.core.errors import BlockDamaged, SpillDown, SpillFull, SpillLate, SpillRefused

NEVER_RAISED = {
    # By what the spill does not use: redis-py's own pool after a fork, key space notifications, locks,
    # pub/sub, transactions, scripts, modules, HIMPORT.
    "ChildDeadlockedError", "IncorrectPolicyType", "LockError", "LockNotOwnedError", "PubSubError", "WatchError",
    "ExecAbortError", "NoScriptError", "ModuleError", "NoSuchFieldsetError", "InvalidPipelineStack",
}
REFUSALS = {"RedisError", "ResponseError", "DataError"}
"""Errors without a meaning of their own: the server refused a command."""


def redis_errors() -> list[type[Exception]]:
    members = inspect.getmembers(redis.exceptions, inspect.isclass)
    return [kind for _, kind in members if issubclass(kind, Exception) and kind.__module__ == "redis.exceptions"]


@pytest.mark.parametrize("kind", redis_errors(), ids=lambda kind: kind.__name__)
def test_every_error_of_redis_py(kind: type[Exception]) -> None:
    """Each exception class of redis-py has a row that means more than "refused", or is known not to reach us."""
    if kind.__name__ in NEVER_RAISED:
        return
    rows = [base for base in kind.__mro__ if base in FAULTS]
    assert rows, f"{kind.__name__} has no row: it would leave the store as it is"
    if kind.__name__ not in REFUSALS:
        assert rows[0] is not redis.exceptions.RedisError, f"{kind.__name__} needs a row, or to be named above"


def test_every_code_that_redis_py_knows() -> None:
    """Each error code that redis-py tells apart has a row, but those of transactions and scripts."""
    assert set(BaseParser.EXCEPTION_CLASSES) - {"EXECABORT", "NOSCRIPT"} <= set(FAULTS)


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (OSError("disk"), SpillDown),
        (ConnectionRefusedError(), SpillDown),
        (ConnectionResetError(), SpillDown),
        (BrokenPipeError(), SpillDown),
        (FileNotFoundError(), SpillDown),
        (PermissionError(), SpillDown),
        (TimeoutError(), SpillLate),
        (socket.gaierror(), SpillDown),
        (ssl.SSLError(), SpillDown),
        (ssl.SSLEOFError(), SpillDown),
        (ProtocolError("?"), SpillDown),
        (ReplyError(b"OOM command not allowed"), SpillFull),
        (ReplyError(b"WRONGTYPE Operation against a key"), BlockDamaged),
        (ReplyError(b"SOMETHING new"), SpillRefused),
        (ReplyError(b""), SpillRefused),
        (redis.exceptions.OutOfMemoryError(), SpillFull),
        (redis.exceptions.ResponseError("DB index is out of range"), SpillDown),
        (redis.exceptions.BusyLoadingError(), SpillDown),
    ],
)
def test_meaning(error: Exception, meaning: type[Exception]) -> None:
    """Each failure of the kernel, of TLS and of the server is one of the five errors."""
    assert fault_of(error).error is meaning


@pytest.mark.parametrize("code", ["READONLY", "MASTERDOWN"])
def test_role_changes_drop_the_pool(code: str) -> None:
    """A server that is no primary any more loses all its connections, however we learn of it."""
    kind = BaseParser.EXCEPTION_CLASSES[code]
    assert fault_of(ReplyError(code.encode() + b" x")).new_role
    assert isinstance(kind, type)
    assert fault_of(kind("x")).new_role
    assert sum(fault.new_role for fault in FAULTS.values()) == 4
