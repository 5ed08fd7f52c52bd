from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_HBM: _ClassVar[Tier]
    TIER_HOST: _ClassVar[Tier]
    TIER_SPILL: _ClassVar[Tier]

class Presence(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRESENCE_UNSPECIFIED: _ClassVar[Presence]
    PRESENCE_READY: _ClassVar[Presence]
    PRESENCE_BELOW: _ClassVar[Presence]
    PRESENCE_MISS: _ClassVar[Presence]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]

class ReserveOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESERVE_OUTCOME_UNSPECIFIED: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_GRANTED: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_EXISTS: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_BUSY: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_FULL: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_PENDING: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_DUPLICATE: _ClassVar[ReserveOutcome]
    RESERVE_OUTCOME_DECLINED: _ClassVar[ReserveOutcome]

class CommitOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMMIT_OUTCOME_UNSPECIFIED: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_COMMITTED: _ClassVar[CommitOutcome]
    COMMIT_OUTCOME_STALE: _ClassVar[CommitOutcome]

class StoreOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STORE_OUTCOME_UNSPECIFIED: _ClassVar[StoreOutcome]
    STORE_OUTCOME_STORED: _ClassVar[StoreOutcome]
    STORE_OUTCOME_EXISTS: _ClassVar[StoreOutcome]
    STORE_OUTCOME_BUSY: _ClassVar[StoreOutcome]
    STORE_OUTCOME_FULL: _ClassVar[StoreOutcome]
    STORE_OUTCOME_ABSENT: _ClassVar[StoreOutcome]
    STORE_OUTCOME_DUPLICATE: _ClassVar[StoreOutcome]
    STORE_OUTCOME_STALE: _ClassVar[StoreOutcome]
    STORE_OUTCOME_DECLINED: _ClassVar[StoreOutcome]
    STORE_OUTCOME_GRANTED: _ClassVar[StoreOutcome]

class AbortOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ABORT_OUTCOME_UNSPECIFIED: _ClassVar[AbortOutcome]
    ABORT_OUTCOME_ABORTED: _ClassVar[AbortOutcome]
    ABORT_OUTCOME_STALE: _ClassVar[AbortOutcome]

class AcquireOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACQUIRE_OUTCOME_UNSPECIFIED: _ClassVar[AcquireOutcome]
    ACQUIRE_OUTCOME_LEASED: _ClassVar[AcquireOutcome]
    ACQUIRE_OUTCOME_MISS: _ClassVar[AcquireOutcome]
    ACQUIRE_OUTCOME_PENDING: _ClassVar[AcquireOutcome]
    ACQUIRE_OUTCOME_LOST: _ClassVar[AcquireOutcome]
    ACQUIRE_OUTCOME_FULL: _ClassVar[AcquireOutcome]

class NextUse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEXT_USE_UNSPECIFIED: _ClassVar[NextUse]
    NEXT_USE_TOOL_CALL: _ClassVar[NextUse]
    NEXT_USE_HUMAN: _ClassVar[NextUse]
    NEXT_USE_CLOSED: _ClassVar[NextUse]

class BlockResidency(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_RESIDENCY_UNSPECIFIED: _ClassVar[BlockResidency]
    BLOCK_RESIDENCY_KEPT: _ClassVar[BlockResidency]
    BLOCK_RESIDENCY_AWAY: _ClassVar[BlockResidency]
    BLOCK_RESIDENCY_LEAVING: _ClassVar[BlockResidency]
    BLOCK_RESIDENCY_GIVEN_UP: _ClassVar[BlockResidency]

class EvictOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EVICT_OUTCOME_UNSPECIFIED: _ClassVar[EvictOutcome]
    EVICT_OUTCOME_MOVED: _ClassVar[EvictOutcome]
    EVICT_OUTCOME_DROPPED: _ClassVar[EvictOutcome]
    EVICT_OUTCOME_MISS: _ClassVar[EvictOutcome]
    EVICT_OUTCOME_IN_USE: _ClassVar[EvictOutcome]
    EVICT_OUTCOME_FAILED: _ClassVar[EvictOutcome]
    EVICT_OUTCOME_PENDING: _ClassVar[EvictOutcome]

class ReadmitOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READMIT_OUTCOME_UNSPECIFIED: _ClassVar[ReadmitOutcome]
    READMIT_OUTCOME_READY: _ClassVar[ReadmitOutcome]
    READMIT_OUTCOME_MISS: _ClassVar[ReadmitOutcome]
    READMIT_OUTCOME_PENDING: _ClassVar[ReadmitOutcome]
    READMIT_OUTCOME_FULL: _ClassVar[ReadmitOutcome]
    READMIT_OUTCOME_LOST: _ClassVar[ReadmitOutcome]

class PinOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PIN_OUTCOME_UNSPECIFIED: _ClassVar[PinOutcome]
    PIN_OUTCOME_PINNED: _ClassVar[PinOutcome]
    PIN_OUTCOME_MISS: _ClassVar[PinOutcome]

class PrefetchOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PREFETCH_OUTCOME_UNSPECIFIED: _ClassVar[PrefetchOutcome]
    PREFETCH_OUTCOME_READY: _ClassVar[PrefetchOutcome]
    PREFETCH_OUTCOME_MISS: _ClassVar[PrefetchOutcome]
    PREFETCH_OUTCOME_PENDING: _ClassVar[PrefetchOutcome]
    PREFETCH_OUTCOME_FULL: _ClassVar[PrefetchOutcome]
    PREFETCH_OUTCOME_LOST: _ClassVar[PrefetchOutcome]
    PREFETCH_OUTCOME_EXPIRED: _ClassVar[PrefetchOutcome]

class PutOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PUT_OUTCOME_UNSPECIFIED: _ClassVar[PutOutcome]
    PUT_OUTCOME_STORED: _ClassVar[PutOutcome]
    PUT_OUTCOME_EXISTS: _ClassVar[PutOutcome]
    PUT_OUTCOME_BUSY: _ClassVar[PutOutcome]
    PUT_OUTCOME_FULL: _ClassVar[PutOutcome]
    PUT_OUTCOME_PENDING: _ClassVar[PutOutcome]
    PUT_OUTCOME_DUPLICATE: _ClassVar[PutOutcome]
    PUT_OUTCOME_CORRUPT: _ClassVar[PutOutcome]
    PUT_OUTCOME_QUEUED: _ClassVar[PutOutcome]
    PUT_OUTCOME_DECLINED: _ClassVar[PutOutcome]
TIER_UNSPECIFIED: Tier
TIER_HBM: Tier
TIER_HOST: Tier
TIER_SPILL: Tier
PRESENCE_UNSPECIFIED: Presence
PRESENCE_READY: Presence
PRESENCE_BELOW: Presence
PRESENCE_MISS: Presence
PRIORITY_UNSPECIFIED: Priority
PRIORITY_LOW: Priority
PRIORITY_NORMAL: Priority
PRIORITY_HIGH: Priority
RESERVE_OUTCOME_UNSPECIFIED: ReserveOutcome
RESERVE_OUTCOME_GRANTED: ReserveOutcome
RESERVE_OUTCOME_EXISTS: ReserveOutcome
RESERVE_OUTCOME_BUSY: ReserveOutcome
RESERVE_OUTCOME_FULL: ReserveOutcome
RESERVE_OUTCOME_PENDING: ReserveOutcome
RESERVE_OUTCOME_DUPLICATE: ReserveOutcome
RESERVE_OUTCOME_DECLINED: ReserveOutcome
COMMIT_OUTCOME_UNSPECIFIED: CommitOutcome
COMMIT_OUTCOME_COMMITTED: CommitOutcome
COMMIT_OUTCOME_STALE: CommitOutcome
STORE_OUTCOME_UNSPECIFIED: StoreOutcome
STORE_OUTCOME_STORED: StoreOutcome
STORE_OUTCOME_EXISTS: StoreOutcome
STORE_OUTCOME_BUSY: StoreOutcome
STORE_OUTCOME_FULL: StoreOutcome
STORE_OUTCOME_ABSENT: StoreOutcome
STORE_OUTCOME_DUPLICATE: StoreOutcome
STORE_OUTCOME_STALE: StoreOutcome
STORE_OUTCOME_DECLINED: StoreOutcome
STORE_OUTCOME_GRANTED: StoreOutcome
ABORT_OUTCOME_UNSPECIFIED: AbortOutcome
ABORT_OUTCOME_ABORTED: AbortOutcome
ABORT_OUTCOME_STALE: AbortOutcome
ACQUIRE_OUTCOME_UNSPECIFIED: AcquireOutcome
ACQUIRE_OUTCOME_LEASED: AcquireOutcome
ACQUIRE_OUTCOME_MISS: AcquireOutcome
ACQUIRE_OUTCOME_PENDING: AcquireOutcome
ACQUIRE_OUTCOME_LOST: AcquireOutcome
ACQUIRE_OUTCOME_FULL: AcquireOutcome
NEXT_USE_UNSPECIFIED: NextUse
NEXT_USE_TOOL_CALL: NextUse
NEXT_USE_HUMAN: NextUse
NEXT_USE_CLOSED: NextUse
BLOCK_RESIDENCY_UNSPECIFIED: BlockResidency
BLOCK_RESIDENCY_KEPT: BlockResidency
BLOCK_RESIDENCY_AWAY: BlockResidency
BLOCK_RESIDENCY_LEAVING: BlockResidency
BLOCK_RESIDENCY_GIVEN_UP: BlockResidency
EVICT_OUTCOME_UNSPECIFIED: EvictOutcome
EVICT_OUTCOME_MOVED: EvictOutcome
EVICT_OUTCOME_DROPPED: EvictOutcome
EVICT_OUTCOME_MISS: EvictOutcome
EVICT_OUTCOME_IN_USE: EvictOutcome
EVICT_OUTCOME_FAILED: EvictOutcome
EVICT_OUTCOME_PENDING: EvictOutcome
READMIT_OUTCOME_UNSPECIFIED: ReadmitOutcome
READMIT_OUTCOME_READY: ReadmitOutcome
READMIT_OUTCOME_MISS: ReadmitOutcome
READMIT_OUTCOME_PENDING: ReadmitOutcome
READMIT_OUTCOME_FULL: ReadmitOutcome
READMIT_OUTCOME_LOST: ReadmitOutcome
PIN_OUTCOME_UNSPECIFIED: PinOutcome
PIN_OUTCOME_PINNED: PinOutcome
PIN_OUTCOME_MISS: PinOutcome
PREFETCH_OUTCOME_UNSPECIFIED: PrefetchOutcome
PREFETCH_OUTCOME_READY: PrefetchOutcome
PREFETCH_OUTCOME_MISS: PrefetchOutcome
PREFETCH_OUTCOME_PENDING: PrefetchOutcome
PREFETCH_OUTCOME_FULL: PrefetchOutcome
PREFETCH_OUTCOME_LOST: PrefetchOutcome
PREFETCH_OUTCOME_EXPIRED: PrefetchOutcome
PUT_OUTCOME_UNSPECIFIED: PutOutcome
PUT_OUTCOME_STORED: PutOutcome
PUT_OUTCOME_EXISTS: PutOutcome
PUT_OUTCOME_BUSY: PutOutcome
PUT_OUTCOME_FULL: PutOutcome
PUT_OUTCOME_PENDING: PutOutcome
PUT_OUTCOME_DUPLICATE: PutOutcome
PUT_OUTCOME_CORRUPT: PutOutcome
PUT_OUTCOME_QUEUED: PutOutcome
PUT_OUTCOME_DECLINED: PutOutcome

class RegisterNamespaceRequest(_message.Message):
    __slots__ = ("schema_version", "fingerprint", "canonical", "name", "domain")
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CANONICAL_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    fingerprint: bytes
    canonical: bytes
    name: str
    domain: str
    def __init__(self, schema_version: _Optional[int] = ..., fingerprint: _Optional[bytes] = ..., canonical: _Optional[bytes] = ..., name: _Optional[str] = ..., domain: _Optional[str] = ...) -> None: ...

class RegisterNamespaceResponse(_message.Message):
    __slots__ = ("namespace", "block_bytes", "boot_id")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    block_bytes: _containers.RepeatedScalarFieldContainer[int]
    boot_id: bytes
    def __init__(self, namespace: _Optional[int] = ..., block_bytes: _Optional[_Iterable[int]] = ..., boot_id: _Optional[bytes] = ...) -> None: ...

class SessionRequest(_message.Message):
    __slots__ = ("client_name", "protocol_version", "pid")
    CLIENT_NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    client_name: str
    protocol_version: int
    pid: int
    def __init__(self, client_name: _Optional[str] = ..., protocol_version: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class SessionInfo(_message.Message):
    __slots__ = ("session", "token", "boot_id", "instance_id", "attach_path", "heartbeat_ms", "max_ids", "max_held", "policy_epoch", "server_version", "stock_bytes", "return_stock", "commits_later")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    ATTACH_PATH_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    MAX_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_HELD_FIELD_NUMBER: _ClassVar[int]
    POLICY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    STOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETURN_STOCK_FIELD_NUMBER: _ClassVar[int]
    COMMITS_LATER_FIELD_NUMBER: _ClassVar[int]
    session: int
    token: bytes
    boot_id: bytes
    instance_id: bytes
    attach_path: str
    heartbeat_ms: int
    max_ids: int
    max_held: int
    policy_epoch: int
    server_version: str
    stock_bytes: int
    return_stock: bool
    commits_later: bool
    def __init__(self, session: _Optional[int] = ..., token: _Optional[bytes] = ..., boot_id: _Optional[bytes] = ..., instance_id: _Optional[bytes] = ..., attach_path: _Optional[str] = ..., heartbeat_ms: _Optional[int] = ..., max_ids: _Optional[int] = ..., max_held: _Optional[int] = ..., policy_epoch: _Optional[int] = ..., server_version: _Optional[str] = ..., stock_bytes: _Optional[int] = ..., return_stock: bool = ..., commits_later: bool = ...) -> None: ...

class DetachRequest(_message.Message):
    __slots__ = ("session", "token")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    session: int
    token: bytes
    def __init__(self, session: _Optional[int] = ..., token: _Optional[bytes] = ...) -> None: ...

class DetachResponse(_message.Message):
    __slots__ = ("released_blocks",)
    RELEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    released_blocks: int
    def __init__(self, released_blocks: _Optional[int] = ...) -> None: ...

class GiveUpRequest(_message.Message):
    __slots__ = ("session", "call")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    session: int
    call: int
    def __init__(self, session: _Optional[int] = ..., call: _Optional[int] = ...) -> None: ...

class GiveUpResponse(_message.Message):
    __slots__ = ("released_blocks",)
    RELEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    released_blocks: int
    def __init__(self, released_blocks: _Optional[int] = ...) -> None: ...

class BlockIds(_message.Message):
    __slots__ = ("namespace", "group", "ids", "chain", "position", "parent")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    group: int
    ids: bytes
    chain: bool
    position: int
    parent: bytes
    def __init__(self, namespace: _Optional[int] = ..., group: _Optional[int] = ..., ids: _Optional[bytes] = ..., chain: bool = ..., position: _Optional[int] = ..., parent: _Optional[bytes] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockIds
    def __init__(self, blocks: _Optional[_Union[BlockIds, _Mapping]] = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("presence", "tiers", "hit_blocks", "ready_in_ms")
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    READY_IN_MS_FIELD_NUMBER: _ClassVar[int]
    presence: _containers.RepeatedScalarFieldContainer[Presence]
    tiers: bytes
    hit_blocks: int
    ready_in_ms: int
    def __init__(self, presence: _Optional[_Iterable[_Union[Presence, str]]] = ..., tiers: _Optional[bytes] = ..., hit_blocks: _Optional[int] = ..., ready_in_ms: _Optional[int] = ...) -> None: ...

class LookupChainsRequest(_message.Message):
    __slots__ = ("chains",)
    CHAINS_FIELD_NUMBER: _ClassVar[int]
    chains: _containers.RepeatedCompositeFieldContainer[BlockIds]
    def __init__(self, chains: _Optional[_Iterable[_Union[BlockIds, _Mapping]]] = ...) -> None: ...

class LookupChainsResponse(_message.Message):
    __slots__ = ("tiers", "hit_tokens", "ready_in_ms")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    READY_IN_MS_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedScalarFieldContainer[bytes]
    hit_tokens: int
    ready_in_ms: int
    def __init__(self, tiers: _Optional[_Iterable[bytes]] = ..., hit_tokens: _Optional[int] = ..., ready_in_ms: _Optional[int] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("session", "blocks", "tier", "sequence", "timeout_ms", "call", "priority", "knows_declined")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    KNOWS_DECLINED_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    tier: Tier
    sequence: str
    timeout_ms: int
    call: int
    priority: Priority
    knows_declined: bool
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., tier: _Optional[_Union[Tier, str]] = ..., sequence: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., call: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., knows_declined: bool = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ("outcomes", "addresses", "generations", "tier")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[ReserveOutcome]
    addresses: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    tier: Tier
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ReserveOutcome, str]]] = ..., addresses: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[Tier, str]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ("session", "ids", "generations", "checksums", "tier", "sequence")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    ids: bytes
    generations: _containers.RepeatedScalarFieldContainer[int]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    tier: Tier
    sequence: str
    def __init__(self, session: _Optional[int] = ..., ids: _Optional[bytes] = ..., generations: _Optional[_Iterable[int]] = ..., checksums: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[Tier, str]] = ..., sequence: _Optional[str] = ...) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[CommitOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[CommitOutcome, str]]] = ...) -> None: ...

class StoreRequest(_message.Message):
    __slots__ = ("session", "blocks", "places", "generations", "checksums", "tier", "sequence", "priority", "further", "slots_max", "spare_slots", "timeout_ms", "returned", "knows_declined", "commit_later")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    FURTHER_FIELD_NUMBER: _ClassVar[int]
    SLOTS_MAX_FIELD_NUMBER: _ClassVar[int]
    SPARE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    RETURNED_FIELD_NUMBER: _ClassVar[int]
    KNOWS_DECLINED_FIELD_NUMBER: _ClassVar[int]
    COMMIT_LATER_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    places: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    tier: Tier
    sequence: str
    priority: Priority
    further: bool
    slots_max: int
    spare_slots: int
    timeout_ms: int
    returned: _containers.RepeatedScalarFieldContainer[int]
    knows_declined: bool
    commit_later: bool
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., places: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., checksums: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[Tier, str]] = ..., sequence: _Optional[str] = ..., priority: _Optional[_Union[Priority, str]] = ..., further: bool = ..., slots_max: _Optional[int] = ..., spare_slots: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., returned: _Optional[_Iterable[int]] = ..., knows_declined: bool = ..., commit_later: bool = ...) -> None: ...

class StoreResponse(_message.Message):
    __slots__ = ("outcomes", "addresses", "generations", "tier", "spare_max")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SPARE_MAX_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[StoreOutcome]
    addresses: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    tier: Tier
    spare_max: int
    def __init__(self, outcomes: _Optional[_Iterable[_Union[StoreOutcome, str]]] = ..., addresses: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[Tier, str]] = ..., spare_max: _Optional[int] = ...) -> None: ...

class AbortRequest(_message.Message):
    __slots__ = ("session", "ids", "generations", "tier")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    session: int
    ids: bytes
    generations: _containers.RepeatedScalarFieldContainer[int]
    tier: Tier
    def __init__(self, session: _Optional[int] = ..., ids: _Optional[bytes] = ..., generations: _Optional[_Iterable[int]] = ..., tier: _Optional[_Union[Tier, str]] = ...) -> None: ...

class AbortResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[AbortOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[AbortOutcome, str]]] = ...) -> None: ...

class AcquireRequest(_message.Message):
    __slots__ = ("session", "blocks", "sequence", "timeout_ms", "device_memory", "call")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    sequence: str
    timeout_ms: int
    device_memory: bool
    call: int
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., sequence: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., device_memory: bool = ..., call: _Optional[int] = ...) -> None: ...

class AcquireResponse(_message.Message):
    __slots__ = ("outcomes", "addresses", "generations", "checksums", "tiers", "lease")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[AcquireOutcome]
    addresses: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    tiers: bytes
    lease: int
    def __init__(self, outcomes: _Optional[_Iterable[_Union[AcquireOutcome, str]]] = ..., addresses: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., checksums: _Optional[_Iterable[int]] = ..., tiers: _Optional[bytes] = ..., lease: _Optional[int] = ...) -> None: ...

class ReportDamageRequest(_message.Message):
    __slots__ = ("session", "blocks", "timeout_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    timeout_ms: int
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ReportDamageResponse(_message.Message):
    __slots__ = ("damaged_blocks", "intact_blocks")
    DAMAGED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    INTACT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    damaged_blocks: int
    intact_blocks: int
    def __init__(self, damaged_blocks: _Optional[int] = ..., intact_blocks: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("session", "leases")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    session: int
    leases: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, session: _Optional[int] = ..., leases: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleaseResponse(_message.Message):
    __slots__ = ("released_blocks",)
    RELEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    released_blocks: int
    def __init__(self, released_blocks: _Optional[int] = ...) -> None: ...

class OpenSequenceRequest(_message.Message):
    __slots__ = ("session", "sequence", "blocks", "priority", "others")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: str
    blocks: BlockIds
    priority: Priority
    others: _containers.RepeatedCompositeFieldContainer[BlockIds]
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[str] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., priority: _Optional[_Union[Priority, str]] = ..., others: _Optional[_Iterable[_Union[BlockIds, _Mapping]]] = ...) -> None: ...

class SequenceBudget(_message.Message):
    __slots__ = ("blocks", "recent_blocks", "sink_blocks", "lossy", "policy")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    RECENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SINK_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LOSSY_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    recent_blocks: int
    sink_blocks: int
    lossy: bool
    policy: str
    def __init__(self, blocks: _Optional[int] = ..., recent_blocks: _Optional[int] = ..., sink_blocks: _Optional[int] = ..., lossy: bool = ..., policy: _Optional[str] = ...) -> None: ...

class OpenSequenceResponse(_message.Message):
    __slots__ = ("step", "tiers", "hit_blocks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    HIT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    tiers: bytes
    hit_blocks: int
    def __init__(self, step: _Optional[int] = ..., tiers: _Optional[bytes] = ..., hit_blocks: _Optional[int] = ...) -> None: ...

class CloseSequenceRequest(_message.Message):
    __slots__ = ("session", "sequence", "next_use", "stop_reason", "expected_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_USE_FIELD_NUMBER: _ClassVar[int]
    STOP_REASON_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: str
    next_use: NextUse
    stop_reason: str
    expected_ms: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[str] = ..., next_use: _Optional[_Union[NextUse, str]] = ..., stop_reason: _Optional[str] = ..., expected_ms: _Optional[int] = ...) -> None: ...

class CloseSequenceResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ObserveRequest(_message.Message):
    __slots__ = ("session", "sequence", "attention", "steps", "policy_epoch")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    POLICY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: str
    attention: bytes
    steps: int
    policy_epoch: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[str] = ..., attention: _Optional[bytes] = ..., steps: _Optional[int] = ..., policy_epoch: _Optional[int] = ...) -> None: ...

class ObserveResponse(_message.Message):
    __slots__ = ("step", "updated_blocks")
    STEP_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    step: int
    updated_blocks: int
    def __init__(self, step: _Optional[int] = ..., updated_blocks: _Optional[int] = ...) -> None: ...

class SetBudgetRequest(_message.Message):
    __slots__ = ("session", "sequence", "budget", "attention", "steps", "timeout_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    ATTENTION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: str
    budget: SequenceBudget
    attention: bytes
    steps: int
    timeout_ms: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[str] = ..., budget: _Optional[_Union[SequenceBudget, _Mapping]] = ..., attention: _Optional[bytes] = ..., steps: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class SetBudgetResponse(_message.Message):
    __slots__ = ("budget", "residency")
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    RESIDENCY_FIELD_NUMBER: _ClassVar[int]
    budget: SequenceBudget
    residency: _containers.RepeatedScalarFieldContainer[BlockResidency]
    def __init__(self, budget: _Optional[_Union[SequenceBudget, _Mapping]] = ..., residency: _Optional[_Iterable[_Union[BlockResidency, str]]] = ...) -> None: ...

class EvictRequest(_message.Message):
    __slots__ = ("blocks", "to", "allow_drop", "timeout_ms")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    ALLOW_DROP_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockIds
    to: Tier
    allow_drop: bool
    timeout_ms: int
    def __init__(self, blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., to: _Optional[_Union[Tier, str]] = ..., allow_drop: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class EvictResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[EvictOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[EvictOutcome, str]]] = ...) -> None: ...

class ReadmitRequest(_message.Message):
    __slots__ = ("blocks", "to", "timeout_ms")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockIds
    to: Tier
    timeout_ms: int
    def __init__(self, blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., to: _Optional[_Union[Tier, str]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class ReadmitResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[ReadmitOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[ReadmitOutcome, str]]] = ...) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("blocks", "ttl_ms")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockIds
    ttl_ms: int
    def __init__(self, blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("outcomes", "ttl_ms")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    TTL_MS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[PinOutcome]
    ttl_ms: int
    def __init__(self, outcomes: _Optional[_Iterable[_Union[PinOutcome, str]]] = ..., ttl_ms: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: BlockIds
    def __init__(self, blocks: _Optional[_Union[BlockIds, _Mapping]] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ("unpinned_blocks",)
    UNPINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    unpinned_blocks: int
    def __init__(self, unpinned_blocks: _Optional[int] = ...) -> None: ...

class TouchRequest(_message.Message):
    __slots__ = ("session", "blocks", "counts", "sequence", "read_hbm_blocks", "read_host_blocks")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    READ_HBM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    READ_HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    counts: _containers.RepeatedScalarFieldContainer[int]
    sequence: str
    read_hbm_blocks: int
    read_host_blocks: int
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., counts: _Optional[_Iterable[int]] = ..., sequence: _Optional[str] = ..., read_hbm_blocks: _Optional[int] = ..., read_host_blocks: _Optional[int] = ...) -> None: ...

class TouchResponse(_message.Message):
    __slots__ = ("step", "touched_blocks", "touched_ghosts")
    STEP_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOUCHED_GHOSTS_FIELD_NUMBER: _ClassVar[int]
    step: int
    touched_blocks: int
    touched_ghosts: int
    def __init__(self, step: _Optional[int] = ..., touched_blocks: _Optional[int] = ..., touched_ghosts: _Optional[int] = ...) -> None: ...

class PrefetchRequest(_message.Message):
    __slots__ = ("session", "blocks", "to", "within_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TO_FIELD_NUMBER: _ClassVar[int]
    WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    to: Tier
    within_ms: int
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., to: _Optional[_Union[Tier, str]] = ..., within_ms: _Optional[int] = ...) -> None: ...

class PrefetchStatusRequest(_message.Message):
    __slots__ = ("session", "ticket", "timeout_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    ticket: int
    timeout_ms: int
    def __init__(self, session: _Optional[int] = ..., ticket: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class CancelPrefetchRequest(_message.Message):
    __slots__ = ("session", "ticket")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    session: int
    ticket: int
    def __init__(self, session: _Optional[int] = ..., ticket: _Optional[int] = ...) -> None: ...

class PrefetchResponse(_message.Message):
    __slots__ = ("ticket", "outcomes", "done", "left_ms")
    TICKET_FIELD_NUMBER: _ClassVar[int]
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LEFT_MS_FIELD_NUMBER: _ClassVar[int]
    ticket: int
    outcomes: _containers.RepeatedScalarFieldContainer[PrefetchOutcome]
    done: bool
    left_ms: int
    def __init__(self, ticket: _Optional[int] = ..., outcomes: _Optional[_Iterable[_Union[PrefetchOutcome, str]]] = ..., done: bool = ..., left_ms: _Optional[int] = ...) -> None: ...

class ShadowRequest(_message.Message):
    __slots__ = ("session", "blocks", "asked_blocks", "served_blocks", "block_bytes", "prefill_tokens_per_s", "continued", "ended")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ASKED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SERVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    CONTINUED_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    asked_blocks: int
    served_blocks: int
    block_bytes: int
    prefill_tokens_per_s: float
    continued: bool
    ended: bool
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., asked_blocks: _Optional[int] = ..., served_blocks: _Optional[int] = ..., block_bytes: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., continued: bool = ..., ended: bool = ...) -> None: ...

class ShadowResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PutHeader(_message.Message):
    __slots__ = ("session", "blocks", "tier", "sequence", "timeout_ms", "priority", "checksums", "knows_declined")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    KNOWS_DECLINED_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    tier: Tier
    sequence: str
    timeout_ms: int
    priority: Priority
    checksums: _containers.RepeatedScalarFieldContainer[int]
    knows_declined: bool
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., tier: _Optional[_Union[Tier, str]] = ..., sequence: _Optional[str] = ..., timeout_ms: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., checksums: _Optional[_Iterable[int]] = ..., knows_declined: bool = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: PutHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[PutHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[PutOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[PutOutcome, str]]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("session", "blocks", "sequence", "timeout_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: BlockIds
    sequence: str
    timeout_ms: int
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[BlockIds, _Mapping]] = ..., sequence: _Optional[str] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class GetHeader(_message.Message):
    __slots__ = ("outcomes", "checksums", "block_bytes", "tiers")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[AcquireOutcome]
    checksums: _containers.RepeatedScalarFieldContainer[int]
    block_bytes: int
    tiers: bytes
    def __init__(self, outcomes: _Optional[_Iterable[_Union[AcquireOutcome, str]]] = ..., checksums: _Optional[_Iterable[int]] = ..., block_bytes: _Optional[int] = ..., tiers: _Optional[bytes] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("header", "data")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    header: GetHeader
    data: bytes
    def __init__(self, header: _Optional[_Union[GetHeader, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...
