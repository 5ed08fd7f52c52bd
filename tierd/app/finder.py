"""Looks in the spill store for blocks that this daemon does not know: others, or an earlier life of it, put them.

One pipelined call per LOOK_IDENTITIES_MAX of them. Who asks for an identity that is being looked for waits for the
same answer; what was not there is not asked for again within a time. An answer that comes after its asker has
left is used all the same, by the next one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

import numpy as np
import structlog

from tierd.app.mover import Mover
from tierd.app.namespaces import Namespaces
from tierd.app.writer import Writer
from tierd.core import messages as m
from tierd.core.errors import SpillError
from tierd.core.state import split
from tierd.core.terms import pack
from tierd.ports import LOOK_IDENTITIES_MAX, StoredBlock
from tierd_client.format import IDENTITY_BYTES

log = structlog.get_logger(__name__)

THREADS = 2
CALLS_MAX = 64
"""Calls waiting or under way; what would need another one is not looked for this time."""
ABSENT_MAX = 65_536
"""Identities known not to be there; the oldest goes first."""


Answer = asyncio.Future[list[StoredBlock | None]]


class Finder:
    """Belongs to the event loop's thread."""

    def __init__(
        self, writer: Writer, mover: Mover, namespaces: Namespaces, *, timeout_s: float, ttl_s: float
    ) -> None:
        """`timeout_s`: of one call, and the most that an asker waits. `ttl_s`: how long what was not there counts
        as not there."""
        self._writer, self._mover, self._namespaces = writer, mover, namespaces
        self._timeout_s, self._ttl_s = timeout_s, ttl_s
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="tierd-look")
        self._asked: dict[bytes, Answer] = {}
        self._absent: OrderedDict[bytes, float] = OrderedDict()
        self._calls = 0
        self._store_number = 0
        self.looked = self.found = self.skipped = 0
        """Identities looked for, found, and not looked for because too much was under way."""

    async def find(self, chains: Sequence[m.Ids], deadline: float) -> None:
        """Makes known what is stored of these blocks, waiting for all at once, until `deadline` (loop's time)."""
        if not self._mover.spill_is_shared:
            return
        waiting = set[Answer]()
        for blocks in chains:
            presence = self._writer.ask(m.Lookup(blocks), m.LookedUp).presence
            unknown = split(blocks.ids[presence == m.Presence.MISS])
            self._ask([one for one in unknown if self._worth_asking(blocks.namespace, one)], blocks)
            waiting.update(self._asked[one] for one in unknown if one in self._asked)
        left_s = min(self._timeout_s, deadline - asyncio.get_running_loop().time())
        if waiting and left_s > 0:
            await asyncio.wait(waiting, timeout=left_s)

    def forget(self) -> None:
        """Another store is used from now on: nothing is known of it, and late answers are of the old one."""
        self._absent.clear()
        self._store_number += 1

    async def stop(self, timeout_s: float) -> None:
        """Calls under way end by themselves, within their timeout."""
        del timeout_s
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _worth_asking(self, namespace: int, identity: bytes) -> bool:
        if identity in self._asked or self._mover.deletes(namespace, identity):
            return False
        expires = self._absent.get(identity)
        return expires is None or expires <= asyncio.get_running_loop().time()

    def _ask(self, identities: Sequence[bytes], blocks: m.Ids) -> None:
        loop, look = asyncio.get_running_loop(), self._mover.carrier.look
        wanted = list(dict.fromkeys(identities))
        for start in range(0, len(wanted), LOOK_IDENTITIES_MAX):
            if self._calls >= CALLS_MAX:
                self.skipped += len(wanted) - start
                return
            part = wanted[start : start + LOOK_IDENTITIES_MAX]
            call = loop.run_in_executor(self._pool, look, blocks.namespace, part, self._timeout_s)
            # Before any waiter of its own, so that what they find afterwards is known.
            call.add_done_callback(partial(self._answered, part, blocks, self._store_number))
            self._calls += 1
            self._asked.update(dict.fromkeys(part, call))

    def _answered(self, identities: list[bytes], blocks: m.Ids, store_number: int, call: Answer) -> None:
        self._calls -= 1
        for identity in identities:
            self._asked.pop(identity, None)
        if call.cancelled():
            return
        try:
            found = call.result()
            if store_number == self._store_number:
                self._learn(identities, found, blocks)
        except SpillError as error:
            log.warning("look_failed", error=str(error))
        except Exception:  # a store that breaks its contract costs hits, not the daemon
            log.exception("look_failed")

    def _learn(self, identities: list[bytes], found: list[StoredBlock | None], blocks: m.Ids) -> None:
        self.looked += len(identities)
        size = self._namespaces.place(blocks.namespace, blocks.group).block_bytes
        fit = [one for one in found if one is not None and (one.group, one.size) == (blocks.group, size)]
        there = {one.identity for one in fit}
        self._note_absent([identity for identity in identities if identity not in there])
        if fit:
            self.found += self._writer.ask(_to_add(fit, blocks), m.Done).count

    def _note_absent(self, identities: Sequence[bytes]) -> None:
        expires = asyncio.get_running_loop().time() + self._ttl_s
        for identity in identities:
            self._absent.pop(identity, None)
            self._absent[identity] = expires
        while len(self._absent) > ABSENT_MAX:
            self._absent.popitem(last=False)


def _to_add(found: list[StoredBlock], asked: m.Ids) -> m.AddFound:
    """The command for blocks of one group and size, at their places as stored."""
    parents = pack(block.parent or bytes(IDENTITY_BYTES) for block in found)
    positions = np.array([block.position for block in found], np.int64)
    ids = pack(block.identity for block in found)
    return m.AddFound(
        replace(asked, ids=ids, chain=True, position=0, parent=None, some=(positions, parents), whole=None),
        found[0].size, np.array([block.checksum for block in found], np.uint64),
        tuple(block.record for block in found), np.array([block.own for block in found], bool),
    )
