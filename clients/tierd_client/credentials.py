"""What a client shows and asks to be shown over TCP: a bearer token, and TLS. Unix sockets need neither."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc

from tierd_client.errors import InvalidArgument

_TOKEN = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True, slots=True, repr=False)
class Tls:
    """PEM texts. `roots`: whom to believe the daemon's certificate, None for the system's authorities.
    `certificate` and `key`: the client's own, where the daemon wants one."""

    roots: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Credentials:
    """Raises InvalidArgument naming what is wrong; neither token nor key appears in any message."""

    token: str = ""
    tls: Tls | None = None

    def __post_init__(self) -> None:
        if self.token and not _TOKEN.fullmatch(self.token):
            raise InvalidArgument("token: not 1 to 512 printable characters without spaces")
        if self.tls is not None and (self.tls.certificate is None) != (self.tls.key is None):
            raise InvalidArgument("tls: a certificate and its key are given together")

    def open_channel(self, target: str, options: Sequence[tuple[str, Any]]) -> Any:
        """A channel that uses them; connects with the first call."""
        if self.tls is None:
            channel = grpc.insecure_channel(target, options=options)
        else:
            shown = grpc.ssl_channel_credentials(self.tls.roots, self.tls.key, self.tls.certificate)
            channel = grpc.secure_channel(target, shown, options=options)
        return grpc.intercept_channel(channel, _Bearer(self.token)) if self.token else channel


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Sequence[tuple[str, str]]
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Bearer(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """Adds the token to every call. gRPC's own call credentials would refuse a connection without TLS."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def _add(self, continuation: Callable[[Any, Any], Any], details: Any, request: Any) -> Any:
        metadata = [*(details.metadata or ()), self._header]
        return continuation(_Details(
            details.method, details.timeout, metadata, details.credentials, details.wait_for_ready,
            details.compression), request)

    intercept_unary_unary = intercept_unary_stream = intercept_stream_unary = intercept_stream_stream = _add
