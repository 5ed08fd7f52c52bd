"""Commands, replies and effects about pages that engines lend."""

from __future__ import annotations

from dataclasses import dataclass

from tierd.core.terms import Ids, OutcomeArray
from tierd_client.format import U64Array


@dataclass(frozen=True, slots=True)
class Adopt:
    """The session lends blocks where it has them: each in its page of `pool`, to be read once the pool's fence has
    reached the value of the block (0: at once)."""

    session: int
    blocks: Ids
    block_bytes: int
    pool: int
    pages: U64Array
    fences: U64Array
    sequence: str = ""


@dataclass(frozen=True, slots=True)
class Withdraw:
    """The session wants pages back. `save`: what lies nowhere else is copied down first; else a copy under way is
    abandoned. Pages that are not lent are WITHDRAWN at once. `pages`: None for all of the pool that are lent."""

    session: int
    pool: int
    pages: U64Array | None
    save: bool = False


LoanCommand = Adopt | Withdraw


@dataclass(slots=True)
class WithdrawReply:
    """`pages`: those named, or all that were lent."""

    outcomes: OutcomeArray
    pages: U64Array
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Abandon:
    """Moves that need not be carried out any more, if they have not begun. Each is answered all the same."""

    ops: tuple[int, ...]
