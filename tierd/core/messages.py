"""Commands, replies and effects of the engine: the whole vocabulary between the core and its shell.

A command takes many ids. Ids are packed arrays of shape (n, 32), uint8. Arrays of a reply are parallel
to the ids of its command. Tiers, outcomes and identities are those of terms.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tierd.core.budget_messages import Budget as Budget
from tierd.core.budget_messages import BudgetCommand as BudgetCommand
from tierd.core.budget_messages import BudgetReply as BudgetReply
from tierd.core.budget_messages import BudgetSet as BudgetSet
from tierd.core.budget_messages import ListSequences as ListSequences
from tierd.core.budget_messages import Residency as Residency
from tierd.core.budget_messages import SequencePage as SequencePage
from tierd.core.budget_messages import SequenceView as SequenceView
from tierd.core.budget_messages import SetBudget as SetBudget
from tierd.core.hint_messages import CancelPrefetch as CancelPrefetch
from tierd.core.hint_messages import HintCommand as HintCommand
from tierd.core.hint_messages import HintReply as HintReply
from tierd.core.hint_messages import Pin as Pin
from tierd.core.hint_messages import PinReply as PinReply
from tierd.core.hint_messages import Prefetch as Prefetch
from tierd.core.hint_messages import PrefetchReply as PrefetchReply
from tierd.core.hint_messages import PrefetchStatus as PrefetchStatus
from tierd.core.hint_messages import Touch as Touch
from tierd.core.hint_messages import Touched as Touched
from tierd.core.hint_messages import Unpin as Unpin
from tierd.core.loan_messages import Abandon as Abandon
from tierd.core.loan_messages import Adopt as Adopt
from tierd.core.loan_messages import LoanCommand as LoanCommand
from tierd.core.loan_messages import Withdraw as Withdraw
from tierd.core.loan_messages import WithdrawReply as WithdrawReply
from tierd.core.operator_messages import BlockFilter as BlockFilter
from tierd.core.operator_messages import BorrowedSlot as BorrowedSlot
from tierd.core.operator_messages import BorrowSlot as BorrowSlot
from tierd.core.operator_messages import Drainable as Drainable
from tierd.core.operator_messages import ListDrainable as ListDrainable
from tierd.core.operator_messages import OperatorCommand as OperatorCommand
from tierd.core.operator_messages import OperatorReply as OperatorReply
from tierd.core.operator_messages import ReturnSlot as ReturnSlot
from tierd.core.operator_messages import Shares as Shares
from tierd.core.operator_messages import SharesReply as SharesReply
from tierd.core.operator_messages import StoreBelow as StoreBelow
from tierd.core.operator_messages import TierShares as TierShares
from tierd.core.session_messages import BindProcess as BindProcess
from tierd.core.session_messages import EndSession as EndSession
from tierd.core.session_messages import OpenPage as OpenPage
from tierd.core.session_messages import OpenSession as OpenSession
from tierd.core.session_messages import SessionCommand as SessionCommand
from tierd.core.spill_messages import AddFound as AddFound
from tierd.core.spill_messages import LearnFootprints as LearnFootprints
from tierd.core.spill_messages import Learnt as Learnt
from tierd.core.spill_messages import Sample as Sample
from tierd.core.spill_messages import SampleStored as SampleStored
from tierd.core.spill_messages import SpillCommand as SpillCommand
from tierd.core.spill_messages import SpillState as SpillState
from tierd.core.spill_messages import Taken as Taken
from tierd.core.spill_messages import TakeStatistics as TakeStatistics
from tierd.core.stock_messages import Stock as Stock
from tierd.core.stock_messages import StockAnswer as StockAnswer
from tierd.core.stock_messages import StockCommand as StockCommand
from tierd.core.stock_messages import StockReply as StockReply
from tierd.core.stock_messages import Store as Store
from tierd.core.stock_messages import StoreReply as StoreReply
from tierd.core.stock_messages import Unstock as Unstock
from tierd.core.terms import Aborted as Aborted
from tierd.core.terms import Acquired as Acquired
from tierd.core.terms import Adopted as Adopted
from tierd.core.terms import Committed as Committed
from tierd.core.terms import Drained as Drained
from tierd.core.terms import Evicted as Evicted
from tierd.core.terms import Ids as Ids
from tierd.core.terms import NextUse as NextUse
from tierd.core.terms import OutcomeArray as OutcomeArray
from tierd.core.terms import Pinned as Pinned
from tierd.core.terms import Prefetched as Prefetched
from tierd.core.terms import Presence as Presence
from tierd.core.terms import Priority as Priority
from tierd.core.terms import Readmitted as Readmitted
from tierd.core.terms import Record as Record
from tierd.core.terms import Reserved as Reserved
from tierd.core.terms import Stored as Stored
from tierd.core.terms import Tier as Tier
from tierd.core.terms import Withdrawn as Withdrawn
from tierd_client.format import U8Array, U64Array

# --- commands -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenSequence:
    """`others`: chains of its other groups, pinned with the first."""

    session: int
    name: str
    blocks: Ids
    priority: Priority = Priority.UNSPECIFIED
    others: tuple[Ids, ...] = ()


@dataclass(frozen=True, slots=True)
class CloseSequence:
    """`expected_s`: of SOON, seconds from now; 0 is the default of the settings."""

    session: int
    name: str
    next_use: NextUse = NextUse.NONE
    expected_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lookup:
    blocks: Ids


@dataclass(frozen=True, slots=True)
class LookupChains:
    """Chains of one prompt, each from its start."""

    chains: tuple[Ids, ...]


@dataclass(frozen=True, slots=True)
class Reserve:
    """`retry`: the rest of an earlier call that was PENDING; no new tick, no second access."""

    session: int
    blocks: Ids
    block_bytes: int
    tier: Tier = Tier.HOST
    sequence: str = ""
    retry: bool = False
    priority: Priority = Priority.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Note:
    """Blocks come in of which nothing but the identity is known, for studies of what a tier would hold."""

    session: int
    blocks: Ids
    block_bytes: int
    tier: Tier = Tier.HOST
    sequence: ClassVar[str] = ""
    retry: ClassVar[bool] = False
    priority: ClassVar[Priority] = Priority.UNSPECIFIED


@dataclass(frozen=True, slots=True)
class Commit:
    session: int
    ids: U8Array
    generations: U64Array
    checksums: U64Array
    tier: Tier = Tier.HOST
    sequence: str = ""


@dataclass(frozen=True, slots=True)
class Abort:
    session: int
    ids: U8Array
    generations: U64Array
    tier: Tier = Tier.HOST


@dataclass(frozen=True, slots=True)
class Acquire:
    """`retry`: the PENDING rest of an earlier call; no new tick. `lease`: that call's, to add the ids to; 0
    when it leased nothing. `device`: the caller can read copies in memory of a device."""

    session: int
    blocks: Ids
    sequence: str = ""
    lease: int = 0
    retry: bool = False
    device: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    session: int
    leases: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Observe:
    session: int
    sequence: str
    attention: NDArray[np.float32] | None
    steps: int = 1
    policy_epoch: int = 0


@dataclass(frozen=True, slots=True)
class Evict:
    """`retry`: the rest of an earlier call that was PENDING; moves that failed are FAILED, not begun anew."""

    blocks: Ids
    to: Tier | None
    allow_drop: bool = False
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Readmit:
    blocks: Ids
    to: Tier = Tier.HOST


@dataclass(frozen=True, slots=True)
class Clear:
    """`most`: blocks to be removed at once, None for all. `most_deletes`: those of them whose stored value is to be
    deleted; the others of that kind are left."""

    where: BlockFilter
    dry_run: bool = False
    ghosts: bool = False
    most: int | None = None
    most_deletes: int | None = None


@dataclass(frozen=True, slots=True)
class DropDamaged:
    """Copies whose bytes were found not to match: they are a miss from now on."""

    tier: Tier
    ids: U8Array
    generations: U64Array


@dataclass(frozen=True, slots=True)
class SetPolicy:
    spec: str


@dataclass(frozen=True, slots=True)
class Occupancy:
    pass


@dataclass(frozen=True, slots=True)
class ListBlocks:
    where: BlockFilter
    limit: int
    after: bytes = b""
    by_rank: bool = False


@dataclass(frozen=True, slots=True)
class Describe:
    ids: U8Array


@dataclass(frozen=True, slots=True)
class Explain:
    ids: U8Array
    tier: Tier


@dataclass(frozen=True, slots=True)
class Plan:
    tier: Tier
    bytes: int
    limit: int


class MoveResult(NamedTuple):
    """`lost`: the source is gone (its copy is dropped), or also `damaged` (what is stored is deleted); else the
    source stays as it was. `full`: the target has no room for more than it holds now. `found`: the same content
    of another daemon is at the target, and stays its own. `down`: the spill tier was not reached. `checksum`:
    of bytes from a lent page."""

    op: int
    ok: bool
    lost: bool = False
    full: bool = False
    reason: str = ""
    down: bool = False
    checksum: int = 0
    damaged: bool = False
    found: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """Moves that the shell has carried out."""

    results: tuple[MoveResult, ...]


Command = (
    OpenSequence | CloseSequence | Lookup | LookupChains | Reserve | Note | Commit | Abort | Acquire | Release
    | Observe | Evict | Readmit | Clear | DropDamaged | SetPolicy | Occupancy | ListBlocks | Describe | Explain
    | Plan | Finish | SessionCommand | SpillCommand | HintCommand | OperatorCommand | LoanCommand | StockCommand
    | BudgetCommand
)

# --- effects ------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """Copy one block from `source` to `target`; answer with a MoveResult. Address 0 in the spill tier.

    The source does not change and its slot is not re-used before the answer; nobody reads the target. `lender`: the
    session whose page the source is, else 0: it is read when its pool's fence has reached `fence`, and the
    answer tells the checksum, which `checksum` does not. `ahead`: nobody waits for it, until a Hurry names it.
    """

    op: int
    identity: bytes
    namespace: int
    group: int
    position: int
    parent: bytes | None
    size: int
    checksum: int
    source: Tier
    source_address: int
    target: Tier
    target_address: int
    record: Record
    lender: int = 0
    fence: int = 0
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Unlink:
    """Stored values that are no longer wanted. No answer; a failure leaves garbage, never a wrong hit."""

    namespace: int
    identities: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Hurry:
    """Somebody waits for these moves by now. No answer."""

    ops: tuple[int, ...]


Effect = Move | Unlink | Abandon | Hurry

# --- replies ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Done:
    """Nothing to say. `count`: blocks concerned."""

    count: int = 0


@dataclass(slots=True)
class SequenceOpened:
    step: int
    tiers: U8Array
    hit_blocks: int


@dataclass(slots=True)
class LookedUp:
    """`tiers`: bit per tier with a READY copy that can be reached: 1 hbm, 2 host, 4 spill. `below_bytes`: bytes
    of the hit that must come up first."""

    presence: OutcomeArray
    tiers: U8Array
    hit_blocks: int
    below_bytes: int


@dataclass(slots=True)
class ChainsLookedUp:
    """`tiers`: per chain, as in LookedUp. `hit_tokens`: of the hit that all of the chains support."""

    tiers: list[U8Array]
    hit_tokens: int
    below_bytes: int


@dataclass(slots=True)
class ReserveReply:
    """`waiting`: moves to wait for before the PENDING ids are asked for again; none: stocks may be given back."""

    outcomes: OutcomeArray
    addresses: U64Array
    generations: U64Array
    waiting: tuple[int, ...] = ()


@dataclass(slots=True)
class Outcomes:
    """Of Commit, Abort, Note, Evict, Readmit, Adopt."""

    outcomes: OutcomeArray
    waiting: tuple[int, ...] = ()


@dataclass(slots=True)
class AcquireReply:
    outcomes: OutcomeArray
    addresses: U64Array
    generations: U64Array
    checksums: U64Array
    tiers: U8Array
    lease: int
    waiting: tuple[int, ...] = ()


@dataclass(slots=True)
class Observed:
    step: int
    updated: int


@dataclass(slots=True)
class Cleared:
    """`copies`, `slot_bytes`: per tier. `skipped`: identities of the first of those that were in use, packed.
    `left`: blocks left because of `most_deletes`."""

    copies: dict[Tier, int]
    ghosts: int
    in_use: int
    slot_bytes: dict[Tier, int]
    skipped: bytes
    left: int


@dataclass(slots=True)
class PolicySet:
    spec: str
    epoch: int


@dataclass(slots=True)
class TierOccupancy:
    """`stocked_bytes`: of the reserved ones, those of slots that sessions hold for blocks to come. `footprints`:
    bytes of the spill store's memory that a block takes, by its size, as far as that was learnt."""

    tier: Tier
    capacity_bytes: int
    free_bytes: int
    used_bytes: int
    reserved_bytes: int
    quarantined_bytes: int
    blocks: int
    evictable_blocks: int
    leased_blocks: int
    characteristic_age_steps: float
    hits_total: int
    stored_total: int
    evicted_total: int
    demoted_total: int
    promoted_total: int
    failed_moves_total: int
    lent_blocks: int
    found_blocks: int
    shed_total: dict[str, int]
    stocked_bytes: int = 0
    over_budget_total: int = 0
    footprints: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class OccupancyReply:
    tiers: list[TierOccupancy]
    identities: int
    ghosts: int
    sessions: int
    sequences: int
    leases: int
    step: int
    misses_total: int
    moves_in_flight: int
    policy: str
    policy_epoch: int
    pinned_blocks: int = 0
    pinned_bytes: int = 0
    pinned_bytes_max: int = 0
    prefetches: int = 0
    budgeted_sequences: int = 0
    budgeted_blocks: int = 0
    read_ahead_used_total: int = 0
    read_ahead_wasted_total: int = 0


@dataclass(slots=True)
class CopyView:
    tier: Tier
    ready: bool
    address: int
    generation: int
    leases: int
    rank: float
    lent: bool = False


@dataclass(slots=True)
class BlockView:
    """The record of one identity, for people. `ghost`: no copy is left. `expected_s`, `pinned_s`: seconds left."""

    identity: bytes
    namespace: int
    group: int
    position: int
    parent: bytes | None
    size: int
    checksum: int
    record: Record
    copies: list[CopyView] = field(default_factory=list)
    sequences: int = 0
    ghost: bool = False
    priority: Priority = Priority.NORMAL
    next_use: NextUse = NextUse.NONE
    expected_s: float = 0.0
    pinned_s: float = 0.0


@dataclass(slots=True)
class BlockPage:
    """`next`: what to pass as `after`; empty on the last page. None in `blocks`: nothing is known."""

    blocks: list[BlockView | None]
    next: bytes = b""


@dataclass(slots=True)
class Explanation:
    identity: bytes
    rule: str
    terms: dict[str, float]
    rank: float
    protected_by: str
    destination: str


@dataclass(slots=True)
class Explained:
    blocks: list[Explanation]
    policy: str
    step: int


@dataclass(slots=True)
class Planned:
    victims: list[Explanation]
    enough: bool
    free_bytes: int
    victim_bytes: int
    victim_blocks: int


Reply = (
    Done | SequenceOpened | LookedUp | ChainsLookedUp | ReserveReply | Outcomes | AcquireReply | Observed | Cleared
    | PolicySet | OccupancyReply | BlockPage | Explained | Planned | HintReply | OperatorReply
    | WithdrawReply | Taken | Sample | Learnt | StockAnswer | BudgetReply
)


@dataclass(slots=True)
class Step:
    """What one command led to."""

    reply: Reply
    effects: list[Effect] = field(default_factory=list)
