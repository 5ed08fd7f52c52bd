"""The gRPC server: services, health, reflection, and the addresses that it listens on."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from tierd.app.service import Service
from tierd.app.streams import STREAM_IDLE_S
from tierd.core.messages import Tier
from tierd.rpc import blocks
from tierd.rpc.access import Access, Tls
from tierd.rpc.admin import AdminServicer
from tierd.rpc.arriving import Arriving
from tierd.rpc.lane import Lane
from tierd.rpc.lending import LendingServicer
from tierd.rpc.measured import Measured
from tierd_client.v1 import (
    admin_pb2,
    admin_pb2_grpc,
    lending_pb2,
    lending_pb2_grpc,
)

log = structlog.get_logger(__name__)

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
UNIX_PREFIX = "unix://"
UNIX_PATH_BYTES_MAX = 107
PROBE_TIMEOUT_S = 1.0

HEALTH_OF = {Tier.HBM: "tierd.hbm", Tier.HOST: "tierd.host", Tier.SPILL: "tierd.spill"}
"""Health services of the tiers; the daemon as a whole is "" and its services."""

_NAMES = (
    blocks.SERVICE,
    lending_pb2.DESCRIPTOR.services_by_name["Lending"].full_name,
    admin_pb2.DESCRIPTOR.services_by_name["Admin"].full_name,
)

OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),  # a second daemon on the port must fail, not share it
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
)


class CannotListen(OSError):
    """An address cannot be listened on; the message says which and why."""


class _ServedByName:
    """The server for generated code, whose methods are looked up by name when they are called.

    Generated code would also register each method. grpc.aio keeps a task waiting for each registered one and
    collects all of them anew, twice for every call: 0.1 ms with the methods of this daemon.
    """

    def __init__(self, server: Any) -> None:
        self.add_generic_rpc_handlers = server.add_generic_rpc_handlers

    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        """Leaves them to their names."""


class RpcServer:
    """The server of one daemon. Make, start and stop it on the event loop."""

    def __init__(
        self, service: Service, addresses: Sequence[str], *, concurrent_rpcs_max: int,
        access: Access | None = None, tls: Tls | None = None, request_within_s: float = STREAM_IDLE_S,
    ) -> None:
        """`addresses`: `unix:///path` (mode 0600) or `host:port`. `concurrent_rpcs_max` counts each session's
        own stream too; calls beyond it are RESOURCE_EXHAUSTED, `access`, `tls` and `request_within_s`, in which a
        call's request must come, concern TCP alone. Raises CannotListen."""
        self._service = service
        self._tls = tls
        # Who comes by a Unix socket is the daemon's user, and the deadline costs a tenth of a short call.
        over_tcp = any(not address.startswith(UNIX_PREFIX) for address in addresses)
        arriving = [Arriving(request_within_s)] if over_tcp else []
        measured, servicer = Measured(service.measures), blocks.BlocksServicer(service)
        self.lane = Lane(servicer, measured)
        self._server = grpc.aio.server(
            options=OPTIONS, maximum_concurrent_rpcs=concurrent_rpcs_max,
            interceptors=[measured, *([access] if access else []), *arriving],
        )
        self._health = health_aio.HealthServicer()
        served = _ServedByName(self._server)
        blocks.add_to_server(servicer, served)
        lending_pb2_grpc.add_LendingServicer_to_server(LendingServicer(service), served)
        admin_pb2_grpc.add_AdminServicer_to_server(AdminServicer(service), served)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, served)
        names = (*_NAMES, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server)
        self.addresses = tuple(self._listen(address) for address in addresses)

    async def start(self) -> None:
        """Serves from now on; the tiers' health is what the service says of them."""
        for tier in HEALTH_OF:
            await self.set_health(tier, self._service.tier_state(tier).serving)
        for name in ("", *_NAMES):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()

    async def set_health(self, tier: Tier, serving: bool) -> None:
        """Tells the health service whether a tier serves."""
        status = health_pb2.HealthCheckResponse
        await self._health.set(HEALTH_OF[tier], status.SERVING if serving else status.NOT_SERVING)

    async def stop(self, grace_s: float) -> None:
        """Says NOT_SERVING, closes the sessions' streams, lets calls end for `grace_s`, cancels the rest."""
        await self._health.enter_graceful_shutdown()
        self._service.sessions.hang_up()
        await self._server.stop(grace_s)

    def _listen(self, address: str) -> str:
        """Binds; returns the address, with the port that was chosen when it was 0."""
        if address.startswith(UNIX_PREFIX):
            path = Path(address.removeprefix(UNIX_PREFIX))
            _check_unix_path(path)
            with _umask(0o177):
                self._bind(address)
            return address
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise CannotListen(f"{address}: neither unix:///path nor host:port")
        return f"{host}:{self._bind(address)}"

    def _bind(self, address: str) -> int:
        try:
            if self._tls is not None and not address.startswith(UNIX_PREFIX):
                return int(self._server.add_secure_port(address, self._tls.credentials()))
            return int(self._server.add_insecure_port(address))
        except RuntimeError as error:
            raise CannotListen(f"{address}: taken, or not an address of this machine") from error


def _check_unix_path(path: Path) -> None:
    """gRPC removes a socket that it finds, also a living daemon's: so ask first whether somebody answers."""
    if not path.is_absolute():
        raise CannotListen(f"{UNIX_PREFIX}{path}: the path must be absolute")
    if len(os.fsencode(path)) > UNIX_PATH_BYTES_MAX:
        raise CannotListen(f"{path}: a socket's path has at most {UNIX_PATH_BYTES_MAX} bytes")
    if not path.parent.is_dir():
        raise CannotListen(f"{path}: its directory does not exist")
    if not path.exists():
        return
    if not path.is_socket():
        raise CannotListen(f"{path}: there is a file that is not a socket")
    if _answers(path):
        raise CannotListen(f"{path}: taken, a process is listening there")


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(PROBE_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
        return True


@contextmanager
def _umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)
