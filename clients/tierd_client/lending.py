"""Lending a worker's own KV pages: the daemon knows what lies in them and copies it from there when it is wanted
elsewhere, without the worker's help.

    region = SharedRegion(kv_bytes)                        # or CudaRegion(tensor) for memory on a GPU
    kv = region.array.view(np.float16).reshape(2, pages, block_tokens, heads, head_dim)
    pool = client.lend([region], pieces_of([kv], page_axis=1), pages)
    ns.adopt(pool, ids, pages=[17, 18])                    # blocks of these ids lie in pages 17 and 18
    pool.withdraw([17], save=True)                         # page 17 is the worker's again

A page that is adopted is only read, by the daemon too, until `withdraw` says WITHDRAWN or UNSAVED. After a
restart of the daemon nothing is lent: what the worker still has it adopts again.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import select
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tierd_client.deadline import Deadline
from tierd_client.errors import BrokenPeer, FailedPrecondition, InvalidArgument, NotFound, TierdClientError
from tierd_client.format import U8Array, U64Array
from tierd_client.outcomes import AdoptOutcome, WithdrawOutcome, outcomes_of
from tierd_client.routine import Perform, Work, awaiting, blocking
from tierd_client.session import Session
from tierd_client.v1 import lending_pb2

if TYPE_CHECKING:
    from tierd_client.connection import Connection
    from tierd_client.cuda import CudaRegion

FENCE_BYTES = 8


class SharedRegion:
    """Zeroed memory of this process that a daemon on this host can map: an anonymous file, sealed against a change
    of its size. `array`: all its bytes, writable. Not inherited by a fork."""

    def __init__(self, size: int) -> None:
        """`size` in bytes, at least 1. Raises InvalidArgument, or OSError when there is no room."""
        if size < 1:
            raise InvalidArgument(f"size: {size} bytes")
        self.size = size
        self.descriptor = os.memfd_create("tierd-lent", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self.descriptor, 0, size)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            mapping = mmap.mmap(self.descriptor, size)
        except BaseException:
            os.close(self.descriptor)
            raise
        mapping.madvise(mmap.MADV_DONTFORK)
        self.array: U8Array = np.frombuffer(mapping, np.uint8)

    def close(self) -> None:
        """Gives the file up; idempotent. Memory goes with the last array over it, here and in the daemon."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class Fence:
    """A number in shared memory that only grows. A page adopted with a value is not read before the fence reached
    it: the worker adopts pages whose kernels still run, and says later that they are done."""

    def __init__(self) -> None:
        self.region = SharedRegion(FENCE_BYTES)
        self._word: U64Array = self.region.array.view("<u8")

    @property
    def value(self) -> int:
        return int(self._word[0])

    def reach(self, value: int) -> None:
        """All that was to be written before `value` is written. Seen from the host: wait for the event of a GPU's
        kernels first. A smaller value than before changes nothing."""
        if value > self.value:
            self._word[0] = value


@dataclass(frozen=True, slots=True)
class Piece:
    """Where a part of each page lies: page p at `offset + p * stride` of region `region`, so many bytes `size`."""

    region: int
    offset: int
    stride: int
    size: int


def pieces_of(tensors: Sequence[Any], page_axis: int) -> list[Piece]:
    """Pieces of pages in tensors (numpy or torch), of which tensor i is all of region i: one for each index before
    the page axis, in order. A block is then, tensor by tensor, what lies behind that axis at its page.

    Raises InvalidArgument where that is not contiguous.
    """
    pieces: list[Piece] = []
    for region, tensor in enumerate(tensors):
        shape, strides = _geometry(tensor)
        if not 0 <= page_axis < len(shape):
            raise InvalidArgument(f"page_axis: {page_axis} of a tensor of shape {shape}")
        size = strides[page_axis]
        expected = int(np.prod(shape[page_axis + 1 :], dtype=np.int64)) * strides[-1]
        if page_axis + 1 < len(shape) and size != expected:
            raise InvalidArgument(f"tensors[{region}]: pages of {expected} bytes are {size} bytes apart")
        for index in np.ndindex(*shape[:page_axis]):
            offset = sum(i * stride for i, stride in zip(index, strides, strict=False))
            pieces.append(Piece(region, offset, size, size))
    return pieces


def _geometry(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in bytes."""
    if isinstance(tensor, np.ndarray):
        return tuple(tensor.shape), tuple(tensor.strides)
    return tuple(tensor.shape), tuple(stride * tensor.element_size() for stride in tensor.stride())


@dataclass(frozen=True, slots=True)
class _Lender:
    """A session in which the pool is lent, its number there, and a pidfd of the daemon (-1: not to be had)."""

    session: Session
    number: int
    daemon: int

    def daemon_is_dead(self) -> bool:
        return self.daemon >= 0 and bool(select.select([self.daemon], [], [], 0)[0])


class PoolRoutines:
    """One pool over all sessions: lent anew in each."""

    def __init__(
        self, connection: Connection, regions: Iterable[SharedRegion | CudaRegion], pieces: Iterable[Piece],
        pages: int, fence: Fence | None,
    ) -> None:
        self.connection = connection
        self.regions = list(regions)
        self.pieces = list(pieces)
        self.pages = pages
        self.fence = fence
        self._lenders: list[_Lender] = []

    async def open(self) -> None:
        """Lends it to the daemon in use."""
        await self.connection.make(self.number)

    async def number(self, session: Session) -> int:
        """What the pool is in a session; lends it there when it is not yet."""
        known = self._number_in(session)
        if known is not None:
            return known
        if session.memory is None:
            raise FailedPrecondition("lending needs shared memory with the daemon: this client uses streams")
        numbers = await Work(lambda: self._pass_regions(session))
        pieces = [lending_pb2.LentPiece(region=one.region, offset=one.offset, stride=one.stride, bytes=one.size)
                  for one in self.pieces]
        reply = await session.call("Lend", lending_pb2.LendRequest(
            session=session.id, regions=[_wire(one, numbers) for one in self.regions], pieces=pieces,
            pages=self.pages, fence_region=numbers[id(self.fence.region)] if self.fence else 0))
        # Two threads may both have come so far: pages adopted in either pool are withdrawn from both.
        self._lenders.append(_Lender(session, int(reply.pool), session.memory.daemon_pidfd()))
        return int(reply.pool)

    async def withdraw(
        self, pages: Sequence[int] = (), save: bool = False, timeout_s: float = 2.0,
    ) -> dict[int, WithdrawOutcome]:
        """Takes pages back; without `pages` all that are lent: the pool takes no more, and ends when none is left.
        `save`: what lies nowhere else is copied to host first.

        A page is the worker's own when its outcome is WITHDRAWN or UNSAVED. When this raises, which it does when a
        daemon that may still live does not answer, none is.
        """
        wait = Deadline(timeout_s)
        outcomes = dict.fromkeys(pages, WithdrawOutcome.WITHDRAWN)
        for lender in list(self._lenders):
            for page, outcome in (await self._withdraw(lender, pages, save, wait)).items():
                outcomes[page] = max(outcome, outcomes.get(page, WithdrawOutcome.WITHDRAWN))
        return outcomes

    async def close(self, save: bool = False, timeout_s: float = 2.0) -> bool:
        """Takes all pages back. False: some are still being read; ask again."""
        return WithdrawOutcome.PENDING not in (await self.withdraw((), save, timeout_s)).values()

    async def _withdraw(
        self, lender: _Lender, pages: Sequence[int], save: bool, wait: Deadline,
    ) -> dict[int, WithdrawOutcome]:
        """From one session: the one in use, or one that was lost while its daemon may still live."""
        request = lending_pb2.WithdrawRequest(
            session=lender.session.id, pool=lender.number, pages=pages, save=save, timeout_ms=wait.left_ms())
        try:
            if lender.daemon_is_dead():
                raise NotFound("the daemon has ended, and with it all that it was lent")
            reply = await self.connection.call("Withdraw", request, wait.left_s())
        except TierdClientError as error:
            # NotFound: the session has ended, or it was another daemon's.
            if not isinstance(error, NotFound) and not lender.daemon_is_dead():
                raise
            self._forget(lender)
            return {}
        found = outcomes_of(WithdrawOutcome, reply.outcomes)
        if len(found) != len(reply.pages):
            raise BrokenPeer("Withdraw: the outcomes are not parallel to the pages")
        if not pages and WithdrawOutcome.PENDING not in found:
            self._forget(lender)
        return dict(zip(reply.pages, found, strict=True))

    def _number_in(self, session: Session) -> int | None:
        return next((lender.number for lender in self._lenders if lender.session is session), None)

    def _pass_regions(self, session: Session) -> dict[int, int]:
        """Gives the daemon every region of shared memory; its number there by the identity of the region here."""
        regions = [*self.regions, *([self.fence.region] if self.fence else [])]
        memory, wait = session.memory, Deadline(session.rpc_timeout_s)
        assert memory is not None, "asked before"
        shared = [region for region in regions if isinstance(region, SharedRegion)]
        return {id(region): memory.pass_region(session.id, region.descriptor, wait) for region in shared}

    def _forget(self, lender: _Lender) -> None:
        with contextlib.suppress(ValueError):  # another thread was faster
            self._lenders.remove(lender)
            if lender.daemon >= 0:
                os.close(lender.daemon)


async def adopt(
    pool: BasePool, session: Session, blocks: Any, pages: Sequence[int], fences: Sequence[int], sequence: str,
) -> list[AdoptOutcome]:
    """One Adopt of blocks (a BlockIds message) into pages of a pool."""
    reply = await session.call("Adopt", lending_pb2.AdoptRequest(
        session=session.id, blocks=blocks, pool=await pool.number(session), pages=pages, fences=fences,
        sequence=sequence))
    outcomes = outcomes_of(AdoptOutcome, reply.outcomes)
    if len(outcomes) != len(pages):
        raise BrokenPeer("Adopt: the reply is not parallel to the ids")
    return outcomes


class BasePool:
    """What both twins have. `pages` are numbered from 0."""

    def __init__(self, routines: PoolRoutines, perform: Perform) -> None:
        self._routines = routines
        self._perform = perform

    @property
    def pages(self) -> int:
        return self._routines.pages

    @property
    def fence(self) -> Fence | None:
        return self._routines.fence

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, which are those of a block."""
        return sum(piece.size for piece in self._routines.pieces)

    async def number(self, session: Session) -> int:
        """What the pool is in a session; a routine."""
        return await self._routines.number(session)


class LentPool(BasePool):
    """Made by `Client.lend`; thread-safe; `Namespace.adopt` puts blocks into it."""

    withdraw = blocking(PoolRoutines.withdraw)
    close = blocking(PoolRoutines.close)


class AsyncLentPool(BasePool):
    """LentPool for an event loop; made by `await AsyncClient.lend(...)`."""

    withdraw = awaiting(PoolRoutines.withdraw)
    close = awaiting(PoolRoutines.close)


def _wire(region: SharedRegion | CudaRegion, numbers: dict[int, int]) -> lending_pb2.LentRegion:
    if isinstance(region, SharedRegion):
        return lending_pb2.LentRegion(shared=numbers[id(region)])
    return lending_pb2.LentRegion(cuda=lending_pb2.CudaMemory(
        device=region.device, handle=region.handle, offset=region.offset, bytes=region.size))
