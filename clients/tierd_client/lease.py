"""A lease: blocks pinned where their bytes can be read in place, until it is released."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from tierd_client.catalog import FASTEST_FIRST, HOST_PLANE
from tierd_client.checks import Checks, checksum_of
from tierd_client.deadline import Deadline
from tierd_client.errors import FailedPrecondition
from tierd_client.format import OFFSET_BITS, U8Array
from tierd_client.handover import Places
from tierd_client.hazards import Looked
from tierd_client.holding import Batch, acquire, release
from tierd_client.identity import Identities
from tierd_client.outcomes import AcquireOutcome, Tier, outcomes_of
from tierd_client.payload import Form
from tierd_client.routine import Perform, Work
from tierd_client.session import Session
from tierd_client.shared_memory import SharedMemory

if TYPE_CHECKING:
    from tierd_client.direct import Lane


class Slots(Protocol):
    """Where the leased blocks' bytes are."""

    def array(self, index: int) -> U8Array:
        """A block's bytes, read-only."""

    def tensor(self, index: int) -> Any:
        """A block's bytes as a torch uint8 tensor."""

    def places(self, indices: Sequence[int]) -> Places:
        """Where some blocks lie in shared memory. FailedPrecondition where they do not lie there."""

    async def release(self) -> None:
        """Gives the blocks back; a routine."""


class SharedSlots:
    """Slots in shared memory that a session's hazard page names, or under leases; the session stays mapped until
    they are given back."""

    def __init__(
        self, session: Session, memory: SharedMemory, blocks: int, block_bytes: int, checks: Checks,
        after_release: Callable[[], None], device: bool = False,
    ) -> None:
        """Takes a hold on the session; `release` drops it. `blocks`: of the call; `device`: slots may be in a GPU's
        memory."""
        session.take_hold()
        self._session = session
        self._memory = memory
        self._block_bytes = block_bytes
        self._checks = checks
        self._after_release = after_release
        self._device = device
        self._addresses = [0] * blocks
        self._looked: Looked | None = None
        self._leases: list[int] = []
        self._damaged: list[tuple[Any, list[int]]] = []

    async def look_at(self, lane: Lane, looked: Looked, ids: Identities) -> list[AcquireOutcome]:
        """Takes the blocks that can be looked at without a lease, of all those of the call; the rest is PENDING."""
        self._looked = looked
        outcomes = [AcquireOutcome.PENDING] * len(ids)
        planes = FASTEST_FIRST if self._device or self._memory.maps_tier(Tier.HBM) else (HOST_PLANE,)
        lane.look_at(looked, ids.packed(), self._block_bytes, planes, self._device)
        for index, address in looked.addresses.items():
            self._addresses[index], outcomes[index] = address, AcquireOutcome.LEASED
        for index in await self._damaged_of(looked.checksums):
            outcomes[index] = AcquireOutcome.LOST
        return outcomes

    def tell_damaged(self, blocks: Any, indices: list[int]) -> None:
        """When all is given back the daemon is told of these damaged blocks of a BlockIds message."""
        self._damaged.append((blocks, indices))

    async def acquire(self, batch: Batch, indices: Sequence[int], wait: Deadline) -> list[AcquireOutcome]:
        """Leases blocks, at these indices of the call. One that is found damaged is LOST, and told when it is given
        back."""
        reply = await acquire(self._session, batch, wait, self._device)
        outcomes = outcomes_of(AcquireOutcome, reply.outcomes)
        for index, address in zip(indices, reply.addresses, strict=True):
            self._addresses[index] = address
        self._leases += [reply.lease] if reply.lease else []
        # Where the arena has grown: later looks at blocks ask nobody.
        if not self._device and not self._memory.has(reply.addresses):
            await Work(lambda: self._memory.refresh(self._deadline()))
        leased = [i for i, outcome in enumerate(outcomes) if outcome is AcquireOutcome.LEASED]
        damaged = await self._damaged_of({indices[i]: reply.checksums[i] for i in leased})
        lost = [i for i in leased if indices[i] in damaged]
        for index in lost:
            outcomes[index] = AcquireOutcome.LOST
        self.tell_damaged(batch.blocks, lost)
        return outcomes

    async def _damaged_of(self, checksums: dict[int, int]) -> list[int]:
        """Which of these blocks, by their index in the call, are compared and differ."""
        if not self._checks.compares:
            return []
        compared = [index for index in checksums if self._checks.chooses()]
        if not compared:
            return []
        damaged: list[int] = await Work(
            lambda: [i for i in compared if checksum_of(self.array(i)) != checksums[i]])
        return damaged

    def array(self, index: int) -> U8Array:
        if self._on_device(index):
            copied: U8Array = self.tensor(index).cpu().numpy()
            return copied
        return self._memory.view(self._addresses[index], self._block_bytes, self._deadline())

    def tensor(self, index: int) -> Any:
        if self._on_device(index):
            return self._memory.device_tensor(self._addresses[index], self._block_bytes, self._deadline())
        return self._memory.tensor(self._addresses[index], self._block_bytes, self._deadline())

    def places(self, indices: Sequence[int]) -> Places:
        addresses = [self._addresses[index] for index in indices]
        if not self._memory.has(addresses):
            raise FailedPrecondition("the lease has blocks in a GPU's memory")
        numbers = {address >> OFFSET_BITS for address in addresses}
        files = {number: self._memory.files[number] for number in numbers}
        return Places(self._block_bytes, tuple(addresses), files)

    async def release(self) -> None:
        if self._memory.is_inherited():
            return  # the parent reads on
        if self._looked is not None:
            self._looked.end()
        try:
            if self._leases and not self._session.is_lost():
                await release(self._session, self._leases)
        finally:
            self._session.drop_hold()
        for blocks, damaged in self._damaged:
            await self._checks.report(self._session, blocks, damaged)
        if self._session.is_lost():
            await Work(self._after_release)

    def _on_device(self, index: int) -> bool:
        return self._device and not self._memory.is_mapped(self._addresses[index])

    def _deadline(self) -> Deadline:
        return Deadline(self._session.rpc_timeout_s)


class PrivateSlots:
    """Copies in this process's own memory, for a client that cannot map."""

    def __init__(self, blocks: dict[int, U8Array]) -> None:
        self._blocks = blocks

    def array(self, index: int) -> U8Array:
        block = self._blocks[index].view()
        block.flags.writeable = False
        return block

    def tensor(self, index: int) -> Any:
        import torch  # only those who ask for tensors pay for it

        return torch.from_numpy(self._blocks[index])

    def places(self, indices: Sequence[int]) -> Places:  # noqa: ARG002 - there are none
        raise FailedPrecondition("blocks came by stream: nothing of the daemon is mapped in this process")

    async def release(self) -> None:
        self._blocks = {}


@dataclass(frozen=True, slots=True)
class Pinned:
    """What an Acquire came back with. `outcomes` is parallel to `ids`."""

    ids: Identities
    outcomes: list[AcquireOutcome]
    form: Form
    slots: Slots


class BaseLease:
    """Pinned blocks; a context manager. `outcomes` is parallel to `ids`; only LEASED blocks can be read.

    What `arrays` and `tensors` give may be read until `release` and not after: the daemon then re-uses the
    slots. They are for reading only. Without shared memory they are copies.
    """

    def __init__(self, pinned: Pinned, perform: Perform) -> None:
        self.ids = pinned.ids
        self.outcomes = pinned.outcomes
        self._form = pinned.form
        self._slots: Slots | None = pinned.slots
        self._perform = perform

    def views(self) -> list[U8Array | None]:
        """The flat bytes of each block as a read-only uint8 array; None where it is not LEASED. No copy."""
        return self._each("array")

    def arrays(self) -> list[Any]:
        """A read-only numpy array per identity, in the layout's form where numpy has its dtype, else flat
        uint8; None where it is not LEASED. No copy."""
        return [None if one is None else self._form.array(one) for one in self._each("array")]

    def tensors(self) -> list[Any]:
        """A torch tensor per identity in the layout's dtype and shape, None where it is not LEASED. No copy.

        Writing to one kills the process: the memory behind it is mapped read-only.
        """
        return [None if one is None else self._form.tensor(one) for one in self._each("tensor")]

    def places(self, indices: Sequence[int]) -> Places:
        """Where these blocks lie, for another process of this host that reads them until the lease is released
        (tierd_client/handover.py). FailedPrecondition for one that is not LEASED, or not in shared memory."""
        if self._slots is None:
            raise FailedPrecondition("the lease was released")
        for index in indices:
            if self.outcomes[index] is not AcquireOutcome.LEASED:
                raise FailedPrecondition(f"indices: block {index} is {self.outcomes[index].name}")
        return self._slots.places(indices)

    async def _give_back(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            await slots.release()

    def _each(self, access: str) -> list[Any]:
        if self._slots is None:
            raise FailedPrecondition("the lease was released")
        read = getattr(self._slots, access)
        return [
            read(index) if outcome is AcquireOutcome.LEASED else None
            for index, outcome in enumerate(self.outcomes)
        ]

    def __len__(self) -> int:
        return len(self.ids)

    def __del__(self) -> None:
        # Not released here: views of it may be in use, and a leak is better than bytes that change.
        if getattr(self, "_slots", None) is not None:
            warnings.warn(f"a lease of {len(self.ids)} blocks was never released", ResourceWarning, stacklevel=2)


class Lease(BaseLease):
    __doc__ = BaseLease.__doc__

    def release(self) -> None:
        """Gives the blocks back; idempotent. Never raises because the daemon is away."""
        self._perform(self._give_back())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self.release()


class AsyncLease(BaseLease):
    __doc__ = BaseLease.__doc__

    async def release(self) -> None:
        """Gives the blocks back; idempotent. Never raises because the daemon is away."""
        await self._perform(self._give_back())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        await self.release()
