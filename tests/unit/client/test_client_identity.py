"""Identities: golden vectors, links of a chain, and what is refused."""

from __future__ import annotations

import array
import hashlib
import os
import struct
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

from tierd_client.identity import Identities, Identity, chain_ids, ids_of, plain_ids, private_ids
from tierd_client.layout import Layout

LAYOUT = Layout("m", "bfloat16", layers=2, kv_heads=2, head_dim=8, block_tokens=16)
TOKENS = list(range(100))


def test_chain_identities_are_the_documented_hash() -> None:
    """An identity is blake2b over fingerprint, group, kind, the identity before it, and the tokens."""
    ids = chain_ids(LAYOUT, TOKENS)
    before = bytes(32)
    for i, identity in enumerate(ids):
        tokens = struct.pack("<16q", *TOKENS[16 * i : 16 * i + 16])
        data = LAYOUT.fingerprint + struct.pack("<IB", 0, 1) + before + tokens
        before = hashlib.blake2b(data, digest_size=32, person=b"tierd-id-v1").digest()
        assert identity == before


def test_plain_identities_are_the_documented_hash() -> None:
    """A plain identity is blake2b over fingerprint, group, kind and the id."""
    data = LAYOUT.fingerprint + struct.pack("<IB", 0, 0) + b"doc-1"
    assert plain_ids(LAYOUT, [b"doc-1"])[0] == hashlib.blake2b(
        data, digest_size=32, person=b"tierd-id-v1").digest()


def test_identities_never_change() -> None:
    """Identities are those of the first release: stored blocks stay found."""
    ids = chain_ids(LAYOUT, TOKENS)
    assert len(ids) == 6
    assert ids[0].hex() == "d9ba16dda7030d32ffd46cd33f3d3337da4e18847e5cd8bfd723bfd529786ca1"
    assert ids[5].hex() == "92133c34ba55e5979943068b3164e355adb6f47145dd1bb47138f0f52d0e8cc7"
    plain = plain_ids(LAYOUT, [b"doc-1"])[0]
    assert plain.hex() == "02dc24a85de5ae270e4f8ae6473c3ef2ba2f706b7d529e7255ad2fbd9e23f371"


@pytest.mark.parametrize("seed", ["0", "4711"])
def test_identities_do_not_depend_on_the_process(seed: str) -> None:
    """Another process with another PYTHONHASHSEED makes the same identities."""
    code = (
        "from tierd_client import Layout, chain_ids\n"
        "layout = Layout('m', 'bfloat16', layers=2, kv_heads=2, head_dim=8, block_tokens=16)\n"
        "print(chain_ids(layout, range(100)).packed().hex())"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True,
        text=True, check=True, timeout=60,
    )
    assert run.stdout.strip() == chain_ids(LAYOUT, TOKENS).packed().hex()


@pytest.mark.parametrize(
    "tokens",
    [range(100), tuple(TOKENS), np.arange(100, dtype=np.int32), np.arange(200, dtype=np.uint64)[::2] // 2,
     array.array("i", TOKENS)],
    ids=lambda tokens: type(tokens).__name__,
)
def test_any_sequence_of_ints_gives_the_same_chain(tokens: Any) -> None:
    """The type that carries the tokens does not matter, only the tokens do."""
    assert chain_ids(LAYOUT, tokens) == chain_ids(LAYOUT, TOKENS)


def test_a_torch_tensor_gives_the_same_chain() -> None:
    """Tokens in a torch tensor give the chain of the same tokens in a list."""
    torch = pytest.importorskip("torch")
    assert chain_ids(LAYOUT, torch.arange(100)) == chain_ids(LAYOUT, TOKENS)


@pytest.mark.parametrize(
    "tokens", [[1.5] * 16, [True] * 16, [[1] * 16], np.full(16, 2**63, np.uint64), ["a"], "text"],
)
def test_tokens_that_are_not_integers_are_refused(tokens: Any) -> None:
    """Floats, bools, text, two axes and numbers beyond 63 bits raise ValueError."""
    with pytest.raises(ValueError, match=r"^token_ids: "):
        chain_ids(LAYOUT, tokens)


@pytest.mark.parametrize("namespace", [TOKENS, None, "m"])
def test_what_is_no_namespace_is_named(namespace: Any) -> None:
    """Tokens or a name in place of the namespace raise ValueError that says what goes there."""
    with pytest.raises(ValueError, match=r"^namespace: \w+ is no Namespace"):
        chain_ids(namespace, LAYOUT)


def test_identities_one_by_one_are_not_hashed_again() -> None:
    """A list, a loop or an index gives identities that name the same blocks; without their place in the chain."""
    ids = chain_ids(LAYOUT, TOKENS)
    assert all(isinstance(one, Identity) for one in (ids[0], *ids))
    for given in (list(ids), [ids[0]], reversed(ids)):
        each = list(given)
        found = ids_of(LAYOUT, each)
        assert list(found) == each and not found.chain
    assert ids_of(LAYOUT, [bytes(ids[0])]) == plain_ids(LAYOUT, [bytes(ids[0])])


def test_identities_one_by_one_must_say_what_they_are() -> None:
    """Mixed with ids of the caller's own, or of a layout with several groups, they are refused in words."""
    ids = chain_ids(LAYOUT, TOKENS)
    with pytest.raises(ValueError, match=r"^ids: identities and ids of your own"):
        ids_of(LAYOUT, [ids[0], b"a"])
    two = Layout.of_groups([LAYOUT.groups[0], LAYOUT.groups[0]], model="m")
    with pytest.raises(ValueError, match=r"^ids: .* group"):
        ids_of(two, list(chain_ids(two, TOKENS, 1)))


def test_tokens_of_less_than_a_block_have_no_identity() -> None:
    """Only full blocks are named."""
    assert [len(chain_ids(LAYOUT, range(n))) for n in (0, 15, 16, 31, 32)] == [0, 0, 1, 1, 2]


def test_an_identity_depends_on_all_before_it() -> None:
    """A token that differs changes the identities of its block and of all after it, and none before."""
    one, other = chain_ids(LAYOUT, TOKENS), chain_ids(LAYOUT, [*TOKENS[:40], 7, *TOKENS[41:]])
    assert [a == b for a, b in zip(one, other, strict=True)] == [True, True, False, False, False, False]


def test_group_layout_and_kind_separate_identities() -> None:
    """The same tokens or id under another group, layout or kind have other identities."""
    fingerprint = LAYOUT.fingerprint
    other = Layout("n", "bfloat16", layers=2, kv_heads=2, head_dim=8, block_tokens=16)
    names = {
        chain_ids(fingerprint, TOKENS[:16], block_tokens=16)[0],
        chain_ids(fingerprint, TOKENS[:16], group=1, block_tokens=16)[0],
        chain_ids(other, TOKENS[:16])[0],
        plain_ids(fingerprint, [b"x"])[0],
        plain_ids(fingerprint, [b"x"], group=1)[0],
        plain_ids(other, [b"x"])[0],
    }
    assert len(names) == 6


def test_a_slice_keeps_the_link() -> None:
    """A slice of a chain knows its position and the identity before it, also when sliced again."""
    ids = chain_ids(LAYOUT, TOKENS)
    tail = ids[2:][1:3]
    assert (tail.chain, tail.position, tail.parent) == (True, 3, ids[2])
    assert list(tail) == [ids[3], ids[4]]
    assert (ids[:2].position, ids[:2].parent) == (0, None)
    assert len(ids[4:2]) == 0
    assert ids[-1] == ids[5]


def test_taken_identities_are_free_standing() -> None:
    """take() gives any order, without a link."""
    ids = chain_ids(LAYOUT, TOKENS)
    some = ids.take([4, 1])
    assert list(some) == [ids[4], ids[1]]
    assert (some.chain, some.parent, some.position) == (False, None, 0)


def test_a_slice_with_a_step_is_refused() -> None:
    """A step other than 1 raises ValueError: it would break the chain unseen."""
    with pytest.raises(ValueError, match=r"^step: "):
        chain_ids(LAYOUT, TOKENS)[::2]


def test_identities_cannot_be_written() -> None:
    """The packed array is read-only."""
    with pytest.raises(ValueError, match="read-only"):
        chain_ids(LAYOUT, TOKENS).array[0, 0] = 1


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 31), np.uint8), np.zeros(32, np.uint8), np.zeros((1, 32), np.int8)],
)
def test_an_array_of_another_shape_is_refused(bad: Any) -> None:
    """Identities are uint8 of shape (n, 32), nothing else."""
    with pytest.raises(ValueError, match=r"^array: "):
        Identities(bad)


@pytest.mark.parametrize("bad", [b"", b"x" * 65])
def test_a_plain_id_of_another_size_is_refused(bad: bytes) -> None:
    """A plain id has 1 to 64 bytes; the error names its index."""
    with pytest.raises(ValueError, match=r"^ids\[1\]: "):
        plain_ids(LAYOUT, [b"ok", bad])


def test_a_group_that_does_not_exist_is_refused() -> None:
    """A group number beyond the layout's raises ValueError."""
    with pytest.raises(ValueError, match=r"^group: "):
        chain_ids(LAYOUT, TOKENS, group=1)


def test_a_long_prompt_is_named_quickly() -> None:
    """8,192 identities of a prompt of 131,072 tokens take at most 60 ms (5.8 measured, 2 cores, 2026)."""
    tokens = np.arange(131_072)
    best = min(_seconds(lambda: chain_ids(LAYOUT, tokens)) for _ in range(5))
    assert best < 0.060


def _seconds(call: Any) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_private_identities_go_on_with_a_chain_and_are_made_once() -> None:
    """They stand behind the chain, in its layout and group, and no two calls make the same."""
    ids = chain_ids(LAYOUT, TOKENS)
    made, again = private_ids(ids, 3), private_ids(ids, 3)
    assert (made.chain, made.position, made.parent, made.fingerprint) == (True, 6, ids[-1], ids.fingerprint)
    assert len({*made, *again, *ids}) == 12
    for after, count in ((ids, 0), (ids[:0], 1)):
        with pytest.raises(ValueError, match="count"):
            private_ids(after, count)
