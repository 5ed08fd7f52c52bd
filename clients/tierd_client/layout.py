"""A namespace's cache layout: the fields that two peers must share to read each other's blocks.

    Layout    model, revision, weights, engine, dtype, kv layout, adapter, tenant, ranks, and its groups
      Group   blocks of one geometry: tokens, hit rule, parts
        Part  one array of a block: name, dtype, shape

The canonical encoding (docs/format.md, section 5) is length-safe and unique: two layouts have the same bytes
exactly when every field is equal. Its hash is the fingerprint. Pure: no I/O.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypedDict, Unpack

from tierd_client.hits import WHOLE, HitRule

SCHEMA_VERSION = 1
"""Version of the canonical encoding; its first field."""

CANONICAL_BYTES_MAX = 64 * 1024
TEXT_BYTES_MAX = 1024
GROUPS_MAX = 64
PARTS_MAX = 64
DIMENSIONS_MAX = 8
BLOCK_BYTES_MAX = 2**32 - 1

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint64": 8, "uint32": 4, "uint16": 2, "uint8": 1,
}
"""Bytes of an element. Closed: another name for a dtype would silently be another namespace."""

RULES = ("prefix", "window", "boundary")

_INT_MAX = 2**63 - 1
_HEAD = struct.Struct("<cI")
_INT = struct.Struct("<q")


def _reject(field: str, problem: str) -> NoReturn:
    raise ValueError(f"{field}: {problem}")


def _check_int(field: str, value: object, low: int, high: int = _INT_MAX) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        _reject(field, f"{value!r} is not an integer")
    if not low <= value <= high:
        _reject(field, f"{value} is not from {low} to {high}")


def _check_text(field: str, value: object) -> None:
    if not isinstance(value, str):
        _reject(field, f"{value!r} is not text")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        _reject(field, "not encodable as UTF-8")
    if size > TEXT_BYTES_MAX:
        _reject(field, f"{size} bytes are more than {TEXT_BYTES_MAX}")


def _check_dtype(field: str, value: object) -> None:
    if value not in DTYPE_BYTES:
        _reject(field, f"{value!r} is none of {', '.join(DTYPE_BYTES)}")


@dataclass(frozen=True, slots=True)
class Part:
    """One array of a block: `shape` in C order, elements of `dtype` (a key of DTYPE_BYTES)."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))

    @property
    def nbytes(self) -> int:
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)

    def check(self, where: str) -> None:
        """Raises ValueError naming the field that is out of its range."""
        _check_text(f"{where}.name", self.name)
        _check_dtype(f"{where}.dtype", self.dtype)
        if not 1 <= len(self.shape) <= DIMENSIONS_MAX:
            _reject(f"{where}.shape", f"{len(self.shape)} dimensions, not 1 to {DIMENSIONS_MAX}")
        for size in self.shape:
            _check_int(f"{where}.shape", size, 1, BLOCK_BYTES_MAX)


@dataclass(frozen=True, slots=True)
class Group:
    """Blocks of one geometry.

    `rule` says what a hit of n blocks needs: `prefix` all of them, `window` those that cover the last
    `window_tokens` tokens, `boundary` the last alone, a state. `replicated`: the same bytes on every rank of TP,
    so that all ranks share one block.
    """

    name: str
    block_tokens: int
    parts: tuple[Part, ...]
    rule: str = "prefix"
    window_tokens: int = 0
    replicated: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: its parts one after the other."""
        return sum(part.nbytes for part in self.parts)

    @property
    def hit_rule(self) -> HitRule:
        """The rule in blocks."""
        tails = {"prefix": WHOLE, "window": -(-self.window_tokens // self.block_tokens), "boundary": 1}
        return HitRule(self.block_tokens, min(WHOLE, tails[self.rule]))

    def check(self, where: str) -> None:
        """Raises ValueError naming the field that is out of its range."""
        _check_text(f"{where}.name", self.name)
        _check_int(f"{where}.block_tokens", self.block_tokens, 1)
        if self.rule not in RULES:
            _reject(f"{where}.rule", f"{self.rule!r} is none of {', '.join(RULES)}")
        _check_int(f"{where}.window_tokens", self.window_tokens, 1 if self.rule == "window" else 0)
        if self.rule != "window" and self.window_tokens:
            _reject(f"{where}.window_tokens", f"{self.window_tokens} has no meaning under rule {self.rule!r}")
        if not isinstance(self.replicated, bool):
            _reject(f"{where}.replicated", f"{self.replicated!r} is not a bool")
        if not 1 <= len(self.parts) <= PARTS_MAX:
            _reject(f"{where}.parts", f"{len(self.parts)} parts, not 1 to {PARTS_MAX}")
        for i, part in enumerate(self.parts):
            part.check(f"{where}.parts[{i}]")
        _check_int(f"{where}.block_bytes", self.block_bytes, 1, BLOCK_BYTES_MAX)


_TEXT_FIELDS = ("model", "revision", "engine", "dtype", "kv_layout", "adapter")
_RANKS = (("tp_rank", "tp_size"), ("pp_rank", "pp_size"), ("cp_rank", "cp_size"))

_FIELDS = (
    ("model", "s"), ("revision", "s"), ("weights_epoch", "i"), ("engine", "s"), ("dtype", "s"),
    ("kv_layout", "s"), ("adapter", "s"), ("tenant_salt", "b"), ("tp_rank", "i"), ("tp_size", "i"),
    ("pp_rank", "i"), ("pp_size", "i"), ("cp_rank", "i"), ("cp_size", "i"),
)
"""Fields of a layout between the schema version and the groups, in canonical order, with their types."""


class IdentityFields(TypedDict, total=False):
    """What every way to make a Layout takes beside the geometry; all default to "none" or rank 0 of 1."""

    revision: str
    weights_epoch: int
    engine: str
    kv_layout: str
    adapter: str
    tenant_salt: bytes
    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    cp_rank: int
    cp_size: int


class Layout:
    """One cache layout: what a namespace stands for.

    `Layout(model=..., dtype=..., layers=..., kv_heads=..., head_dim=..., block_tokens=...)` is the usual
    one-group case: parts `k` and `v` of shape (layers, block_tokens, kv_heads, head_dim). `Layout.mla` is for
    latents, `Layout.opaque` takes blocks of so many bytes, `Layout.of_groups` anything. Equal when every field
    is. `name` is a wish for the namespace's name, not a field of the layout. Raises ValueError naming the field.
    """

    def __init__(
        self, model: str, dtype: str, layers: int, kv_heads: int, head_dim: int, block_tokens: int, *,
        name: str = "", **fields: Unpack[IdentityFields],
    ) -> None:
        _check_dtype("dtype", dtype)
        sizes = {"layers": layers, "block_tokens": block_tokens, "kv_heads": kv_heads, "head_dim": head_dim}
        for size_name, size in sizes.items():
            _check_int(size_name, size, 1, BLOCK_BYTES_MAX)
        shape = (layers, block_tokens, kv_heads, head_dim)
        parts = (Part("k", dtype, shape), Part("v", dtype, shape))
        self._fill(model, dtype, (Group("kv", block_tokens, parts),), name, **fields)

    @classmethod
    def mla(
        cls, *, model: str, dtype: str, layers: int, latent_dim: int, block_tokens: int, name: str = "",
        **fields: Unpack[IdentityFields],
    ) -> Layout:
        """Latents of MLA, the rotary part included in `latent_dim` (DeepSeek-V3: 512 + 64): one part `latent` of
        shape (layers, block_tokens, latent_dim), replicated. Takes the identity fields."""
        _check_dtype("dtype", dtype)
        for size_name, size in {"layers": layers, "latent_dim": latent_dim, "block_tokens": block_tokens}.items():
            _check_int(size_name, size, 1, BLOCK_BYTES_MAX)
        latent = Part("latent", dtype, (layers, block_tokens, latent_dim))
        groups = [Group("latent", block_tokens, (latent,), replicated=True)]
        return cls.of_groups(groups, model=model, dtype=dtype, name=name, **fields)

    @classmethod
    def opaque(
        cls, *, block_bytes: int, block_tokens: int = 1, model: str = "", name: str = "",
        **fields: Unpack[IdentityFields],
    ) -> Layout:
        """Blocks of `block_bytes` bytes whose inside is nobody's business. Takes the identity fields."""
        _check_int("block_bytes", block_bytes, 1, BLOCK_BYTES_MAX)
        group = Group("opaque", block_tokens, (Part("opaque", "uint8", (block_bytes,)),))
        return cls.of_groups([group], model=model, dtype="uint8", name=name, **fields)

    @classmethod
    def of_groups(
        cls, groups: Sequence[Group], *, model: str = "", dtype: str = "uint8", name: str = "",
        **fields: Unpack[IdentityFields],
    ) -> Layout:
        """A layout of any groups, in the order of their numbers. Takes the identity fields."""
        layout = cls.__new__(cls)
        layout._fill(model, dtype, tuple(groups), name, **fields)
        return layout

    def replace(self, **fields: Unpack[IdentityFields]) -> Layout:
        """The same layout but for these identity fields: that of another rank, of other weights."""
        same: dict[str, Any] = {field: getattr(self, field) for field, _ in _FIELDS}
        for field in fields:
            if field not in same:
                _reject(field, f"is none of {', '.join(same)}; another geometry is another Layout")
        return Layout.of_groups(self.groups, name=self.name, **{**same, **fields})

    def _fill(
        self, model: str, dtype: str, groups: tuple[Group, ...], name: str, *, revision: str = "",
        weights_epoch: int = 0, engine: str = "", kv_layout: str = "", adapter: str = "",
        tenant_salt: bytes = b"", tp_rank: int = 0, tp_size: int = 1, pp_rank: int = 0, pp_size: int = 1,
        cp_rank: int = 0, cp_size: int = 1,
    ) -> None:
        self.model, self.revision, self.weights_epoch, self.engine = model, revision, weights_epoch, engine
        self.dtype, self.kv_layout, self.adapter, self.tenant_salt = dtype, kv_layout, adapter, tenant_salt
        self.tp_rank, self.tp_size, self.pp_rank, self.pp_size = tp_rank, tp_size, pp_rank, pp_size
        self.cp_rank, self.cp_size = cp_rank, cp_size
        self.groups = groups
        self.name = name
        self._check()
        self._canonical = self._encode(tp_rank)
        self._fingerprint = fingerprint_of(self._canonical)
        self._home_fingerprint = fingerprint_of(self._encode(0)) if tp_rank else self._fingerprint

    def _check(self) -> None:
        for field in _TEXT_FIELDS:
            _check_text(field, getattr(self, field))
        _check_dtype("dtype", self.dtype)
        _check_int("weights_epoch", self.weights_epoch, 0)
        if not isinstance(self.tenant_salt, bytes) or len(self.tenant_salt) > TEXT_BYTES_MAX:
            _reject("tenant_salt", f"not bytes, or more than {TEXT_BYTES_MAX} of them")
        for rank, size in _RANKS:
            _check_int(size, getattr(self, size), 1)
            _check_int(rank, getattr(self, rank), 0, getattr(self, size) - 1)
        _check_text("name", self.name)
        if not 1 <= len(self.groups) <= GROUPS_MAX:
            _reject("groups", f"{len(self.groups)} groups, not 1 to {GROUPS_MAX}")
        for i, group in enumerate(self.groups):
            group.check(f"groups[{i}]")

    def _encode(self, tp_rank: int) -> bytes:
        values = {name: getattr(self, name) for name, _ in _FIELDS} | {"tp_rank": tp_rank}
        fields = [_int(SCHEMA_VERSION)]
        fields += [_ENCODERS[kind](values[name]) for name, kind in _FIELDS]
        canonical = b"".join([*fields, _list(map(_encode_group, self.groups))])
        if len(canonical) > CANONICAL_BYTES_MAX:
            _reject("groups", f"the layout takes {len(canonical)} bytes, more than {CANONICAL_BYTES_MAX}")
        return canonical

    def canonical(self) -> bytes:
        """The canonical encoding, at most CANONICAL_BYTES_MAX bytes."""
        return self._canonical

    @property
    def fingerprint(self) -> bytes:
        """32 bytes that stand for every field of the layout."""
        return self._fingerprint

    @property
    def tenant(self) -> str:
        """What listings call the tenant: 16 hex digits, a hash of the salt; empty without one."""
        if not self.tenant_salt:
            return ""
        return hashlib.blake2b(self.tenant_salt, digest_size=8, person=b"tierd-tenant-v1").hexdigest()

    @property
    def home(self) -> Layout:
        """The layout whose namespace replicated groups belong to: that of TP rank 0."""
        return self.replace(tp_rank=0) if self.tp_rank else self

    def group_fingerprint(self, group: int) -> bytes:
        """The fingerprint that identities of a group are made from; one for all TP ranks if it is replicated."""
        return self._home_fingerprint if self.groups[group].replicated else self._fingerprint

    @property
    def block_tokens(self) -> int:
        """Tokens of a block of group 0."""
        return self.groups[0].block_tokens

    @property
    def block_bytes(self) -> int:
        """Bytes of a block of group 0."""
        return self.groups[0].block_bytes

    @property
    def bytes_per_token(self) -> int:
        """Bytes a token adds to a context on this rank: groups of rule `prefix`, each rounded up."""
        growing = [group for group in self.groups if group.rule == "prefix"]
        return sum(-(-group.block_bytes // group.block_tokens) for group in growing)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self._canonical == other._canonical

    def __hash__(self) -> int:
        return hash(self._canonical)

    def __repr__(self) -> str:
        groups = ", ".join(f"{g.name}: {g.block_tokens} tokens, {g.block_bytes} bytes" for g in self.groups)
        return f"Layout({self.model!r}, {self.dtype}, [{groups}], {self._fingerprint[:4].hex()})"


def fingerprint_of(canonical: bytes) -> bytes:
    """The 32-byte hash of a canonical encoding."""
    return hashlib.blake2b(canonical, digest_size=32, person=b"tierd-ns-v1").digest()


def differing_field(a: Layout, b: Layout) -> str:
    """Names the first field, in canonical order, in which two layouts differ; empty when none does."""
    for field, _ in _FIELDS:
        if getattr(a, field) != getattr(b, field):
            return field
    if len(a.groups) != len(b.groups):
        return "groups"
    for i, (one, other) in enumerate(zip(a.groups, b.groups, strict=True)):
        if one != other:
            return f"groups[{i}].{_differing_in_group(one, other)}"
    return ""


def _differing_in_group(a: Group, b: Group) -> str:
    for field in ("name", "block_tokens", "rule", "window_tokens", "replicated"):
        if getattr(a, field) != getattr(b, field):
            return field
    if len(a.parts) != len(b.parts):
        return "parts"
    for i, (one, other) in enumerate(zip(a.parts, b.parts, strict=True)):
        for field in ("name", "dtype", "shape"):
            if getattr(one, field) != getattr(other, field):
                return f"parts[{i}].{field}"
    raise AssertionError("the groups are equal")


# --- encoding -----------------------------------------------------------------------------------------


def _field(kind: bytes, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload)) + payload


def _int(value: int) -> bytes:
    return _field(b"i", _INT.pack(value))


def _text(value: str) -> bytes:
    return _field(b"s", value.encode())


def _bytes(value: bytes) -> bytes:
    return _field(b"b", value)


def _list(fields: Iterable[bytes]) -> bytes:
    return _field(b"l", b"".join(fields))


_ENCODERS: dict[str, Any] = {"s": _text, "i": _int, "b": _bytes}


def _encode_group(group: Group) -> bytes:
    return _list([
        _text(group.name), _int(group.block_tokens), _text(group.rule), _int(group.window_tokens),
        _int(int(group.replicated)), _list(map(_encode_part, group.parts)),
    ])


def _encode_part(part: Part) -> bytes:
    return _list([_text(part.name), _text(part.dtype), _list(map(_int, part.shape))])


# --- decoding: strict, for bytes that come from a stranger --------------------------------------------


class _Fields:
    """Reads one sequence of fields in order; ValueError names the field at which it is malformed."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.offset = 0

    def _take(self, kind: bytes, name: str) -> bytes:
        start = self.offset + _HEAD.size
        if start > len(self.data):
            _reject(self.where + name, "missing or cut off")
        found, size = _HEAD.unpack_from(self.data, self.offset)
        if found != kind:
            _reject(self.where + name, f"type {found!r} is not {kind!r}")
        if start + size > len(self.data):
            _reject(self.where + name, f"{size} bytes announced, {len(self.data) - start} there")
        self.offset = start + size
        return self.data[start : self.offset]

    def read_int(self, name: str) -> int:
        payload = self._take(b"i", name)
        if len(payload) != _INT.size:
            _reject(self.where + name, f"an integer of {len(payload)} bytes, not {_INT.size}")
        value: int = _INT.unpack(payload)[0]
        return value

    def read_text(self, name: str) -> str:
        try:
            return self._take(b"s", name).decode()
        except UnicodeDecodeError:
            _reject(self.where + name, "not UTF-8")

    def read_bytes(self, name: str) -> bytes:
        return self._take(b"b", name)

    def read_list(self, name: str) -> _Fields:
        return _Fields(self._take(b"l", name), f"{self.where}{name}.")

    def item(self, index: int) -> _Fields:
        """The list that is item `index` of this list of lists."""
        where = f"{self.where.rstrip('.')}[{index}]"
        inside = _Fields(self.data, where)
        inside.offset = self.offset
        payload = inside._take(b"l", "")
        self.offset = inside.offset
        return _Fields(payload, f"{where}.")

    def more(self) -> bool:
        return self.offset < len(self.data)

    def end(self) -> None:
        if self.more():
            field = self.where.rstrip(".") or "layout"
            _reject(field, f"{len(self.data) - self.offset} bytes after its last field")


def decode_canonical(canonical: bytes) -> Layout:
    """The layout of a canonical encoding. ValueError, naming the field, for anything but one."""
    if len(canonical) > CANONICAL_BYTES_MAX:
        _reject("layout", f"{len(canonical)} bytes are more than {CANONICAL_BYTES_MAX}")
    fields = _Fields(canonical, "")
    version = fields.read_int("schema_version")
    if version != SCHEMA_VERSION:
        _reject("schema_version", f"{version} is not {SCHEMA_VERSION}")
    readers = {"s": fields.read_text, "i": fields.read_int, "b": fields.read_bytes}
    values: dict[str, Any] = {name: readers[kind](name) for name, kind in _FIELDS}
    groups = _decode_groups(fields.read_list("groups"))
    fields.end()
    return Layout.of_groups(groups, **values)


def _decode_groups(fields: _Fields) -> list[Group]:
    groups: list[Group] = []
    while fields.more():
        if len(groups) == GROUPS_MAX:
            _reject("groups", f"more than {GROUPS_MAX} groups")
        groups.append(_decode_group(fields.item(len(groups))))
    return groups


def _decode_group(fields: _Fields) -> Group:
    name, block_tokens = fields.read_text("name"), fields.read_int("block_tokens")
    rule = fields.read_text("rule")
    window_tokens, replicated = fields.read_int("window_tokens"), fields.read_int("replicated")
    if replicated not in (0, 1):
        _reject(f"{fields.where}replicated", f"{replicated} is neither 0 nor 1")
    parts: list[Part] = []
    inside = fields.read_list("parts")
    while inside.more():
        if len(parts) == PARTS_MAX:
            _reject(f"{fields.where}parts", f"more than {PARTS_MAX} parts")
        parts.append(_decode_part(inside.item(len(parts))))
    fields.end()
    return Group(name, block_tokens, tuple(parts), rule, window_tokens, bool(replicated))


def _decode_part(fields: _Fields) -> Part:
    name, dtype = fields.read_text("name"), fields.read_text("dtype")
    shape: list[int] = []
    sizes = fields.read_list("shape")
    while sizes.more():
        if len(shape) == DIMENSIONS_MAX:
            _reject(f"{fields.where}shape", f"more than {DIMENSIONS_MAX} dimensions")
        shape.append(sizes.read_int(f"[{len(shape)}]"))
    fields.end()
    return Part(name, dtype, tuple(shape))
