"""The client of a tierd daemon: one per process, shared by its threads.

    with Client("unix:///run/tierd/tierd.sock") as client:
        ns = client.namespace(Layout(...))
        ids = chain_ids(ns, token_ids)
        outcomes = ns.put(ids, tensors)
        blocks = ns.get(ids)

On the daemon's host bytes go through shared memory, elsewhere through gRPC streams. After a restart of the
daemon calls go on; leases taken before it stay readable until they are released.
"""

from __future__ import annotations

from types import TracebackType
from typing import Literal, Self

from tierd_client.admin import Admin
from tierd_client.connection import Connection
from tierd_client.errors import InvalidArgument
from tierd_client.layout import Layout
from tierd_client.namespace import Namespace
from tierd_client.sequences import Sequences
from tierd_client.session import Session

MODES = ("auto", "never", "require")


class Client:
    """Connects when it is made. Belongs to the process that made it; ForkedClientError in a child."""

    def __init__(
        self, target: str, *, name: str = "", connect_timeout_s: float = 2.0, rpc_timeout_s: float = 5.0,
        shared_memory: Literal["auto", "never", "require"] = "auto", verify_reads: bool = False,
    ) -> None:
        """`target`: "unix:///path/tierd.sock" or "host:port". `name`: who it is, in the daemon's listings.

        `rpc_timeout_s`: what any RPC may take beyond the wait that it asks for. `shared_memory`: `auto` maps
        where it can, `require` raises SharedMemoryUnavailable where it cannot. `verify_reads`: also compare
        what is read from shared memory with its checksum. Raises ConnectFailed when no daemon answers.
        """
        if shared_memory not in MODES:
            raise InvalidArgument(f"shared_memory: {shared_memory!r} is none of {', '.join(MODES)}")
        self.verify_reads = verify_reads
        self.sequences = Sequences()
        self.connection = Connection(
            target, client_name=name, connect_timeout_s=connect_timeout_s, rpc_timeout_s=rpc_timeout_s,
            shared_memory=shared_memory, on_session=self._reopen)
        self.admin = Admin(self.connection)

    def namespace(self, layout: Layout, name: str = "") -> Namespace:
        """The blocks of a layout. A `name` is bound to it; raises FailedPrecondition naming the field in which
        the layout differs from the one that the name stands for."""
        return Namespace(self, layout, name)

    @property
    def maps_memory(self) -> bool:
        """Whether bytes go through shared memory now."""
        return self.connection.current().memory is not None

    @property
    def boot_id(self) -> bytes:
        """16 bytes that are new at each start of the daemon, as of the session in use."""
        return bytes(self.connection.current().info.boot_id)

    def close(self) -> None:
        """Gives the session up; idempotent. Leases still out keep their slots until this process ends."""
        self.connection.close()

    def _reopen(self, session: Session) -> None:
        """A running request survives the daemon: its blocks are pinned again."""
        for sequence in self.sequences.all_open():
            sequence.namespace.open_sequence(session, sequence)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()
