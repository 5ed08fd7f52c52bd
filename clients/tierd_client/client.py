"""The client of a tierd daemon: one per process, shared by its threads, or by the tasks of an event loop.

    with Client("unix:///run/tierd/tierd.sock") as client:
        ns = client.namespace(Layout(...))
        ids = chain_ids(ns, token_ids)
        outcomes = ns.put(ids, tensors)
        blocks = ns.get(ids)

    async with AsyncClient("unix:///run/tierd/tierd.sock") as client:
        ns = await client.namespace(Layout(...))
        outcomes = await ns.put(ids, tensors)
        async with ns.acquire(ids) as lease:
            ...

On the daemon's host bytes go through shared memory, elsewhere through gRPC streams. After a restart of the
daemon calls go on; leases taken before it stay readable until they are released.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, TypeVar

from tierd_client.admin import Admin, AdminRoutines, AsyncAdmin
from tierd_client.arguments import address, seconds, text
from tierd_client.chains import ChainsHit
from tierd_client.checks import Checks
from tierd_client.committing import Committer, Flushed
from tierd_client.connection import Connection
from tierd_client.credentials import Credentials, Tls
from tierd_client.direct import Reports
from tierd_client.errors import InvalidArgument
from tierd_client.identity import Identities
from tierd_client.layout import Layout
from tierd_client.lending import AsyncLentPool, Fence, LentPool, Piece, PoolRoutines, SharedRegion
from tierd_client.namespace import AsyncNamespace, Namespace, NamespaceRoutines, lookup_chains
from tierd_client.routine import Routine, Work, described_by, perform, run
from tierd_client.sequences import Sequences
from tierd_client.session import Session

if TYPE_CHECKING:
    from tierd_client.cuda import CudaRegion

MODES = ("auto", "never", "require")

LEAST_RPC_TIMEOUT_S = 0.01
"""Of `rpc_timeout_s`: less is over before any daemon can answer."""

THREADS = 8
"""Of an AsyncClient, for copies: more do not make a memory bus faster."""

T = TypeVar("T")


class BaseClient:
    """What both twins have: a connection, and the sequences that are open."""

    def __init__(
        self, target: str, *, name: str = "", connect_timeout_s: float = 2.0, rpc_timeout_s: float = 5.0,
        shared_memory: Literal["auto", "never", "require"] = "auto",
        verify: Literal["always", "sampled", "never"] = "sampled", token: str = "", tls: Tls | None = None,
        direct_reads: bool = True, cuda_pinned: bool = False,
    ) -> None:
        """`target`: "unix:///path/tierd.sock" or "host:port". `name`: who it is, in the daemon's listings.

        `rpc_timeout_s`: what any RPC may take beyond the wait that it asks for. `shared_memory`: `auto` maps
        where it can, `require` raises SharedMemoryUnavailable where it cannot. `verify`: of the blocks read from
        shared memory, all, one in 64 or none are compared with their checksums; what came by stream always is.
        `token`, `tls`: for TCP, where the daemon wants a bearer token and has a certificate. ConnectFailed when no
        daemon answers, AccessDenied when it wants another token. `direct_reads`: `get`, `get_into` and
        `lookup` use what is mapped without asking the daemon, which hears of accesses twice a second (x86-64
        only). `cuda_pinned`: the daemon's host memory is registered with CUDA in this process, so that tensors of
        leases go to a GPU by DMA; where that is refused they go slower.
        """
        if shared_memory not in MODES:
            raise InvalidArgument(f"shared_memory: {shared_memory!r} is none of {', '.join(MODES)}")
        address(target, "target")
        text(name, "name")
        seconds(connect_timeout_s, "connect_timeout_s")
        seconds(rpc_timeout_s, "rpc_timeout_s", LEAST_RPC_TIMEOUT_S)
        self.checks = Checks(verify)
        self.reports = Reports() if direct_reads else None
        self._cuda_pinned = cuda_pinned
        self.sequences = Sequences()
        self.committer = Committer()
        self.connection = Connection(
            target, client_name=name, connect_timeout_s=connect_timeout_s, rpc_timeout_s=rpc_timeout_s,
            shared_memory=shared_memory, on_session=self._reopen, credentials=Credentials(token, tls))
        self._made()

    def _made(self) -> None:
        """What a twin does when it is made."""
        raise NotImplementedError

    @property
    def maps_memory(self) -> bool:
        """Whether bytes go through shared memory now. Connects, and so may block, where no session lives."""
        return self.connection.current().memory is not None

    @property
    def damaged_blocks(self) -> int:
        """Blocks read so far whose bytes were not those of their checksum. None of them was given out."""
        return self.checks.damaged_blocks

    @property
    def boot_id(self) -> bytes:
        """16 bytes that are new at each start of the daemon, as of the session in use; may block as well."""
        return bytes(self.connection.current().info.boot_id)

    async def _flush_accesses(self) -> int:
        if self.reports is None:
            return 0
        await self.reports.flush()
        return self.reports.waiting

    def _close(self) -> None:
        if not self.connection.is_inherited:
            self.committer.close(self.connection.rpc_timeout_s)
            if self.reports is not None:
                self.reports.close()
        self.connection.close()

    def _reopen(self, session: Session) -> None:
        """A running request survives the daemon: its blocks are pinned again."""
        if self._cuda_pinned and session.memory is not None:
            session.memory.pin()
        for running in self.sequences.all_open():
            run(running.namespace.open_sequence(session, running))


class Client(BaseClient):
    """Connects when it is made. Belongs to the process that made it; ForkedClientError in a child."""

    def _made(self) -> None:
        self.admin = Admin(AdminRoutines(self.connection), run)
        self.connection.current()

    def namespace(self, layout: Layout, name: str = "") -> Namespace:
        """The blocks of a layout. A `name` is bound to it; raises FailedPrecondition naming the field in which
        the layout differs from the one that the name stands for."""
        routines = NamespaceRoutines(self, layout, name)
        run(routines.register())
        return Namespace(routines, run)

    @described_by(lookup_chains)
    def lookup_chains(self, chains: Iterable[tuple[Namespace, Identities]]) -> ChainsHit:
        return run(lookup_chains(self, chains))

    def lend(
        self, regions: Iterable[SharedRegion | CudaRegion], pieces: Iterable[Piece], pages: int,
        fence: Fence | None = None,
    ) -> LentPool:
        """Lends pages of this process's own memory to the daemon (tierd_client/lending.py). Raises
        FailedPrecondition where lending is off or this client has no shared memory with the daemon,
        InvalidArgument naming what does not fit, Unavailable where the daemon cannot open the memory."""
        routines = PoolRoutines(self.connection, regions, pieces, pages, fence)
        run(routines.open())
        return LentPool(routines, run)

    def flush(self, timeout_s: float = 5.0) -> Flushed:
        """Waits until all blocks of `put(..., wait=False)` are committed; what became of them since the last call.
        TimedOut when that takes longer; nothing is lost by it."""
        return run(_flushed(self.committer, timeout_s))

    def flush_accesses(self) -> int:
        """Tells the daemon now of the blocks that were read without it; else it hears twice a second, when a
        sequence closes, and when the client does. Returns how many accesses wait still: no daemon answered."""
        return run(self._flush_accesses())

    def close(self) -> None:
        """Gives the session up; idempotent. Leases still out keep their slots until this process ends."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.close()


class AsyncClient(BaseClient):
    """Client for an event loop. Connects in `async with`, in `connect`, or with the first call.

    Belongs to the process that made it, as Client does, and is used by one event loop at a time. Copies of
    blocks run on threads of its own. A cancelled call comes back when nothing of it touches memory any more.
    """

    def _made(self) -> None:
        self.admin = AsyncAdmin(AdminRoutines(self.connection), self._perform)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tierd-client")

    async def connect(self) -> Self:
        """Raises ConnectFailed when no daemon answers within the connect timeout."""
        await self._perform(_connected(self.connection))
        return self

    @described_by(Client.namespace)
    async def namespace(self, layout: Layout, name: str = "") -> AsyncNamespace:
        routines = NamespaceRoutines(self, layout, name)
        await self._perform(routines.register())
        return AsyncNamespace(routines, self._perform)

    @described_by(lookup_chains)
    async def lookup_chains(self, chains: Iterable[tuple[AsyncNamespace, Identities]]) -> ChainsHit:
        return await self._perform(lookup_chains(self, chains))

    @described_by(Client.lend)
    async def lend(
        self, regions: Iterable[SharedRegion | CudaRegion], pieces: Iterable[Piece], pages: int,
        fence: Fence | None = None,
    ) -> AsyncLentPool:
        routines = PoolRoutines(self.connection, regions, pieces, pages, fence)
        await self._perform(routines.open())
        return AsyncLentPool(routines, self._perform)

    @described_by(Client.flush)
    async def flush(self, timeout_s: float = 5.0) -> Flushed:
        return await self._perform(_flushed(self.committer, timeout_s))

    @described_by(Client.flush_accesses)
    async def flush_accesses(self) -> int:
        return await self._perform(self._flush_accesses())

    @described_by(Client.close)
    async def close(self) -> None:
        if not self.connection.is_inherited:  # a forked child has no event loop to wait on
            await asyncio.shield(self._perform(_closed(self._close)))

    async def _perform(self, routine: Routine[T]) -> T:
        return await perform(routine, self._threads)

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        await self.close()


async def _flushed(committer: Committer, timeout_s: float) -> Flushed:
    seconds(timeout_s, "timeout_s")
    report: Flushed = await Work(lambda: committer.flush(timeout_s))
    return report


async def _connected(connection: Connection) -> None:
    await Work(connection.current)


async def _closed(close: Callable[[], None]) -> None:
    await Work(close)
