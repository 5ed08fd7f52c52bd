"""Put and get between an engine's pages and the daemon, as routines (routine.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from tierd_client import reading
from tierd_client.checks import checksum_of
from tierd_client.deadline import Deadline
from tierd_client.errors import InvalidArgument
from tierd_client.format import U8Array
from tierd_client.identity import Identities, batches, some
from tierd_client.outcomes import AcquireOutcome, Priority, PutOutcome, Tier
from tierd_client.paged import OfLayer, PageCopies, PagedKV, PageNumbers
from tierd_client.routine import Work, awaiting, blocking
from tierd_client.sequence import BaseSequence
from tierd_client.session import Session

if TYPE_CHECKING:
    from tierd_client.namespace import NamespaceRoutines

Guard = Callable[[], AbstractContextManager[object]]


async def put_pages(
    ns: NamespaceRoutines, ids: Any, paged: PagedKV, page_numbers: Any, tier: Tier | str | None = None,
    timeout_s: float = 2.0, sequence: BaseSequence | str | None = None, priority: Priority | str | None = None,
    before_layer: OfLayer | None = None, wait: bool = True, guard: Guard = nullcontext,
) -> list[PutOutcome]:
    """Stores blocks out of an engine's pages; as `put` otherwise. The pages are copied straight into shared memory.

    `page_numbers`: int array (blocks,), or (blocks, pages_per_block) where a block takes several pages. The pages
    must not change until it returns.
    `before_layer(layer)`: with it layers are stored one after the other, each when this returns, so that a layer is
    copied while the next one is computed. It is called once for each layer in order, on the thread that copies; not
    at all when nothing is to be stored, because all is there. What it raises ends the call, and nothing is stored.
    `guard()`: pages are read within it alone, on the thread that copies, maybe several times in a call. An engine
    that wants its pages back before the call is over raises on entering: the call ends, and reads no page again.
    Raises InvalidArgument naming the argument and the index.
    """
    ids = ns.identities(ids)
    pages = _checked(ns, ids, paged, page_numbers, writes=False)
    before = None if before_layer is None else Once(before_layer)
    source = PagedSource(paged, pages, paged.copies(), before, guard)
    return await ns.store(ids, source, tier, timeout_s, sequence, priority, wait=wait)


async def get_pages(
    ns: NamespaceRoutines, ids: Any, paged: PagedKV, page_numbers: Any, timeout_s: float = 2.0,
    sequence: BaseSequence | str | None = None, after_layer: OfLayer | None = None,
) -> list[AcquireOutcome]:
    """Copies blocks into an engine's pages; LEASED means that it was read. Pages of blocks with another outcome
    stay as they were. An access. Blocks stay where they are while they are copied, straight out of shared memory.

    `page_numbers`: as in `put_pages`, none of them twice. `after_layer(layer)`: with it layers are copied one after
    the other, and each is told when it is there in all pages, so that the forward pass begins meanwhile. It is
    called for each layer in order, on the thread that copies, also when nothing was read. All blocks are then
    leased at once: what finds no room to be promoted is FULL, and not asked for again.
    Raises InvalidArgument naming the argument and the index.
    """
    ids = ns.identities(ids)
    pages = _checked(ns, ids, paged, page_numbers, writes=True)
    copies, wait, name = paged.copies(), Deadline.of(timeout_s), ns.sequence_name(ids, sequence)

    async def read(session: Session) -> list[AcquireOutcome]:
        reader = _Reader(ns, session, copies, wait, name)
        if after_layer is not None:
            return await reader.read(ids, pages, after_layer)
        outcomes = [AcquireOutcome.PENDING] * len(ids)
        await reading.in_rounds(outcomes, wait, lambda left: reader.by_batches(some(ids, left), pages[left]))
        return outcomes

    return await ns.make(read, timeout_s)


class PagedSource:
    """Blocks that lie in an engine's pages, as a Source (staging.py)."""

    def __init__(
        self, paged: PagedKV, pages: PageNumbers, copies: PageCopies, before: OfLayer | None, guard: Guard,
    ) -> None:
        self._paged = paged
        self._pages = pages
        self._copies = copies
        self._before = before
        self._guard = guard

    def __len__(self) -> int:
        return len(self._pages)

    def part(self, start: int, end: int) -> PagedSource:
        return PagedSource(self._paged, self._pages[start:end], self._copies, self._before, self._guard)

    def fill(self, indices: Sequence[int], slots: Sequence[U8Array]) -> list[int]:
        with self._guard():
            return self._filled(self._pages[list(indices)], slots)

    def host(self) -> list[U8Array]:
        blocks = [np.empty(self._paged.block_bytes, np.uint8) for _ in range(len(self))]
        with self._guard():
            self._copies.gather(self._pages, blocks, self._before)
        return blocks

    def _filled(self, pages: PageNumbers, slots: Sequence[U8Array]) -> list[int]:
        if self._before is not None or self._paged.on_device:
            self._copies.gather(pages, slots, self._before)
            return [checksum_of(slot) for slot in slots]
        checksums = []
        for place, slot in enumerate(slots):
            self._copies.gather(pages[place : place + 1], [slot], None)
            checksums.append(checksum_of(slot))  # while the processor has it in its cache
        return checksums


class Once:
    """Calls for each layer but the first time are left out: the batches of one call share the layers."""

    def __init__(self, of_layer: OfLayer) -> None:
        self._of_layer = of_layer
        self._next = 0

    def __call__(self, layer: int) -> None:
        if layer >= self._next:
            self._of_layer(layer)
            self._next = layer + 1


class _Reader:
    """Reads blocks under leases into pages."""

    def __init__(
        self, ns: NamespaceRoutines, session: Session, copies: PageCopies, wait: Deadline, sequence: str,
    ) -> None:
        self._ns = ns
        self._session = session
        self._copies = copies
        self._wait = wait
        self._sequence = sequence

    async def by_batches(self, ids: Identities, pages: PageNumbers) -> list[AcquireOutcome]:
        outcomes: list[AcquireOutcome] = []
        for start, part in batches(ids, self._session.batch_ids):
            outcomes += await self.read(part, pages[start : start + len(part)], None)
        return outcomes

    async def read(self, ids: Identities, pages: PageNumbers, after: OfLayer | None) -> list[AcquireOutcome]:
        pinned = await reading.in_place(self._ns, self._session, ids, self._sequence, self._wait)
        try:
            leased = [i for i, outcome in enumerate(pinned.outcomes) if outcome is AcquireOutcome.LEASED]
            await Work(lambda: self._copies.scatter(
                pages[leased], [pinned.slots.array(index) for index in leased], after))
        finally:
            await pinned.slots.release()
        return pinned.outcomes


def _checked(
    ns: NamespaceRoutines, ids: Identities, paged: PagedKV, page_numbers: Any, *, writes: bool,
) -> PageNumbers:
    if not isinstance(paged, PagedKV):
        raise InvalidArgument(f"paged: {type(paged).__name__} is no PagedKV")
    if paged.group != ns.layout.groups[ids.group]:
        raise InvalidArgument(f"paged: of {paged.group}; the ids are of {ns.layout.groups[ids.group]}")
    return paged.numbers(page_numbers, len(ids), writes=writes)


class BlockingPaged:
    """Of Namespace."""

    put_pages = blocking(put_pages)
    get_pages = blocking(get_pages)


class AwaitingPaged:
    """Of AsyncNamespace."""

    put_pages = awaiting(put_pages)
    get_pages = awaiting(get_pages)
