from tierd_client.v1 import blocks_pb2 as _blocks_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AdoptOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ADOPT_OUTCOME_UNSPECIFIED: _ClassVar[AdoptOutcome]
    ADOPT_OUTCOME_ADOPTED: _ClassVar[AdoptOutcome]
    ADOPT_OUTCOME_EXISTS: _ClassVar[AdoptOutcome]
    ADOPT_OUTCOME_BUSY: _ClassVar[AdoptOutcome]
    ADOPT_OUTCOME_FULL: _ClassVar[AdoptOutcome]

class WithdrawOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WITHDRAW_OUTCOME_UNSPECIFIED: _ClassVar[WithdrawOutcome]
    WITHDRAW_OUTCOME_WITHDRAWN: _ClassVar[WithdrawOutcome]
    WITHDRAW_OUTCOME_UNSAVED: _ClassVar[WithdrawOutcome]
    WITHDRAW_OUTCOME_PENDING: _ClassVar[WithdrawOutcome]
ADOPT_OUTCOME_UNSPECIFIED: AdoptOutcome
ADOPT_OUTCOME_ADOPTED: AdoptOutcome
ADOPT_OUTCOME_EXISTS: AdoptOutcome
ADOPT_OUTCOME_BUSY: AdoptOutcome
ADOPT_OUTCOME_FULL: AdoptOutcome
WITHDRAW_OUTCOME_UNSPECIFIED: WithdrawOutcome
WITHDRAW_OUTCOME_WITHDRAWN: WithdrawOutcome
WITHDRAW_OUTCOME_UNSAVED: WithdrawOutcome
WITHDRAW_OUTCOME_PENDING: WithdrawOutcome

class LendRequest(_message.Message):
    __slots__ = ("session", "regions", "pieces", "pages", "fence_region")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    FENCE_REGION_FIELD_NUMBER: _ClassVar[int]
    session: int
    regions: _containers.RepeatedCompositeFieldContainer[LentRegion]
    pieces: _containers.RepeatedCompositeFieldContainer[LentPiece]
    pages: int
    fence_region: int
    def __init__(self, session: _Optional[int] = ..., regions: _Optional[_Iterable[_Union[LentRegion, _Mapping]]] = ..., pieces: _Optional[_Iterable[_Union[LentPiece, _Mapping]]] = ..., pages: _Optional[int] = ..., fence_region: _Optional[int] = ...) -> None: ...

class LentRegion(_message.Message):
    __slots__ = ("shared", "cuda")
    SHARED_FIELD_NUMBER: _ClassVar[int]
    CUDA_FIELD_NUMBER: _ClassVar[int]
    shared: int
    cuda: CudaMemory
    def __init__(self, shared: _Optional[int] = ..., cuda: _Optional[_Union[CudaMemory, _Mapping]] = ...) -> None: ...

class CudaMemory(_message.Message):
    __slots__ = ("device", "handle", "offset", "bytes")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    HANDLE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    device: str
    handle: bytes
    offset: int
    bytes: int
    def __init__(self, device: _Optional[str] = ..., handle: _Optional[bytes] = ..., offset: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class LentPiece(_message.Message):
    __slots__ = ("region", "offset", "stride", "bytes")
    REGION_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STRIDE_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    region: int
    offset: int
    stride: int
    bytes: int
    def __init__(self, region: _Optional[int] = ..., offset: _Optional[int] = ..., stride: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class LendResponse(_message.Message):
    __slots__ = ("pool",)
    POOL_FIELD_NUMBER: _ClassVar[int]
    pool: int
    def __init__(self, pool: _Optional[int] = ...) -> None: ...

class AdoptRequest(_message.Message):
    __slots__ = ("session", "blocks", "pool", "pages", "fences", "sequence")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    FENCES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    session: int
    blocks: _blocks_pb2.BlockIds
    pool: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    fences: _containers.RepeatedScalarFieldContainer[int]
    sequence: str
    def __init__(self, session: _Optional[int] = ..., blocks: _Optional[_Union[_blocks_pb2.BlockIds, _Mapping]] = ..., pool: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., fences: _Optional[_Iterable[int]] = ..., sequence: _Optional[str] = ...) -> None: ...

class AdoptResponse(_message.Message):
    __slots__ = ("outcomes",)
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[AdoptOutcome]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[AdoptOutcome, str]]] = ...) -> None: ...

class WithdrawRequest(_message.Message):
    __slots__ = ("session", "pool", "pages", "save", "timeout_ms")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    session: int
    pool: int
    pages: _containers.RepeatedScalarFieldContainer[int]
    save: bool
    timeout_ms: int
    def __init__(self, session: _Optional[int] = ..., pool: _Optional[int] = ..., pages: _Optional[_Iterable[int]] = ..., save: bool = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class WithdrawResponse(_message.Message):
    __slots__ = ("outcomes", "pages")
    OUTCOMES_FIELD_NUMBER: _ClassVar[int]
    PAGES_FIELD_NUMBER: _ClassVar[int]
    outcomes: _containers.RepeatedScalarFieldContainer[WithdrawOutcome]
    pages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, outcomes: _Optional[_Iterable[_Union[WithdrawOutcome, str]]] = ..., pages: _Optional[_Iterable[int]] = ...) -> None: ...
