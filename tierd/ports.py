"""What the core needs of the world, and the duties of who calls and who implements.

Calls block; the mover makes them on its own threads. Nothing here is called by the engine itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, ParamSpec, Protocol, TypeVar

from tierd.core.errors import SpillDown
from tierd.core.loans import PoolPlan
from tierd.core.messages import Record, Tier
from tierd_client.format import U8Array

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")

LOOK_IDENTITIES_MAX = 256
"""Most blocks of one call that asks about many: some 140 KB of commands, 90 KB of replies."""


class ArenaStore(Protocol):
    """A tier whose blocks have addresses (segment in the upper 16 bits, byte offset in the lower 48).

    Caller: passes only ranges that the engine handed out and keeps them in use until the call returns.
    Implementer: `read` and `write` move exactly len(out) bytes, have finished when they return, release
    the GIL on large blocks, may be called from several threads at once, and never keep a reference.
    """

    tier: Tier

    @property
    def mappable(self) -> bool:
        """Whether other processes can map its segments, i.e. whether `view` works."""

    def view(self, address: int, size: int) -> U8Array:
        """The bytes themselves, writable. Only where `mappable`."""

    def read(self, address: int, out: U8Array) -> None:
        """Copies a block out into CPU memory."""

    def write(self, address: int, data: U8Array) -> None:
        """Copies a block in from CPU memory."""

    def close(self) -> None:
        """Unmaps; idempotent. The bytes stay where the medium survives the process."""


class LentStore(Protocol):
    """Pages of engines' own memory (core/loans.py: addresses), read only.

    Caller: opens a pool before its pages are named and closes it when none is lent any more. Implementer:
    thread-safe; `read` has finished when it returns, and raises when the pool was closed meanwhile or its process
    has died, for then nobody knows what was read; a closed pool's memory is given up after the last read of it.
    """

    def open_pool(self, number: int, session: int, plan: PoolPlan, process: tuple[int, int]) -> None:
        """Maps it. Raises InvalidInput naming what is wrong with the plan, Unavailable where memory is refused."""

    def close_pool(self, number: int) -> None: ...

    def forget(self, session: int) -> None:
        """Closes regions that a session passed and no pool of it uses."""

    def reached(self, address: int, fence: int) -> bool:
        """Whether the fence of a page's pool has reached a value. Raises Unavailable when the pool is closed."""

    def read(self, address: int, out: U8Array) -> None:
        """Copies a page out."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """What the spill tier keeps beside a payload (docs/format.md, envelope)."""

    fingerprint: bytes
    identity: bytes
    group: int
    position: int
    parent: bytes | None
    size: int
    checksum: int
    record: Record
    own: bool = True
    """Whether the store's own instance wrote the payload; a `put` takes no notice of it."""


@dataclass(frozen=True, slots=True)
class SpillHealth:
    """`same`: the server still holds what this instance stored (its marker was found)."""

    same: bool
    detail: str = ""


class Wanted(NamedTuple):
    """A block to be read from the spill tier, and where to: `out` is as large as the block."""

    fingerprint: bytes
    identity: bytes
    out: U8Array


class SpillStore(Protocol):
    """A store of whole blocks by identity, and of their statistics beside them.

    Several daemons may share one. The payload decides what exists; of two statistics the one with the later
    wall time counts.

    Caller: gives a deadline in seconds from now with every call, at most LOOK_IDENTITIES_MAX blocks to `look`
    and `restate`, treats any SpillError as "not done", and takes all that `put_all` and `get_all` yield at once.
    Implementer: raises only SpillDown, SpillFull, SpillRefused, BlockVanished, BlockDamaged; never blocks past the
    deadline by more than 100 ms; a `put` that returned is readable by `get`, one that raised may or may
    not be; a `get` fills `out` completely or raises, and verifies the envelope, and the payload by the checksum
    in it, best while it arrives. Thread-safe. Values are never executable.
    """

    @property
    def shared(self) -> bool:
        """Whether other instances may have stored blocks there that are to be found."""

    def put(self, block: StoredBlock, payload: U8Array, deadline_s: float) -> bool:
        """Stores a block. False: another instance's value of the same content is there, and stays."""
        ...

    def put_all(
        self, blocks: Iterable[tuple[StoredBlock, U8Array]], deadline_s: float
    ) -> Iterator[tuple[int, bool | Exception]]:
        """`put` of several blocks: the place of each in `blocks`, with what it returns or would have raised, as
        soon as it is known. Each has the deadline from the end of the one before it. They are drawn when they can
        be begun, so more may come meanwhile, and what is drawn is answered."""
        return _one_by_one(lambda pair: self.put(*pair, deadline_s), blocks)

    def get(self, fingerprint: bytes, identity: bytes, out: U8Array, deadline_s: float) -> int:
        """Reads a block into `out`; the checksum that was stored with it, which its bytes have."""
        ...

    def get_all(self, wanted: Iterable[Wanted], deadline_s: float) -> Iterator[tuple[int, int | Exception]]:
        """`get` of several blocks, as `put_all`."""
        return _one_by_one(lambda one: self.get(*one, deadline_s), wanted)

    def look(
        self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float
    ) -> list[StoredBlock | None]:
        """What is stored of each identity, with its latest statistics, without reading payloads; None where
        nothing is, or nothing whole."""

    def restate(self, fingerprint: bytes, records: Mapping[bytes, Record], deadline_s: float) -> None:
        """Newer statistics of stored blocks, by identity; those of blocks that are gone are ignored."""

    def footprints(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> list[int | None]:
        """Bytes of the store's memory that each of up to LOOK_IDENTITIES_MAX stored blocks takes, with all that is
        kept beside it. None where nothing is stored, or the store cannot tell."""

    def unlink(self, fingerprint: bytes, identities: Sequence[bytes], deadline_s: float) -> None: ...

    def probe(self, deadline_s: float) -> SpillHealth:
        """Reaches the server and looks for the marker of this instance and its epoch. Where there is none, or
        one of another epoch, a new epoch begins and is written: what was stored before is not relied upon."""

    def close(self) -> None: ...


def _one_by_one(call: Callable[[A], T], arguments: Iterable[A]) -> Iterator[tuple[int, T | Exception]]:
    """What the calls return or raise; none is made after one that found the store down."""
    answer: T | Exception | None = None
    for n, argument in enumerate(arguments):
        answer = answer if isinstance(answer, SpillDown) else attempt(call, argument)
        yield n, answer


def attempt(call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T | Exception:
    """What a call returns, or the exception that it raises: one block is never the end of others."""
    try:
        return call(*arguments, **named)
    except Exception as error:
        return error
