"""Identities: 32 bytes that name a block of a namespace, made in the client and nowhere else.

`chain_ids` names the full blocks of a prompt, each by its tokens and all before it; `plain_ids` names blocks
by ids of the caller's own. docs/format.md, section 5, is the definition; it depends on nothing but the
layout and the ids, so that any process on any host makes the same. Pure: standard library and numpy.
"""

from __future__ import annotations

import hashlib
import secrets
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import IDENTITY_BYTES, U8Array

PLAIN_ID_BYTES_MAX = 64

_PERSON = b"tierd-id-v1"
_KIND_PLAIN, _KIND_CHAIN = b"\0", b"\1"
_ROOT = bytes(IDENTITY_BYTES)


class Identity(bytes):
    """One identity, 32 bytes: a call takes it for what it is, where other `bytes` are an id that is hashed."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Identities(Sequence[bytes]):
    """Packed identities of one group and their place in a chain; a sequence of Identity.

    `array` is (n, 32), uint8, read-only. `chain`: consecutive identities are parent and child, the first at
    `position` below `parent` (None at the root). A slice keeps the link; `take` gives free-standing ones.
    `fingerprint`: of the namespace they were made for (of TP rank 0's for a replicated group), empty when unknown.
    """

    array: U8Array
    fingerprint: bytes = b""
    group: int = 0
    chain: bool = False
    position: int = 0
    parent: bytes | None = None

    def __post_init__(self) -> None:
        array = self.array
        if array.dtype != np.uint8 or array.ndim != 2 or array.shape[1] != IDENTITY_BYTES:
            shape = f"{array.dtype} {array.shape}"
            raise ValueError(f"array: identities are uint8 of shape (n, {IDENTITY_BYTES}), not {shape}")
        array = np.ascontiguousarray(array).view()
        array.flags.writeable = False
        object.__setattr__(self, "array", array)

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> Identity: ...
    @overload
    def __getitem__(self, index: slice) -> Identities: ...
    def __getitem__(self, index: int | slice) -> Identity | Identities:
        if not isinstance(index, slice):
            return Identity(self.array[index].tobytes())
        start, stop, step = index.indices(len(self))
        if step != 1:
            raise ValueError(f"step: a slice of identities goes by 1, not by {step}; use take()")
        parent, position = self.parent, self.position
        if self.chain and start > 0:
            parent, position = self.array[start - 1].tobytes(), position + start
        chosen = self.array[start : max(start, stop)]
        return Identities(chosen, self.fingerprint, self.group, self.chain, position, parent)

    def __iter__(self) -> Iterator[Identity]:
        packed = self.packed()
        return (Identity(packed[i : i + IDENTITY_BYTES]) for i in range(0, len(packed), IDENTITY_BYTES))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identities):
            return NotImplemented
        return self._link() == other._link() and np.array_equal(self.array, other.array)

    __hash__ = None  # type: ignore[assignment]

    def _link(self) -> tuple[object, ...]:
        return self.group, self.chain, self.position, self.parent

    def __repr__(self) -> str:
        kind = f"chain from {self.position}" if self.chain else "free-standing"
        return f"Identities({len(self)}, group {self.group}, {kind})"

    def packed(self) -> bytes:
        """All identities one after the other, as the wire carries them."""
        return self.array.tobytes()

    def take(self, indices: Any) -> Identities:
        """Some of them, in any order, as free-standing identities."""
        return Identities(self.array[np.asarray(indices, np.int64)], self.fingerprint, self.group)


def chain_ids(
    namespace: Any, token_ids: Any, group: int = 0, block_tokens: int | None = None,
) -> Identities:
    """Identities of the full blocks of a prompt, one per `block_tokens` tokens; what is left over has none.

    `namespace`: a Namespace, a Layout, or a fingerprint (`block_tokens` is needed then). `token_ids`: a
    sequence of ints, a numpy array or a torch tensor, one axis.
    """
    fingerprint, layout = _namespace(namespace, group)
    if block_tokens is None:
        if layout is None:
            raise ValueError("block_tokens: a bare fingerprint does not say it")
        block_tokens = layout.groups[group].block_tokens
    if block_tokens < 1:
        raise ValueError(f"block_tokens: {block_tokens} is less than 1")
    tokens = _tokens(token_ids)
    count = len(tokens) // block_tokens
    seed = _seed(fingerprint, group, _KIND_CHAIN)
    data, size = tokens[: count * block_tokens].tobytes(), block_tokens * 8
    packed = b"".join(_chain(seed, data, size))
    return Identities(_unpack(packed), fingerprint, group, chain=True)


def plain_ids(namespace: Any, ids: Iterable[bytes], group: int = 0) -> Identities:
    """Identities of ids of the caller's own, 1 to 64 bytes each: free-standing, in the order given."""
    fingerprint, _ = _namespace(namespace, group)
    seed = _seed(fingerprint, group, _KIND_PLAIN)
    return Identities(_unpack(b"".join(_plain(seed, ids))), fingerprint, group)


def private_ids(after: Identities, count: int) -> Identities:
    """Identities of `count` blocks that go on where a chain ends, and that nobody else can make: for blocks whose
    bytes are not those that their tokens have elsewhere, such as what a lossy sequence decodes.
    """
    if count < 1 or not len(after):
        raise ValueError(f"count: {count} blocks after {len(after)}: there must be one of each at least")
    array = np.frombuffer(secrets.token_bytes(count * IDENTITY_BYTES), np.uint8).reshape(count, IDENTITY_BYTES)
    return replace(after, array=array, chain=True, position=after.position + len(after), parent=bytes(after[-1]))


def ids_of(layout: Any, ids: Iterable[bytes]) -> Identities:
    """Identities one by one, as a loop over them gives, free-standing; or ids of the caller's own, hashed."""
    each = list(ids)
    if not any(isinstance(one, Identity) for one in each):
        return plain_ids(layout, each)
    if not all(isinstance(one, Identity) for one in each):
        raise ValueError("ids: identities and ids of your own in one list")
    if len(layout.groups) > 1:
        raise ValueError("ids: an identity alone does not say its group; use a slice, or take()")
    return Identities(_unpack(b"".join(each)))


def _seed(fingerprint: bytes, group: int, kind: bytes) -> Any:
    start = fingerprint + group.to_bytes(4, "little") + kind
    return hashlib.blake2b(start, digest_size=IDENTITY_BYTES, person=_PERSON)


def _chain(seed: Any, data: bytes, size: int) -> Iterator[bytes]:
    identity = _ROOT
    for offset in range(0, len(data), size):
        hashed = seed.copy()
        hashed.update(identity + data[offset : offset + size])
        identity = hashed.digest()
        yield identity


def _plain(seed: Any, ids: Iterable[bytes]) -> Iterator[bytes]:
    for index, one in enumerate(ids):
        if not isinstance(one, bytes):
            raise TypeError(f"ids[{index}]: {type(one).__name__} is not bytes; for tokens use chain_ids()")
        if not 1 <= len(one) <= PLAIN_ID_BYTES_MAX:
            raise ValueError(f"ids[{index}]: {len(one)} bytes, not 1 to {PLAIN_ID_BYTES_MAX}")
        hashed = seed.copy()
        hashed.update(one)
        yield hashed.digest()


def _unpack(packed: bytes) -> U8Array:
    return np.frombuffer(packed, np.uint8).reshape(-1, IDENTITY_BYTES)


def _namespace(namespace: Any, group: int) -> tuple[bytes, Any]:
    """The group's fingerprint, and the layout where there is one."""
    if isinstance(namespace, bytes):
        if len(namespace) != 32:
            raise ValueError(f"fingerprint: {len(namespace)} bytes, not 32")
        return namespace, None
    layout = getattr(namespace, "layout", namespace)
    if not hasattr(layout, "group_fingerprint"):
        raise ValueError(f"namespace: {type(namespace).__name__} is no Namespace, Layout or fingerprint")
    if not 0 <= group < len(layout.groups):
        raise ValueError(f"group: the layout has {len(layout.groups)} groups, none of number {group}")
    return layout.group_fingerprint(group), layout


def _tokens(token_ids: Any) -> NDArray[np.int64]:
    if hasattr(token_ids, "detach"):
        token_ids = token_ids.detach().cpu().numpy()
    if isinstance(token_ids, str | bytes):
        raise ValueError("token_ids: text has none; give what a tokenizer makes of it")
    if isinstance(token_ids, list | tuple) and token_ids and not isinstance(token_ids[0], bool):
        with suppress(TypeError, OverflowError):  # numpy says what is wrong; it looks at each one for twice as long
            token_ids = array("q", token_ids)
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1:
        raise ValueError(f"token_ids: {tokens.ndim} axes, not one")
    if tokens.size and tokens.dtype.kind not in "iu":
        raise ValueError(f"token_ids: {tokens.dtype} is not an integer type")
    if tokens.dtype == np.uint64 and tokens.size and tokens.max() >= 2**63:
        raise ValueError("token_ids: a token does not fit a signed 64-bit number")
    return tokens.astype("<i8", copy=False)


def batches(ids: Identities, most: int) -> Iterator[tuple[int, Identities]]:
    """Identities cut into runs that the daemon takes at once, each with its start."""
    return ((start, ids[start : start + most]) for start in range(0, len(ids), most))


def some(ids: Identities, indices: list[int]) -> Identities:
    """Some of them; a run keeps its place in the chain."""
    chosen: NDArray[np.int64] = np.asarray(indices)
    if chosen[-1] - chosen[0] + 1 == len(chosen):
        return ids[indices[0] : indices[-1] + 1]
    return ids.take(chosen)
