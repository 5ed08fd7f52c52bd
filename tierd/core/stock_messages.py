"""Commands and replies about slots that a session holds before it knows for which blocks. Part of the vocabulary of
messages.py."""

from __future__ import annotations

from dataclasses import dataclass

from tierd.core.terms import Ids, OutcomeArray, Priority, Tier
from tierd_client.format import U64Array


@dataclass(frozen=True, slots=True)
class Stock:
    """Slots for blocks of a size, without an identity: `needed` of them for blocks that are to be written now, for
    which room is made as for a Reserve, and up to `spare` for later ones, within the limits of the settings.
    `blocks`: what is being stored, which makes no room for itself."""

    session: int
    blocks: Ids
    block_bytes: int
    needed: int
    spare: int
    tier: Tier = Tier.HOST


@dataclass(frozen=True, slots=True)
class Unstock:
    """The session writes into these slots no more."""

    session: int
    generations: U64Array


@dataclass(frozen=True, slots=True)
class Store:
    """Blocks written into slots of the session's stock; generation 0: not written, only asked whether it is there.
    `retry`: a further part of an earlier call; no new tick. `commit_later`: the slots are written only now, and
    become reservations; the checksums come with their Commit."""

    session: int
    blocks: Ids
    block_bytes: int
    generations: U64Array
    checksums: U64Array
    tier: Tier = Tier.HOST
    sequence: str = ""
    priority: Priority = Priority.UNSPECIFIED
    retry: bool = False
    commit_later: bool = False


@dataclass(slots=True)
class StockReply:
    """`spare_max`: slots of this size that the session may hold while it stores nothing. `may_come`: where fewer
    were had than needed, there may be more after the moves of `waiting`, or when stocks are given back."""

    addresses: U64Array
    generations: U64Array
    spare_max: int
    may_come: bool = False
    waiting: tuple[int, ...] = ()


@dataclass(slots=True)
class StoreReply:
    outcomes: OutcomeArray


StockCommand = Stock | Unstock | Store
StockAnswer = StockReply | StoreReply
