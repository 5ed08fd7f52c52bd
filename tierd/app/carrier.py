"""Carries out moves of blocks between two tiers, on whichever thread calls it.

The table of what happened to what it means, which every caller relies on:

    outcome of the stores                        ok     lost   full   source copy
    copied                                       yes    -      -      stays
    stored already by another daemon             yes    -      -      stays; the target is found, not made
    spilled value vanished, or is another        no     yes    -      dropped by the engine
      content of the identity
    spilled value damaged: envelope or bytes     no     yes    -      dropped, and deleted from the store
      have another checksum than they say
    what came from a device has another          no     yes    -      dropped by the engine
      checksum than the block
    server full                                  no     no     yes    stays
    server down, or any other failure            no     no     no     stays
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain
from typing import TypeVar

import numpy as np
import structlog
import xxhash

from tierd.app.supply import Supply
from tierd.core.errors import (
    BlockDamaged,
    BlockVanished,
    SpillDown,
    SpillError,
    SpillFull,
    SpillRefused,
    Unavailable,
)
from tierd.core.messages import BlockView, CopyView, Move, MoveResult, Record, Tier
from tierd.ports import ArenaStore, LentStore, SpillStore, StoredBlock, Wanted, attempt
from tierd_client.format import U8Array

log = structlog.get_logger(__name__)

A = TypeVar("A")
T = TypeVar("T")


class Check(Enum):
    """What comparing a copy's bytes with their checksum gave."""

    INTACT = 1
    DAMAGED = 2
    UNREADABLE = 3


def checksum_of(data: U8Array) -> int:
    """xxh3_64, seed 0, of contiguous bytes."""
    return xxhash.xxh3_64_intdigest(data.data)


class SpillGate:
    """Whether the spill tier may be tried: shut by the first call that finds it down, opened by the watch.

    Without it each queued move would wait out its own deadline against a dead server. A call that began
    before the last opening cannot shut the gate: it tells of an outage that is over.
    """

    def __init__(self, on_shut: Callable[[str], None]) -> None:
        """`on_shut` is called on the thread that found it down, with the reason."""
        self._on_shut = on_shut
        self._openings = 0
        self.is_open = True

    def enter(self) -> int:
        """A ticket for one call. SpillDown while the gate is shut."""
        if not self.is_open:
            raise SpillDown("the spill tier is down")
        return self._openings

    def found_down(self, ticket: int, reason: str) -> None:
        if ticket == self._openings and self.is_open:
            self.is_open = False
            self._on_shut(reason)

    def open(self) -> None:
        self._openings += 1
        self.is_open = True

    def shut(self) -> None:
        self.is_open = False


@dataclass(frozen=True, slots=True)
class Carrier:
    """The stores of a daemon and how bytes go from one to another. Blocking; thread-safe."""

    arenas: Mapping[Tier, ArenaStore]
    spill: SpillStore | None
    gate: SpillGate
    fingerprint_of: Callable[[int], bytes]
    op_timeout_s: float
    lent: LentStore | None = None

    def carry(self, moves: Iterable[Move]) -> Iterator[tuple[Move, MoveResult]]:
        """Carries out moves, of which all, or none, go into the spill tier, and the same with those out of it: they
        make one call of the store, which draws them as it can begin them. Each comes with its result as soon as it
        has ended. Never raises."""
        coming = iter(moves)
        first = next(coming, None)
        if first is None:
            return iter(())
        coming = chain((first,), coming)
        if first.target is Tier.SPILL:
            return self._demote(coming)
        if first.source is Tier.SPILL:
            return self._promote(coming)
        return ((move, self._result(move, attempt(self._copy, move))) for move in coming)

    def read(self, tier: Tier, address: int, size: int) -> U8Array:
        """A private copy of a block in an arena."""
        out = np.empty(size, np.uint8)
        self.arena(tier).read(address, out)
        return out

    def exercise_arena(self, tier: Tier, address: int, payload: U8Array) -> bool:
        """Writes bytes into a slot that nobody else uses and reads them; whether they are the same."""
        arena, found = self.arena(tier), np.empty_like(payload)
        arena.write(address, payload)
        arena.read(address, found)
        return bool((found == payload).all())

    def exercise_spill(self, block: StoredBlock, payload: U8Array, timeout_s: float) -> bool:
        """Stores a block that no catalog knows, reads it and deletes it; whether it was the same. SpillError."""
        ends_s = time.monotonic() + timeout_s
        self.gate.enter()
        store, found = self._store(), np.zeros_like(payload)
        store.put(block, payload, timeout_s)
        store.get(block.fingerprint, block.identity, found, max(0.0, ends_s - time.monotonic()))
        store.unlink(block.fingerprint, [block.identity], max(0.0, ends_s - time.monotonic()))
        return bool((found == payload).all())

    def unlink(self, namespace: int, identities: tuple[bytes, ...]) -> None:
        """Deletes stored values. Raises SpillError."""
        ticket = self.gate.enter()
        try:
            self._store().unlink(self.fingerprint_of(namespace), identities, self.op_timeout_s)
        except (SpillDown, SpillRefused) as error:  # nothing is deleted for as long as one delete is refused
            self.gate.found_down(ticket, str(error))
            raise SpillDown(str(error)) from error

    def look(self, namespace: int, identities: Sequence[bytes], timeout_s: float) -> list[StoredBlock | None]:
        """What the spill store holds of these identities. Raises SpillError; a look is too short to prove that
        the store is down."""
        self.gate.enter()
        return self._store().look(self.fingerprint_of(namespace), identities, timeout_s)

    def footprints(self, namespace: int, identities: Sequence[bytes]) -> list[int | None]:
        """Bytes of its memory that the spill store takes for each of these. Raises SpillError."""
        self.gate.enter()
        return self._store().footprints(self.fingerprint_of(namespace), identities, self.op_timeout_s)

    def restate(self, namespace: int, records: Mapping[bytes, Record]) -> None:
        """Writes newer statistics beside stored blocks. Raises SpillError."""
        self.gate.enter()
        self._store().restate(self.fingerprint_of(namespace), records, self.op_timeout_s)

    def check(self, view: BlockView, copy: CopyView, timeout_s: float) -> Check:
        """Compares a copy's bytes with the record's checksum. The caller checks that the copy stayed.

        A stored value that is gone, or another content, is what it is to a load: no damage, and not to be deleted.
        """
        try:
            if copy.tier is Tier.SPILL:
                within_s = min(timeout_s, self.op_timeout_s)
                data = np.empty(view.size, np.uint8)
                if self._fetch(view.namespace, view.identity, data, within_s) != view.checksum:
                    return Check.UNREADABLE
            else:
                data = self.read(copy.tier, copy.address, view.size)
        except BlockDamaged:
            return Check.DAMAGED
        except SpillError:
            return Check.UNREADABLE
        return Check.INTACT if checksum_of(data) == view.checksum else Check.DAMAGED

    def arena(self, tier: Tier) -> ArenaStore:
        arena = self.arenas.get(tier)
        if arena is None:
            raise Unavailable(f"tier {tier.name.lower()} is off")
        return arena

    def _result(self, move: Move, outcome: int | Exception, found: bool = False) -> MoveResult:
        """`outcome`: the checksum of what was copied, or why nothing was. `found`: another daemon had stored it."""
        match outcome:
            case int():
                return MoveResult(move.op, ok=True, checksum=outcome, found=found)
            case BlockVanished() | BlockDamaged():
                damaged = isinstance(outcome, BlockDamaged)
                return MoveResult(move.op, ok=False, lost=True, reason=str(outcome), damaged=damaged)
            case SpillError():
                full, down = isinstance(outcome, SpillFull), isinstance(outcome, SpillDown)
                return MoveResult(move.op, ok=False, full=full, reason=str(outcome), down=down)
            case _:  # a store that breaks its contract costs a move, not the daemon
                way = f"{move.source.name.lower()} to {move.target.name.lower()}"
                log.error("move_failed", op=move.op, way=way, exc_info=outcome)
                return MoveResult(move.op, ok=False, reason=f"{type(outcome).__name__}: {outcome}")

    def _copy(self, move: Move) -> int:
        """Between arenas; the checksum of the bytes."""
        if move.lender:
            return self._collect(move)
        target = self.arena(move.target)
        if self.arena(move.source).mappable or not target.mappable:
            target.write(move.target_address, self._source(move))
        else:
            self._from_device(move, target.view(move.target_address, move.size))
        return move.checksum

    def _collect(self, move: Move) -> int:
        """From an engine's page, whose checksum nobody knew."""
        target = self.arena(move.target)
        out = target.view(move.target_address, move.size) if target.mappable else np.empty(move.size, np.uint8)
        self._read_lent(move, out)
        if not target.mappable:
            target.write(move.target_address, out)
        return checksum_of(out)

    def _read_lent(self, move: Move, out: U8Array) -> U8Array:
        if self.lent is None:
            raise Unavailable("nothing is lent")
        self.lent.read(move.source_address, out)
        return out

    def _source(self, move: Move) -> U8Array:
        """The bytes of a block in an arena, in place where they can be."""
        source = self.arena(move.source)
        if source.mappable:
            return source.view(move.source_address, move.size)
        return self._from_device(move, np.empty(move.size, np.uint8))

    def _from_device(self, move: Move, out: U8Array) -> U8Array:
        """Copies a block out of a device's memory. Whoever writes there does so unseen, in an order of the device's
        own: BlockDamaged when the bytes are not those that were committed."""
        self.arena(move.source).read(move.source_address, out)
        return _checked(move, out)

    def _demote(self, moves: Iterator[Move]) -> Iterator[tuple[Move, MoveResult]]:
        supply = Supply(moves, self._to_store)
        for move, given, own in self._answers(supply, lambda: self._store().put_all(supply, self.op_timeout_s)):
            outcome = own if isinstance(own, Exception) else given[0].checksum
            yield move, self._result(move, outcome, found=own is False)
        yield from ((move, self._result(move, error)) for move, error in supply.unprepared)

    def _to_store(self, move: Move) -> tuple[StoredBlock, U8Array]:
        """What the store gets of a move; the bytes of an engine's page get their checksum here."""
        payload = self._read_lent(move, np.empty(move.size, np.uint8)) if move.lender else self._source(move)
        checksum = checksum_of(payload) if move.lender else move.checksum
        block = StoredBlock(
            self.fingerprint_of(move.namespace), move.identity, move.group, move.position, move.parent,
            move.size, checksum, move.record,
        )
        return block, payload

    def _promote(self, moves: Iterator[Move]) -> Iterator[tuple[Move, MoveResult]]:
        supply = Supply(moves, self._wanted)
        for move, given, found in self._answers(supply, lambda: self._store().get_all(supply, self.op_timeout_s)):
            yield move, self._result(move, attempt(self._take, move, given.out, found))
        yield from ((move, self._result(move, error)) for move, error in supply.unprepared)

    def _wanted(self, move: Move) -> Wanted:
        """In place where it can be."""
        target, size = self.arena(move.target), move.size
        out = target.view(move.target_address, size) if target.mappable else np.empty(size, np.uint8)
        return Wanted(self.fingerprint_of(move.namespace), move.identity, out)

    def _take(self, move: Move, out: U8Array, found: int | Exception) -> int:
        """The checksum of what came up; raises why nothing did."""
        if isinstance(found, Exception):
            raise found
        if found != move.checksum:
            raise BlockVanished(f"block {move.identity.hex()} was overwritten with another content")
        target = self.arena(move.target)
        if not target.mappable:
            target.write(move.target_address, out)
        return move.checksum

    def _answers(
        self, supply: Supply[A], call: Callable[[], Iterable[tuple[int, T | Exception]]]
    ) -> Iterator[tuple[Move, A, T | Exception]]:
        """The answers of a call with the whole deadline, behind the gate, which they shut when the store is down;
        where it raises, that is the answer to all that it left open."""
        try:
            ticket = self.gate.enter()
            for n, answer in call():
                if isinstance(answer, SpillDown):
                    supply.end()  # a move that comes when the store is up again asks it anew
                    self.gate.found_down(ticket, str(answer))
                yield *supply.answered(n), answer
        except Exception as error:
            for move, given in supply.left_open():
                yield move, given, error

    def _fetch(self, namespace: int, identity: bytes, out: U8Array, timeout_s: float) -> int:
        ticket = self.gate.enter()
        try:
            return self._store().get(self.fingerprint_of(namespace), identity, out, timeout_s)
        except SpillDown as error:
            if timeout_s >= self.op_timeout_s:  # one that had less time proves nothing about the server
                self.gate.found_down(ticket, str(error))
            raise

    def _store(self) -> SpillStore:
        if self.spill is None:
            raise SpillDown("the spill tier is off")
        return self.spill


def _checked(move: Move, data: U8Array) -> U8Array:
    """The same bytes. BlockDamaged when they do not have the checksum of the move."""
    found = checksum_of(data)
    if found != move.checksum:
        tier = move.source.name.lower()
        raise BlockDamaged(f"bytes from {tier} have checksum {found:016x}, not {move.checksum:016x}")
    return data
