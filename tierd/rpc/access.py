"""Who may call over TCP: bearer tokens, compared in constant time.

A data token allows the data plane, an admin token everything. Whoever comes by a Unix socket was let in by its
mode; a check of health is for probes, which have no token. Watching it takes one of the calls that there can be at
once for as long as the caller likes, and needs a token as any other.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from tierd.rpc.around import Around

HEADER = "authorization"
SCHEME = "Bearer "
OPEN_METHOD = "/grpc.health.v1.Health/Check"
ADMIN_SERVICE = "/tierd.v1.Admin/"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM texts of the server's certificate chain and key; with `client_ca` clients must show a certificate that
    it signed."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None = None

    def credentials(self) -> Any:
        """For gRPC."""
        return grpc.ssl_server_credentials(
            [(self.key, self.certificate)], root_certificates=self.client_ca,
            require_client_auth=self.client_ca is not None,
        )

    def __repr__(self) -> str:
        return f"Tls(client_ca={self.client_ca is not None})"


class Access(Around):
    """Refuses calls without a token that allows them: UNAUTHENTICATED where it is missing or unknown,
    PERMISSION_DENIED where it does not allow the call. Without any tokens every call is let through."""

    def __init__(self, data_tokens: Iterable[bytes] = (), admin_tokens: Iterable[bytes] = ()) -> None:
        super().__init__()
        self._data = tuple(map(_digest, data_tokens))
        self._admin = tuple(map(_digest, admin_tokens))

    def wrap(self, handler: Any, method: str) -> Any:
        needed = (self._data or self._admin) and method != OPEN_METHOD
        return super().wrap(handler, method) if needed else handler

    @asynccontextmanager
    async def around(self, method: str, context: Any) -> AsyncIterator[None]:
        if not is_local(context):
            await self._check(method, context)
        yield

    async def _check(self, method: str, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get(HEADER, "")
        if not isinstance(given, str) or not given.startswith(SCHEME):
            await _refuse(context, "UNAUTHENTICATED", f"a token is needed: {HEADER}: {SCHEME}TOKEN")
        token = _digest(given.removeprefix(SCHEME).encode())
        is_data, is_admin = _is_among(token, self._data), _is_among(token, self._admin)
        if not (is_data or is_admin):
            await _refuse(context, "UNAUTHENTICATED", "the token is none of this daemon's")
        if method.startswith(ADMIN_SERVICE) and not is_admin:
            await _refuse(context, "PERMISSION_DENIED", f"{method.rpartition('/')[2]} needs an admin token")


def is_local(context: Any) -> bool:
    """Whether the caller came by a Unix socket, so is the daemon's user or root."""
    return bool(context.peer().startswith("unix:"))


def _digest(token: bytes) -> bytes:
    """Of equal length whatever the token's, so that comparing tells nothing of it."""
    return hashlib.sha256(token).digest()


def _is_among(token: bytes, known: tuple[bytes, ...]) -> bool:
    """Compares with all, the time not depending on which it is."""
    return sum(hmac.compare_digest(token, one) for one in known) > 0


async def _refuse(context: Any, code: str, details: str) -> NoReturn:
    await context.abort(grpc.StatusCode[code], details)
    raise AssertionError("abort raises")
