from tierd_client.v1 import blocks_pb2 as _blocks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BlockSort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BLOCK_SORT_UNSPECIFIED: _ClassVar[BlockSort]
    BLOCK_SORT_RANK: _ClassVar[BlockSort]

class DrainState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAIN_STATE_UNSPECIFIED: _ClassVar[DrainState]
    DRAIN_STATE_RUNNING: _ClassVar[DrainState]
    DRAIN_STATE_DONE: _ClassVar[DrainState]
    DRAIN_STATE_DEADLINE: _ClassVar[DrainState]
    DRAIN_STATE_FULL: _ClassVar[DrainState]
    DRAIN_STATE_DOWN: _ClassVar[DrainState]
BLOCK_SORT_UNSPECIFIED: BlockSort
BLOCK_SORT_RANK: BlockSort
DRAIN_STATE_UNSPECIFIED: DrainState
DRAIN_STATE_RUNNING: DrainState
DRAIN_STATE_DONE: DrainState
DRAIN_STATE_DEADLINE: DrainState
DRAIN_STATE_FULL: DrainState
DRAIN_STATE_DOWN: DrainState

class OccupancyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TierOccupancy(_message.Message):
    __slots__ = ("tier", "capacity_bytes", "free_bytes", "used_bytes", "reserved_bytes", "quarantined_bytes", "blocks", "evictable_blocks", "leased_blocks", "requested_bytes", "serving", "state", "characteristic_age_steps", "hits_total", "stored_total", "evicted_total", "demoted_total", "promoted_total", "failed_moves_total", "lent_blocks", "found_blocks", "shed_total", "stocked_bytes", "footprints", "over_budget_total")
    class ShedTotalEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class FootprintsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: int
        def __init__(self, key: _Optional[int] = ..., value: _Optional[int] = ...) -> None: ...
    TIER_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    EVICTABLE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEASED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SERVING_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHARACTERISTIC_AGE_STEPS_FIELD_NUMBER: _ClassVar[int]
    HITS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STORED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    EVICTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    DEMOTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    FAILED_MOVES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    LENT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FOUND_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SHED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STOCKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FOOTPRINTS_FIELD_NUMBER: _ClassVar[int]
    OVER_BUDGET_TOTAL_FIELD_NUMBER: _ClassVar[int]
    tier: _blocks_pb2.Tier
    capacity_bytes: int
    free_bytes: int
    used_bytes: int
    reserved_bytes: int
    quarantined_bytes: int
    blocks: int
    evictable_blocks: int
    leased_blocks: int
    requested_bytes: int
    serving: bool
    state: str
    characteristic_age_steps: float
    hits_total: int
    stored_total: int
    evicted_total: int
    demoted_total: int
    promoted_total: int
    failed_moves_total: int
    lent_blocks: int
    found_blocks: int
    shed_total: _containers.ScalarMap[str, int]
    stocked_bytes: int
    footprints: _containers.ScalarMap[int, int]
    over_budget_total: int
    def __init__(self, tier: _Optional[_Union[_blocks_pb2.Tier, str]] = ..., capacity_bytes: _Optional[int] = ..., free_bytes: _Optional[int] = ..., used_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ..., quarantined_bytes: _Optional[int] = ..., blocks: _Optional[int] = ..., evictable_blocks: _Optional[int] = ..., leased_blocks: _Optional[int] = ..., requested_bytes: _Optional[int] = ..., serving: bool = ..., state: _Optional[str] = ..., characteristic_age_steps: _Optional[float] = ..., hits_total: _Optional[int] = ..., stored_total: _Optional[int] = ..., evicted_total: _Optional[int] = ..., demoted_total: _Optional[int] = ..., promoted_total: _Optional[int] = ..., failed_moves_total: _Optional[int] = ..., lent_blocks: _Optional[int] = ..., found_blocks: _Optional[int] = ..., shed_total: _Optional[_Mapping[str, int]] = ..., stocked_bytes: _Optional[int] = ..., footprints: _Optional[_Mapping[int, int]] = ..., over_budget_total: _Optional[int] = ...) -> None: ...

class OccupancyResponse(_message.Message):
    __slots__ = ("tiers", "identities", "ghosts", "sessions", "sequences", "leases", "step", "boot_id", "instance_id", "uptime_s", "misses_total", "moves_in_flight", "policy", "policy_epoch", "pinned_blocks", "pinned_bytes", "pinned_bytes_max", "prefetches", "budgeted_sequences", "budgeted_blocks", "read_ahead_used_total", "read_ahead_wasted_total")
    TIERS_FIELD_NUMBER: _ClassVar[int]
    IDENTITIES_FIELD_NUMBER: _ClassVar[int]
    GHOSTS_FIELD_NUMBER: _ClassVar[int]
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    UPTIME_S_FIELD_NUMBER: _ClassVar[int]
    MISSES_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MOVES_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PINNED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PINNED_BYTES_MAX_FIELD_NUMBER: _ClassVar[int]
    PREFETCHES_FIELD_NUMBER: _ClassVar[int]
    BUDGETED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    BUDGETED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    READ_AHEAD_USED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    READ_AHEAD_WASTED_TOTAL_FIELD_NUMBER: _ClassVar[int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierOccupancy]
    identities: int
    ghosts: int
    sessions: int
    sequences: int
    leases: int
    step: int
    boot_id: bytes
    instance_id: bytes
    uptime_s: float
    misses_total: int
    moves_in_flight: int
    policy: str
    policy_epoch: int
    pinned_blocks: int
    pinned_bytes: int
    pinned_bytes_max: int
    prefetches: int
    budgeted_sequences: int
    budgeted_blocks: int
    read_ahead_used_total: int
    read_ahead_wasted_total: int
    def __init__(self, tiers: _Optional[_Iterable[_Union[TierOccupancy, _Mapping]]] = ..., identities: _Optional[int] = ..., ghosts: _Optional[int] = ..., sessions: _Optional[int] = ..., sequences: _Optional[int] = ..., leases: _Optional[int] = ..., step: _Optional[int] = ..., boot_id: _Optional[bytes] = ..., instance_id: _Optional[bytes] = ..., uptime_s: _Optional[float] = ..., misses_total: _Optional[int] = ..., moves_in_flight: _Optional[int] = ..., policy: _Optional[str] = ..., policy_epoch: _Optional[int] = ..., pinned_blocks: _Optional[int] = ..., pinned_bytes: _Optional[int] = ..., pinned_bytes_max: _Optional[int] = ..., prefetches: _Optional[int] = ..., budgeted_sequences: _Optional[int] = ..., budgeted_blocks: _Optional[int] = ..., read_ahead_used_total: _Optional[int] = ..., read_ahead_wasted_total: _Optional[int] = ...) -> None: ...

class BlockFilter(_message.Message):
    __slots__ = ("namespace", "tier", "identity_prefix", "in_use", "model", "revision", "weights_epoch", "weights_epoch_below", "tenant", "group", "older_than_s", "pinned")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_PREFIX_FIELD_NUMBER: _ClassVar[int]
    IN_USE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_EPOCH_BELOW_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    OLDER_THAN_S_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    tier: _blocks_pb2.Tier
    identity_prefix: bytes
    in_use: bool
    model: str
    revision: str
    weights_epoch: int
    weights_epoch_below: int
    tenant: str
    group: int
    older_than_s: float
    pinned: bool
    def __init__(self, namespace: _Optional[int] = ..., tier: _Optional[_Union[_blocks_pb2.Tier, str]] = ..., identity_prefix: _Optional[bytes] = ..., in_use: bool = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., weights_epoch: _Optional[int] = ..., weights_epoch_below: _Optional[int] = ..., tenant: _Optional[str] = ..., group: _Optional[int] = ..., older_than_s: _Optional[float] = ..., pinned: bool = ...) -> None: ...

class ListSequencesRequest(_message.Message):
    __slots__ = ("page_size", "offset")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    offset: int
    def __init__(self, page_size: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class ListSequencesResponse(_message.Message):
    __slots__ = ("sequences", "next_offset")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceRecord]
    next_offset: int
    def __init__(self, sequences: _Optional[_Iterable[_Union[SequenceRecord, _Mapping]]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class SequenceRecord(_message.Message):
    __slots__ = ("session", "sequence", "namespace", "group", "blocks", "budget", "kept_blocks", "leaving_blocks", "given_up_blocks", "spare_slots")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    KEPT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GIVEN_UP_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SPARE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    session: int
    sequence: str
    namespace: int
    group: int
    blocks: int
    budget: _blocks_pb2.SequenceBudget
    kept_blocks: int
    leaving_blocks: int
    given_up_blocks: int
    spare_slots: int
    def __init__(self, session: _Optional[int] = ..., sequence: _Optional[str] = ..., namespace: _Optional[int] = ..., group: _Optional[int] = ..., blocks: _Optional[int] = ..., budget: _Optional[_Union[_blocks_pb2.SequenceBudget, _Mapping]] = ..., kept_blocks: _Optional[int] = ..., leaving_blocks: _Optional[int] = ..., given_up_blocks: _Optional[int] = ..., spare_slots: _Optional[int] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ("page_size", "offset", "by_tenant")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BY_TENANT_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    offset: int
    by_tenant: bool
    def __init__(self, page_size: _Optional[int] = ..., offset: _Optional[int] = ..., by_tenant: bool = ...) -> None: ...

class ListNamespacesResponse(_message.Message):
    __slots__ = ("namespaces", "next_offset")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NEXT_OFFSET_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceRecord]
    next_offset: int
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceRecord, _Mapping]]] = ..., next_offset: _Optional[int] = ...) -> None: ...

class TierShare(_message.Message):
    __slots__ = ("tier", "blocks", "used_bytes", "reserved_bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    tier: _blocks_pb2.Tier
    blocks: int
    used_bytes: int
    reserved_bytes: int
    def __init__(self, tier: _Optional[_Union[_blocks_pb2.Tier, str]] = ..., blocks: _Optional[int] = ..., used_bytes: _Optional[int] = ..., reserved_bytes: _Optional[int] = ...) -> None: ...

class NamespaceRecord(_message.Message):
    __slots__ = ("namespace", "names", "fingerprint", "model", "revision", "weights_epoch", "engine", "dtype", "adapter", "tenant", "domain", "tp_rank", "tp_size", "block_bytes", "tiers")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    TP_RANK_FIELD_NUMBER: _ClassVar[int]
    TP_SIZE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    names: _containers.RepeatedScalarFieldContainer[str]
    fingerprint: bytes
    model: str
    revision: str
    weights_epoch: int
    engine: str
    dtype: str
    adapter: str
    tenant: str
    domain: str
    tp_rank: int
    tp_size: int
    block_bytes: _containers.RepeatedScalarFieldContainer[int]
    tiers: _containers.RepeatedCompositeFieldContainer[TierShare]
    def __init__(self, namespace: _Optional[int] = ..., names: _Optional[_Iterable[str]] = ..., fingerprint: _Optional[bytes] = ..., model: _Optional[str] = ..., revision: _Optional[str] = ..., weights_epoch: _Optional[int] = ..., engine: _Optional[str] = ..., dtype: _Optional[str] = ..., adapter: _Optional[str] = ..., tenant: _Optional[str] = ..., domain: _Optional[str] = ..., tp_rank: _Optional[int] = ..., tp_size: _Optional[int] = ..., block_bytes: _Optional[_Iterable[int]] = ..., tiers: _Optional[_Iterable[_Union[TierShare, _Mapping]]] = ...) -> None: ...

class ListBlocksRequest(_message.Message):
    __slots__ = ("filter", "page_size", "page_token", "sort")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    filter: BlockFilter
    page_size: int
    page_token: bytes
    sort: BlockSort
    def __init__(self, filter: _Optional[_Union[BlockFilter, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[bytes] = ..., sort: _Optional[_Union[BlockSort, str]] = ...) -> None: ...

class ListBlocksResponse(_message.Message):
    __slots__ = ("blocks", "next_page_token")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockRecord]
    next_page_token: bytes
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockRecord, _Mapping]]] = ..., next_page_token: _Optional[bytes] = ...) -> None: ...

class Copy(_message.Message):
    __slots__ = ("tier", "state", "address", "generation", "leases", "rank")
    TIER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    tier: _blocks_pb2.Tier
    state: str
    address: int
    generation: int
    leases: int
    rank: float
    def __init__(self, tier: _Optional[_Union[_blocks_pb2.Tier, str]] = ..., state: _Optional[str] = ..., address: _Optional[int] = ..., generation: _Optional[int] = ..., leases: _Optional[int] = ..., rank: _Optional[float] = ...) -> None: ...

class BlockRecord(_message.Message):
    __slots__ = ("identity", "namespace", "namespace_name", "group", "position", "parent", "block_bytes", "checksum", "copies", "touches", "last_step", "last_wall_s", "ema", "crf", "sequences", "ghost", "priority", "next_use", "expected_s", "pinned_s")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    COPIES_FIELD_NUMBER: _ClassVar[int]
    TOUCHES_FIELD_NUMBER: _ClassVar[int]
    LAST_STEP_FIELD_NUMBER: _ClassVar[int]
    LAST_WALL_S_FIELD_NUMBER: _ClassVar[int]
    EMA_FIELD_NUMBER: _ClassVar[int]
    CRF_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    GHOST_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NEXT_USE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_S_FIELD_NUMBER: _ClassVar[int]
    PINNED_S_FIELD_NUMBER: _ClassVar[int]
    identity: bytes
    namespace: int
    namespace_name: str
    group: int
    position: int
    parent: bytes
    block_bytes: int
    checksum: int
    copies: _containers.RepeatedCompositeFieldContainer[Copy]
    touches: int
    last_step: int
    last_wall_s: float
    ema: float
    crf: float
    sequences: int
    ghost: bool
    priority: _blocks_pb2.Priority
    next_use: str
    expected_s: float
    pinned_s: float
    def __init__(self, identity: _Optional[bytes] = ..., namespace: _Optional[int] = ..., namespace_name: _Optional[str] = ..., group: _Optional[int] = ..., position: _Optional[int] = ..., parent: _Optional[bytes] = ..., block_bytes: _Optional[int] = ..., checksum: _Optional[int] = ..., copies: _Optional[_Iterable[_Union[Copy, _Mapping]]] = ..., touches: _Optional[int] = ..., last_step: _Optional[int] = ..., last_wall_s: _Optional[float] = ..., ema: _Optional[float] = ..., crf: _Optional[float] = ..., sequences: _Optional[int] = ..., ghost: bool = ..., priority: _Optional[_Union[_blocks_pb2.Priority, str]] = ..., next_use: _Optional[str] = ..., expected_s: _Optional[float] = ..., pinned_s: _Optional[float] = ...) -> None: ...

class DescribeBlockRequest(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    def __init__(self, ids: _Optional[bytes] = ...) -> None: ...

class DescribeBlockResponse(_message.Message):
    __slots__ = ("blocks",)
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[BlockRecord]
    def __init__(self, blocks: _Optional[_Iterable[_Union[BlockRecord, _Mapping]]] = ...) -> None: ...

class ExplainRequest(_message.Message):
    __slots__ = ("ids", "tier")
    IDS_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    tier: _blocks_pb2.Tier
    def __init__(self, ids: _Optional[bytes] = ..., tier: _Optional[_Union[_blocks_pb2.Tier, str]] = ...) -> None: ...

class Term(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("identity", "rule", "terms", "rank", "protected_by", "destination")
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    PROTECTED_BY_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    identity: bytes
    rule: str
    terms: _containers.RepeatedCompositeFieldContainer[Term]
    rank: float
    protected_by: str
    destination: str
    def __init__(self, identity: _Optional[bytes] = ..., rule: _Optional[str] = ..., terms: _Optional[_Iterable[_Union[Term, _Mapping]]] = ..., rank: _Optional[float] = ..., protected_by: _Optional[str] = ..., destination: _Optional[str] = ...) -> None: ...

class ExplainResponse(_message.Message):
    __slots__ = ("blocks", "policy", "step")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    blocks: _containers.RepeatedCompositeFieldContainer[Explanation]
    policy: str
    step: int
    def __init__(self, blocks: _Optional[_Iterable[_Union[Explanation, _Mapping]]] = ..., policy: _Optional[str] = ..., step: _Optional[int] = ...) -> None: ...

class PlanRequest(_message.Message):
    __slots__ = ("tier", "bytes", "limit")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    tier: _blocks_pb2.Tier
    bytes: int
    limit: int
    def __init__(self, tier: _Optional[_Union[_blocks_pb2.Tier, str]] = ..., bytes: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class PlanResponse(_message.Message):
    __slots__ = ("victims", "enough", "free_bytes", "victim_bytes", "victim_blocks")
    VICTIMS_FIELD_NUMBER: _ClassVar[int]
    ENOUGH_FIELD_NUMBER: _ClassVar[int]
    FREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VICTIM_BYTES_FIELD_NUMBER: _ClassVar[int]
    VICTIM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    victims: _containers.RepeatedCompositeFieldContainer[Explanation]
    enough: bool
    free_bytes: int
    victim_bytes: int
    victim_blocks: int
    def __init__(self, victims: _Optional[_Iterable[_Union[Explanation, _Mapping]]] = ..., enough: bool = ..., free_bytes: _Optional[int] = ..., victim_bytes: _Optional[int] = ..., victim_blocks: _Optional[int] = ...) -> None: ...

class GetConfigRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetConfigResponse(_message.Message):
    __slots__ = ("json",)
    JSON_FIELD_NUMBER: _ClassVar[int]
    json: str
    def __init__(self, json: _Optional[str] = ...) -> None: ...

class SetPolicyRequest(_message.Message):
    __slots__ = ("policy",)
    POLICY_FIELD_NUMBER: _ClassVar[int]
    policy: str
    def __init__(self, policy: _Optional[str] = ...) -> None: ...

class SetPolicyResponse(_message.Message):
    __slots__ = ("policy", "policy_epoch")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    POLICY_EPOCH_FIELD_NUMBER: _ClassVar[int]
    policy: str
    policy_epoch: int
    def __init__(self, policy: _Optional[str] = ..., policy_epoch: _Optional[int] = ...) -> None: ...

class ClearRequest(_message.Message):
    __slots__ = ("filter", "dry_run", "ghosts")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    GHOSTS_FIELD_NUMBER: _ClassVar[int]
    filter: BlockFilter
    dry_run: bool
    ghosts: bool
    def __init__(self, filter: _Optional[_Union[BlockFilter, _Mapping]] = ..., dry_run: bool = ..., ghosts: bool = ...) -> None: ...

class TierCleared(_message.Message):
    __slots__ = ("tier", "blocks", "bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    tier: _blocks_pb2.Tier
    blocks: int
    bytes: int
    def __init__(self, tier: _Optional[_Union[_blocks_pb2.Tier, str]] = ..., blocks: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class ClearResponse(_message.Message):
    __slots__ = ("hbm_blocks", "host_blocks", "spill_blocks", "ghosts", "in_use_blocks", "tiers", "in_use_ids", "left_blocks", "deletes_waiting")
    HBM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HOST_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SPILL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    GHOSTS_FIELD_NUMBER: _ClassVar[int]
    IN_USE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    IN_USE_IDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    DELETES_WAITING_FIELD_NUMBER: _ClassVar[int]
    hbm_blocks: int
    host_blocks: int
    spill_blocks: int
    ghosts: int
    in_use_blocks: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierCleared]
    in_use_ids: bytes
    left_blocks: int
    deletes_waiting: int
    def __init__(self, hbm_blocks: _Optional[int] = ..., host_blocks: _Optional[int] = ..., spill_blocks: _Optional[int] = ..., ghosts: _Optional[int] = ..., in_use_blocks: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierCleared, _Mapping]]] = ..., in_use_ids: _Optional[bytes] = ..., left_blocks: _Optional[int] = ..., deletes_waiting: _Optional[int] = ...) -> None: ...

class SwitchEpochRequest(_message.Message):
    __slots__ = ("name", "weights_epoch")
    NAME_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_EPOCH_FIELD_NUMBER: _ClassVar[int]
    name: str
    weights_epoch: int
    def __init__(self, name: _Optional[str] = ..., weights_epoch: _Optional[int] = ...) -> None: ...

class SwitchEpochResponse(_message.Message):
    __slots__ = ("namespace", "namespace_before", "weights_epoch_before")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_EPOCH_BEFORE_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    namespace_before: int
    weights_epoch_before: int
    def __init__(self, namespace: _Optional[int] = ..., namespace_before: _Optional[int] = ..., weights_epoch_before: _Optional[int] = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("filter", "bytes_per_s", "timeout_s")
    FILTER_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    filter: BlockFilter
    bytes_per_s: int
    timeout_s: int
    def __init__(self, filter: _Optional[_Union[BlockFilter, _Mapping]] = ..., bytes_per_s: _Optional[int] = ..., timeout_s: _Optional[int] = ...) -> None: ...

class DrainProgress(_message.Message):
    __slots__ = ("state", "held_blocks", "total_blocks", "total_bytes", "stored_blocks", "stored_bytes", "gone_blocks", "failed_blocks")
    STATE_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    GONE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    FAILED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    state: DrainState
    held_blocks: int
    total_blocks: int
    total_bytes: int
    stored_blocks: int
    stored_bytes: int
    gone_blocks: int
    failed_blocks: int
    def __init__(self, state: _Optional[_Union[DrainState, str]] = ..., held_blocks: _Optional[int] = ..., total_blocks: _Optional[int] = ..., total_bytes: _Optional[int] = ..., stored_blocks: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., gone_blocks: _Optional[int] = ..., failed_blocks: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("ids", "filter", "repair", "timeout_ms")
    IDS_FIELD_NUMBER: _ClassVar[int]
    FILTER_FIELD_NUMBER: _ClassVar[int]
    REPAIR_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    ids: bytes
    filter: BlockFilter
    repair: bool
    timeout_ms: int
    def __init__(self, ids: _Optional[bytes] = ..., filter: _Optional[_Union[BlockFilter, _Mapping]] = ..., repair: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("verified_blocks", "verified_bytes", "damaged", "skipped_blocks")
    VERIFIED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DAMAGED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    verified_blocks: int
    verified_bytes: int
    damaged: _containers.RepeatedScalarFieldContainer[bytes]
    skipped_blocks: int
    def __init__(self, verified_blocks: _Optional[int] = ..., verified_bytes: _Optional[int] = ..., damaged: _Optional[_Iterable[bytes]] = ..., skipped_blocks: _Optional[int] = ...) -> None: ...

class AttachSpillRequest(_message.Message):
    __slots__ = ("url", "replace", "timeout_ms")
    URL_FIELD_NUMBER: _ClassVar[int]
    REPLACE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    url: str
    replace: bool
    timeout_ms: int
    def __init__(self, url: _Optional[str] = ..., replace: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class AttachSpillResponse(_message.Message):
    __slots__ = ("forgotten_blocks",)
    FORGOTTEN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    forgotten_blocks: int
    def __init__(self, forgotten_blocks: _Optional[int] = ...) -> None: ...

class DetachSpillRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DetachSpillResponse(_message.Message):
    __slots__ = ("forgotten_blocks",)
    FORGOTTEN_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    forgotten_blocks: int
    def __init__(self, forgotten_blocks: _Optional[int] = ...) -> None: ...

class ShadowStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ShadowEstimate(_message.Message):
    __slots__ = ("blocks", "error")
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    blocks: int
    error: int
    def __init__(self, blocks: _Optional[int] = ..., error: _Optional[int] = ...) -> None: ...

class ShadowSize(_message.Message):
    __slots__ = ("capacity_bytes", "capacity_blocks", "held_blocks", "sampled_share", "block_hits", "prefix_hits", "saved")
    CAPACITY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    HELD_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SAMPLED_SHARE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_HITS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HITS_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    capacity_bytes: int
    capacity_blocks: int
    held_blocks: int
    sampled_share: float
    block_hits: ShadowEstimate
    prefix_hits: ShadowEstimate
    saved: ShadowEstimate
    def __init__(self, capacity_bytes: _Optional[int] = ..., capacity_blocks: _Optional[int] = ..., held_blocks: _Optional[int] = ..., sampled_share: _Optional[float] = ..., block_hits: _Optional[_Union[ShadowEstimate, _Mapping]] = ..., prefix_hits: _Optional[_Union[ShadowEstimate, _Mapping]] = ..., saved: _Optional[_Union[ShadowEstimate, _Mapping]] = ...) -> None: ...

class ShadowNamespace(_message.Message):
    __slots__ = ("namespace", "name", "model", "policy", "block_tokens", "block_bytes", "requests", "asked_blocks", "served_blocks", "prefill_tokens_per_s", "observed_s", "sizes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POLICY_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ASKED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    SERVED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_S_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    namespace: int
    name: str
    model: str
    policy: str
    block_tokens: int
    block_bytes: int
    requests: int
    asked_blocks: int
    served_blocks: int
    prefill_tokens_per_s: float
    observed_s: float
    sizes: _containers.RepeatedCompositeFieldContainer[ShadowSize]
    def __init__(self, namespace: _Optional[int] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., policy: _Optional[str] = ..., block_tokens: _Optional[int] = ..., block_bytes: _Optional[int] = ..., requests: _Optional[int] = ..., asked_blocks: _Optional[int] = ..., served_blocks: _Optional[int] = ..., prefill_tokens_per_s: _Optional[float] = ..., observed_s: _Optional[float] = ..., sizes: _Optional[_Iterable[_Union[ShadowSize, _Mapping]]] = ...) -> None: ...

class ShadowStatsResponse(_message.Message):
    __slots__ = ("namespaces", "left_out_calls_total")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_CALLS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[ShadowNamespace]
    left_out_calls_total: int
    def __init__(self, namespaces: _Optional[_Iterable[_Union[ShadowNamespace, _Mapping]]] = ..., left_out_calls_total: _Optional[int] = ...) -> None: ...
