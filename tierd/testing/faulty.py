"""Stores that fail on purpose, by a script that a seed or a test gives.

They wrap a real store and keep its contract: a faulty spill store raises only what a spill store may raise,
and a put that raised may or may not have been stored.
"""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Protocol

from tierd.core.errors import BlockDamaged, BlockVanished, SpillDown, SpillFull, SpillLate, SpillRefused
from tierd.core.messages import Record, Tier
from tierd.ports import ArenaStore, SpillHealth, SpillStore, StoredBlock
from tierd_client.format import U8Array


class Operation(Enum):
    """What a script is asked about."""

    PUT = "put"
    GET = "get"
    LOOK = "look"
    RESTATE = "restate"
    UNLINK = "unlink"
    PROBE = "probe"
    READ = "read"
    WRITE = "write"


class Fault(Enum):
    """What goes wrong with one call. A fault that an operation cannot have is none for it."""

    NONE = "none"
    DOWN = "down"
    """The server is not reached: nothing happened there. An arena: the copy fails, having done nothing."""
    DOWN_AFTER = "down_after"
    """The call was carried out, but its answer never came."""
    REFUSED = "refused"
    """The server refuses this one call: nothing happened there."""
    FULL = "full"
    VANISHED = "vanished"
    DAMAGED = "damaged"
    """The store itself notices that the value is damaged."""
    CORRUPT = "corrupt"
    """One byte of what is read differs: a spill store notices it by the checksum, an arena does not."""
    DELAY = "delay"
    """The call waits for the store's `resume` event; a spill call only until its deadline, then it is down."""


class Script(Protocol):
    """Says which fault the next call has. Called under a lock, in the order of the calls."""

    def next(self, operation: Operation) -> Fault: ...


class Scripted:
    """The faults of the first calls, one by one; none after the last."""

    def __init__(self, faults: Iterable[Fault], operations: Iterable[Operation] = tuple(Operation)) -> None:
        """Calls that are not of `operations` have no fault and use up none."""
        self._faults = iter(list(faults))
        self._operations = frozenset(operations)

    def next(self, operation: Operation) -> Fault:
        return next(self._faults, Fault.NONE) if operation in self._operations else Fault.NONE


class EveryNth:
    """The same fault at every nth call of some operations, for ever."""

    def __init__(self, n: int, fault: Fault, operations: Iterable[Operation] = tuple(Operation)) -> None:
        self._n = n
        self._fault = fault
        self._operations = frozenset(operations)
        self._calls = 0

    def next(self, operation: Operation) -> Fault:
        if operation not in self._operations:
            return Fault.NONE
        self._calls += 1
        return self._fault if self._calls % self._n == 0 else Fault.NONE


class Seeded:
    """Faults drawn with given probabilities from a seed: the same calls in the same order fail the same way."""

    def __init__(self, seed: int, rates: Mapping[Fault, float]) -> None:
        if sum(rates.values()) > 1.0:
            raise ValueError(f"the rates add up to {sum(rates.values())}")
        self._random = random.Random(seed)
        self._faults = [*rates, Fault.NONE]
        self._weights = [*rates.values(), 1.0 - sum(rates.values())]

    def next(self, operation: Operation) -> Fault:  # noqa: ARG002  the same draw for all
        return self._random.choices(self._faults, self._weights)[0]


class _Faults:
    """The script of one store, its lock, and a count of what it did."""

    def __init__(self, script: Script) -> None:
        self.resume = threading.Event()
        self.injected: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self._script = script
        self._lock = threading.Lock()

    def draw(self, operation: Operation) -> Fault:
        with self._lock:
            fault = self._script.next(operation)
            self.injected[fault] += 1
            return fault


class FaultySpillStore(SpillStore):
    """A spill store whose calls fail as the script says.

    `resume`: event that delayed calls wait for. `injected`: calls so far by fault.
    """

    def __init__(self, inner: SpillStore, script: Script) -> None:
        self._inner = inner
        self._faults = _Faults(script)
        self.resume = self._faults.resume
        self.injected = self._faults.injected

    @property
    def shared(self) -> bool:
        return self._inner.shared

    def put(self, block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
        fault = self._before(Operation.PUT, deadline_s)
        if fault is Fault.FULL:
            raise SpillFull("injected: full")
        own = self._inner.put(block, payload, deadline_s)
        _after(fault)
        return own

    def get(self, fingerprint: bytes, identity: bytes, out: U8Array, deadline_s: float) -> int:
        fault = self._before(Operation.GET, deadline_s)
        if fault is Fault.VANISHED:
            raise BlockVanished("injected: vanished")
        if fault is Fault.DAMAGED:
            raise BlockDamaged("injected: damaged")
        checksum = self._inner.get(fingerprint, identity, out, deadline_s)
        if fault is Fault.CORRUPT:
            _corrupt(out)
            raise BlockDamaged("injected: a byte differs")
        _after(fault)
        return checksum

    def look(
        self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float
    ) -> list[StoredBlock | None]:
        fault = self._before(Operation.LOOK, deadline_s)
        found = self._inner.look(fingerprint, identities, deadline_s)
        _after(fault)
        return [None] * len(found) if fault is Fault.VANISHED else found

    def restate(self, fingerprint: bytes, records: Mapping[bytes, Record], deadline_s: float) -> None:
        fault = self._before(Operation.RESTATE, deadline_s)
        self._inner.restate(fingerprint, records, deadline_s)
        _after(fault)

    def footprints(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> list[int | None]:
        fault = self._before(Operation.LOOK, deadline_s)
        found = self._inner.footprints(fingerprint, identities, deadline_s)
        _after(fault)
        return [None] * len(found) if fault is Fault.VANISHED else found

    def unlink(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> None:
        fault = self._before(Operation.UNLINK, deadline_s)
        self._inner.unlink(fingerprint, identities, deadline_s)
        _after(fault)

    def probe(self, deadline_s: float) -> SpillHealth:
        fault = self._before(Operation.PROBE, deadline_s)
        health = self._inner.probe(deadline_s)
        _after(fault)
        return SpillHealth(False, "injected: vanished") if fault is Fault.VANISHED else health

    def close(self) -> None:
        self._inner.close()

    def _before(self, operation: Operation, deadline_s: float) -> Fault:
        fault = self._faults.draw(operation)
        if fault is Fault.DOWN:
            raise SpillDown("injected: down")
        if fault is Fault.REFUSED:
            raise SpillRefused("injected: refused")
        if fault is Fault.DELAY and not self.resume.wait(deadline_s):
            raise SpillLate("injected: no answer within the deadline")
        return fault


class FaultyArenaStore:
    """An arena whose copies fail as the script says: OSError (EIO), wrong bytes, or a wait for `resume`.

    A delayed copy fails (OSError, ETIMEDOUT) when nobody sets `resume` within `delay_limit_s`.
    """

    def __init__(self, inner: ArenaStore, script: Script, delay_limit_s: float = 30.0) -> None:
        self._delay_limit_s = delay_limit_s
        self._inner = inner
        self._faults = _Faults(script)
        self.tier: Tier = inner.tier
        self.resume = self._faults.resume
        self.injected = self._faults.injected

    @property
    def mappable(self) -> bool:
        return self._inner.mappable

    def view(self, address: int, size: int) -> U8Array:
        return self._inner.view(address, size)

    def read(self, address: int, out: U8Array) -> None:
        fault = self._before(Operation.READ)
        self._inner.read(address, out)
        if fault is Fault.CORRUPT:
            _corrupt(out)

    def write(self, address: int, data: U8Array) -> None:
        fault = self._before(Operation.WRITE)
        if fault is Fault.CORRUPT:
            data = data.copy()
            _corrupt(data)
        self._inner.write(address, data)

    def close(self) -> None:
        self._inner.close()

    def _before(self, operation: Operation) -> Fault:
        fault = self._faults.draw(operation)
        if fault is Fault.DOWN:
            raise OSError(errno.EIO, f"injected: {operation.value} failed")
        if fault is Fault.DELAY and not self.resume.wait(self._delay_limit_s):
            raise OSError(errno.ETIMEDOUT, f"injected: {operation.value} was never resumed")
        return fault


def _corrupt(data: U8Array) -> None:
    data.reshape(-1)[data.size // 2] ^= 0x40


def _after(fault: Fault) -> None:
    if fault is Fault.DOWN_AFTER:
        raise SpillDown("injected: the answer never came")
