"""Layouts: geometry, the canonical encoding and its strictness."""

from __future__ import annotations

import contextlib
import struct
from dataclasses import replace
from typing import Any

import pytest

from tierd_client.layout import (
    GROUPS_MAX,
    PARTS_MAX,
    Group,
    Layout,
    Part,
    decode_canonical,
    differing_field,
)

LLAMA: dict[str, Any] = {
    "model": "llama-3.1-8b", "dtype": "bfloat16", "layers": 32, "kv_heads": 8, "head_dim": 128,
    "block_tokens": 16,
}


def hybrid() -> Layout:
    parts = (Part("latent", "float16", (4, 16, 576)), Part("rope", "float16", (4, 16, 64)))
    state = Group("state", 64, (Part("s", "float32", (2, 128, 128)),), rule="boundary", replicated=True)
    window = Group("w", 16, (Part("kv", "int8", (2, 16, 64)),), rule="window", window_tokens=4096)
    return Layout.of_groups([Group("mla", 16, parts), window, state], model="h", tenant_salt=b"\x00s")


def test_the_geometry_of_a_70b_model() -> None:
    """80 layers x 8 heads x 128 in 16 bits: 327,680 bytes a token, 5 MiB a block, 335.5 GB at 16 x 64,000."""
    layout = Layout("m", "float16", layers=80, kv_heads=8, head_dim=128, block_tokens=16)
    assert layout.bytes_per_token == 327_680
    assert layout.block_bytes == 5 * 2**20
    assert layout.bytes_per_token * 16 * 64_000 == 335_544_320_000


def test_the_usual_layout_is_one_group_of_k_and_v() -> None:
    """A Layout has one prefix group: k and v of shape (layers, block_tokens, kv_heads, head_dim)."""
    (group,) = Layout(**LLAMA).groups
    shape = (32, 16, 8, 128)
    assert group.parts == (Part("k", "bfloat16", shape), Part("v", "bfloat16", shape))
    assert (group.rule, group.block_tokens, group.replicated) == ("prefix", 16, False)


def test_the_canonical_encoding_is_the_documented_one() -> None:
    """The encoding equals the one put together by hand from docs/format.md, field by field."""

    def field(kind: bytes, payload: bytes) -> bytes:
        return kind + struct.pack("<I", len(payload)) + payload

    def number(value: int) -> bytes:
        return field(b"i", struct.pack("<q", value))

    part = field(b"l", field(b"s", b"opaque") + field(b"s", b"uint8") + field(b"l", number(4096)))
    group = field(b"s", b"opaque") + number(16) + field(b"s", b"prefix") + number(0) + number(0)
    expected = b"".join([
        number(1), field(b"s", "mödel".encode()), field(b"s", b"r1"), number(7), field(b"s", b"vllm"),
        field(b"s", b"uint8"), field(b"s", b"nhd"), field(b"s", b"lora"), field(b"b", b"\x00salt"),
        number(1), number(2), number(0), number(1), number(0), number(1),
        field(b"l", field(b"l", group + field(b"l", part))),
    ])
    layout = Layout.opaque(
        block_bytes=4096, block_tokens=16, model="mödel", revision="r1", weights_epoch=7, engine="vllm",
        kv_layout="nhd", adapter="lora", tenant_salt=b"\x00salt", tp_rank=1, tp_size=2,
    )
    assert layout.canonical() == expected


def test_a_fingerprint_never_changes() -> None:
    """The fingerprint of a layout is the one of the first release: stored blocks stay found."""
    assert Layout(**LLAMA).fingerprint.hex() == GOLDEN_LLAMA
    assert hybrid().fingerprint.hex() == GOLDEN_HYBRID


GOLDEN_LLAMA = "c65f17853762dd45f7312063f0aaf5fe49a4471c7b032f49be77d19251f0d9a5"
GOLDEN_HYBRID = "724d46276a0c27cff6355102b1526e53d20b48426d725701f576383d39478531"


@pytest.mark.parametrize("layout", [Layout(**LLAMA), hybrid(), Layout.opaque(block_bytes=1)], ids=repr)
def test_decoding_gives_the_layout_back(layout: Layout) -> None:
    """What was encoded is decoded to an equal layout with the same fingerprint."""
    decoded = decode_canonical(layout.canonical())
    assert decoded == layout
    assert decoded.groups == layout.groups
    assert decoded.fingerprint == layout.fingerprint
    assert differing_field(decoded, layout) == ""


def test_every_cut_of_an_encoding_is_refused() -> None:
    """No prefix of an encoding, and no encoding with bytes after it, decodes."""
    whole = hybrid().canonical()
    for size in range(len(whole)):
        with pytest.raises(ValueError, match=":"):
            decode_canonical(whole[:size])
    with pytest.raises(ValueError, match=r"^layout: 1 bytes after"):
        decode_canonical(whole + b"\0")


def test_a_changed_byte_never_decodes_to_the_same_layout() -> None:
    """Each single changed byte is refused with ValueError or gives another layout that encodes to it."""
    whole = bytearray(hybrid().canonical())
    for i in range(len(whole)):
        whole[i] ^= 0x01
        with contextlib.suppress(ValueError):
            assert decode_canonical(bytes(whole)).canonical() == bytes(whole)
        whole[i] ^= 0x01


def _spoiled(old: bytes, new: bytes) -> bytes:
    canonical = hybrid().canonical()
    assert len(old) == len(new)
    assert old in canonical
    return canonical.replace(old, new, 1)


@pytest.mark.parametrize(
    ("canonical", "field"),
    [
        (b"", "schema_version"),
        (struct.pack("<cIq", b"i", 8, 2), "schema_version"),
        (struct.pack("<cIq", b"i", 8, 1) + struct.pack("<cIc", b"s", 1, b"\xff"), "model"),
        (struct.pack("<cIq", b"i", 8, 1) + struct.pack("<cIc", b"b", 1, b"m"), "model"),
        (_spoiled(b"boundary", b"boundaru"), r"groups\[2\].rule"),
        (_spoiled(b"float32", b"float23"), r"groups\[2\].parts\[0\].dtype"),
        (bytes(65 * 1024), "layout"),
    ],
)
def test_a_malformed_field_is_named(canonical: bytes, field: str) -> None:
    """The ValueError of a malformed encoding begins with the name of the field at fault."""
    with pytest.raises(ValueError, match=f"^{field}: "):
        decode_canonical(canonical)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"dtype": "bf16"}, "dtype"),
        ({"layers": 0}, "layers"),
        ({"head_dim": True}, "head_dim"),
        ({"model": "m" * 1025}, "model"),
        ({"model": "\ud800"}, "model"),
        ({"weights_epoch": -1}, "weights_epoch"),
        ({"tenant_salt": "text"}, "tenant_salt"),
        ({"tp_rank": 2, "tp_size": 2}, "tp_rank"),
        ({"pp_size": 0}, "pp_size"),
        ({"layers": 2**31}, r"groups\[0\].block_bytes"),
    ],
)
def test_an_impossible_field_is_named(change: dict[str, Any], field: str) -> None:
    """A Layout with a field out of its range raises ValueError that begins with the field's name."""
    with pytest.raises(ValueError, match=f"^{field}: "):
        Layout(**(LLAMA | change))


PART = Part("p", "uint8", (1,))


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ([], "groups"),
        ([Group("g", 1, (PART,))] * (GROUPS_MAX + 1), "groups"),
        ([Group("g", 1, (PART,) * (PARTS_MAX + 1))], r"groups\[0\].parts"),
        ([Group("g", 1, (Part("p", "uint8", (1,) * 9),))], r"groups\[0\].parts\[0\].shape"),
        ([Group("g", 1, (Part("p", "uint8", (2**32,)),))], r"groups\[0\].parts\[0\].shape"),
        ([Group("g", 1, (PART,), rule="window")], r"groups\[0\].window_tokens"),
        ([Group("g", 1, (PART,), window_tokens=5)], r"groups\[0\].window_tokens"),
        ([Group("g", 0, (PART,))], r"groups\[0\].block_tokens"),
        ([Group("g", 1, (Part("p" * 1024, "uint8", (1,)),) * 64)] * 2, "groups"),
    ],
)
def test_an_impossible_group_is_named(groups: list[Group], field: str) -> None:
    """Groups beyond a limit raise ValueError that begins with the field's name."""
    with pytest.raises(ValueError, match=f"^{field}: "):
        Layout.of_groups(groups)


IDENTITY_CHANGES: dict[str, Any] = {
    "model": "other", "revision": "r", "weights_epoch": 1, "engine": "e", "dtype": "float16",
    "kv_layout": "hnd", "adapter": "a", "tenant_salt": b"s", "tp_size": 2, "pp_size": 2, "cp_size": 2,
}


@pytest.mark.parametrize("field", IDENTITY_CHANGES)
def test_a_change_of_any_field_is_another_namespace(field: str) -> None:
    """Layouts that differ in one field have other fingerprints, and the field is named."""
    one, other = Layout(**LLAMA), Layout(**(LLAMA | {field: IDENTITY_CHANGES[field]}))
    assert one.fingerprint != other.fingerprint
    assert differing_field(one, other) == field


def test_the_first_difference_inside_a_group_is_named() -> None:
    """differing_field goes into groups and parts."""
    one = hybrid()
    mla, window, state = one.groups
    shape = (Part("latent", "float16", (4, 16, 576)), Part("rope", "float16", (4, 16, 63)))

    def other(*groups: Group) -> str:
        return differing_field(one, Layout.of_groups(groups, model="h", tenant_salt=b"\x00s"))

    assert other(mla, window) == "groups"
    assert other(mla, replace(window, window_tokens=8), state) == "groups[1].window_tokens"
    assert other(replace(mla, parts=shape), window, state) == "groups[0].parts[1].shape"
    assert other(replace(mla, parts=shape[:1]), window, state) == "groups[0].parts"


def test_the_name_is_no_part_of_the_layout() -> None:
    """A wished-for name changes neither equality nor fingerprint."""
    assert Layout(**LLAMA, name="a") == Layout(**LLAMA)


def test_replacing_what_is_no_identity_field_is_named() -> None:
    """The geometry, or a field that is none, is not replaced: ValueError names it."""
    layout = Layout(model="m", dtype="float16", layers=2, kv_heads=2, head_dim=8, block_tokens=16)
    assert layout.replace(weights_epoch=7).weights_epoch == 7
    for field in ("block_tokens", "nonsense"):
        with pytest.raises(ValueError, match=f"^{field}: "):
            layout.replace(**{field: 1})  # type: ignore[misc]
