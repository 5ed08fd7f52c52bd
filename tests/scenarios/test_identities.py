"""What users of other systems met with the names of blocks: docs/field-reports.md, section B."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from block_pattern import pattern, wrong_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, EvictOutcome, Layout, Presence, PutOutcome, ReadmitOutcome, Tier, chain_ids, errors
from tierd_client.namespace import Namespace

TOKENS = 16
LAYERS, HEADS, DIM = 2, 2, 16
SIZE = 2 * LAYERS * TOKENS * HEADS * DIM * 2
"""Bytes of a block of two-byte numbers."""
BLOCKS = 6
PROMPT = range(1, 1 + BLOCKS * TOKENS)
Replacement = dict[str, Any]

STRANGERS: list[Replacement] = [
    {"dtype": "float16"}, {"kv_layout": "packed"}, {"engine": "other"}, {"model": "m2"}, {"revision": "r2"},
    {"weights_epoch": 1}, {"adapter": "lora-x"}, {"adapter": "lora-y"}, {"tenant_salt": b"tenant"},
    {"tp_rank": 1, "tp_size": 2}, {"tp_rank": 0, "tp_size": 2}, {"tp_size": 4}, {"pp_rank": 1, "pp_size": 2},
    {"cp_rank": 1, "cp_size": 2}, {"block_tokens": 2 * TOKENS, "layers": LAYERS // 2},
]
"""Each with blocks of the very same size as those of `layout()`."""


def layout(**fields: Any) -> Layout:
    usual = {
        "model": "m", "dtype": "bfloat16", "layers": LAYERS, "kv_heads": HEADS, "head_dim": DIM,
        "block_tokens": TOKENS, "kv_layout": "per-layer",
    }
    return Layout(**(usual | fields))


@pytest.fixture(scope="module")
def served(module_daemon: StartDaemon) -> ServeProcess:
    """A daemon with three tiers for the tests of this module."""
    server = module_daemon(hbm_bytes="2MiB", host_bytes="8MiB", spill="embedded", spill_bytes_max="16MiB")
    server.event("spill_up")
    return server


@pytest.fixture
def client(served: ServeProcess) -> Iterator[Client]:
    with Client(served.address) as one:
        one.admin.clear(ghosts=True)
        yield one


def bytes_of(first: int, count: int = BLOCKS) -> list[Any]:
    return [pattern(first + number, SIZE) for number in range(count)]


def wrong(blocks: list[Any], first: int) -> list[int | None]:
    """Wrong bytes of each block that was read; None where none was."""
    return [None if one is None else wrong_bytes(np.asarray(one), first + n) for n, one in enumerate(blocks)]


def spread(ns: Namespace, ids: Any) -> None:
    """Two blocks into each tier."""
    assert ns.evict(ids[4:], to="spill") == [EvictOutcome.MOVED] * 2
    assert ns.readmit(ids[:2], to="hbm") == [ReadmitOutcome.READY] * 2


# --- peers that must not share -----------------------------------------------------------------------


def test_layouts_of_equal_size_share_no_block(client: Client) -> None:
    """Peers that differ in dtype, layout, engine, model, revision, weights, adapter, tenant, rank or parallel
    size miss each other's blocks in every tier, by every verb, though the bytes of a block are as many; each
    reads back its own, and those of before are untouched."""
    own = client.namespace(layout())
    ids = chain_ids(own, PROMPT)
    assert own.put(ids, bytes_of(0)) == [PutOutcome.STORED] * BLOCKS
    spread(own, ids)
    for number, fields in enumerate(STRANGERS, 1):
        other = client.namespace(layout(**fields))
        theirs = chain_ids(other, PROMPT)
        assert other.layout.groups[0].block_bytes == SIZE, fields
        assert not set(theirs) & set(ids), fields
        found = other.lookup(theirs)
        assert (found.prefix, set(found.presence)) == (0, {Presence.MISS}), fields
        assert other.get(theirs) == [None] * len(theirs), fields
        assert set(other.evict(theirs)) == {EvictOutcome.MISS}
        assert set(other.readmit(theirs, to="hbm")) == {ReadmitOutcome.MISS}
        first = 100 * number
        assert set(other.put(theirs, bytes_of(first, len(theirs)))) == {PutOutcome.STORED}, fields
        assert wrong(other.get(theirs), first) == [0] * len(theirs), fields
    assert wrong(own.get(ids), 0) == [0] * BLOCKS
    for number, fields in enumerate(STRANGERS, 1):
        other = client.namespace(layout(**fields))
        theirs = chain_ids(other, PROMPT)
        assert wrong(other.get(theirs), 100 * number) == [0] * len(theirs), fields
    shown = {(one.model, one.dtype, one.adapter, one.tp_rank, one.tp_size) for one in client.admin.namespaces()}
    assert {("m", "bfloat16", "", 0, 1), ("m", "float16", "", 0, 1), ("m", "bfloat16", "lora-x", 0, 1)} <= shown
    assert {("m", "bfloat16", "", 1, 2), ("m", "bfloat16", "", 0, 4)} <= shown


def test_a_worker_that_registers_anew_finds_its_blocks(served: ServeProcess, client: Client) -> None:
    """Between two registrations of one layout another may register and store under the same tokens: the first one's
    next process hits its own blocks, as they were, also from below."""
    for generation, kind in enumerate(("packed", "per-layer", "packed", "per-layer")):
        with Client(served.address) as worker:
            ns = worker.namespace(layout(kv_layout=kind, revision="generations"))
            ids = chain_ids(ns, PROMPT)
            first = 1000 if kind == "packed" else 2000
            assert ns.lookup(ids).prefix == (0 if generation < 2 else BLOCKS)
            assert set(ns.put(ids, bytes_of(first))) <= {PutOutcome.STORED, PutOutcome.EXISTS}
            assert wrong(ns.get(ids), first) == [0] * BLOCKS
            spread(ns, ids)
    assert len(list(client.admin.namespaces())) >= 2


WORKER = """
import sys
from tierd_client import Client, Layout, chain_ids
with Client(sys.argv[1]) as client:
    ns = client.namespace(Layout.opaque(block_bytes=4096, block_tokens=16, model="seeds"))
    ids = chain_ids(ns, range(16 * 8))
    hit = ns.lookup(ids).prefix
    ns.put(ids, [bytes(4096)] * 8)
    print(hit, ids.packed().hex())
"""


def test_processes_agree_on_names_whatever_their_hash_seed(served: ServeProcess) -> None:
    """Processes without PYTHONHASHSEED and with several make the same identities, and each but the first hits
    all that the first one stored."""
    answers = []
    for seed in (None, "0", "123"):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
        environment |= {} if seed is None else {"PYTHONHASHSEED": seed}
        ran = subprocess.run(
            [sys.executable, "-c", WORKER, served.address], env=environment, capture_output=True, text=True,
            check=True, timeout=60)
        answers.append(ran.stdout.split())
    assert [answer[0] for answer in answers] == ["0", "8", "8"]
    assert len({answer[1] for answer in answers}) == 1


def test_a_name_binds_two_roles_to_one_layout(client: Client) -> None:
    """Where a scheduler and a worker register under one name and derive one field differently, the second is
    refused by the name of that field, whichever it is; it never reads nothing, silently."""
    client.namespace(layout(model="roles"), name="pair")
    for fields in STRANGERS:
        named = "groups" if "block_tokens" in fields else "|".join(fields)
        with pytest.raises(errors.FailedPrecondition, match=named):
            client.namespace(layout(**({"model": "roles"} | fields)), name="pair")


# --- names that are hard to write --------------------------------------------------------------------

AWKWARD = [
    "@", "@@x", ":", "/", "%", "a@b:c/d%e", "a@b", "{tierd:x}", "*", "[a-z]?", "\n", " ", "\x00", "a\x00b", "é",
    "模型", "😀", "x" * 300, "..", "-rf", "\"'`$(x)", "%2F",
]


def test_names_may_hold_anything(client: Client) -> None:
    """Models named with delimiters, wildcards, line breaks, NUL, other scripts or 300 characters are distinct, are
    listed exactly as they were given, and their blocks go to the spill tier and back."""
    named = {model: client.namespace(Layout.opaque(block_bytes=4096, model=model)) for model in AWKWARD}
    for number, ns in enumerate(named.values()):
        assert ns.put([b"x"], [pattern(number, 4096)]) == [PutOutcome.STORED]
        assert ns.evict([b"x"]) == [EvictOutcome.MOVED]
    for number, ns in enumerate(named.values()):
        assert wrong(ns.get([b"x"]), number) == [0]
    assert set(AWKWARD) <= {one.model for one in client.admin.namespaces()}
    for model in AWKWARD:
        assert client.admin.clear(dry_run=True, model=model).in_use_blocks == 0
        assert len(list(client.admin.list_blocks(model=model))) == 1


@settings(deadline=None, max_examples=60)
@given(left=st.text(max_size=6), right=st.text(max_size=6), cut=st.integers(0, 12))
def test_fields_do_not_run_into_each_other(left: str, right: str, cut: int) -> None:
    """Fields whose texts add up to the same text, cut elsewhere, are different layouts."""
    whole = left + right
    pairs = {(left, right), (whole[:cut], whole[cut:]), (whole, ""), ("", whole)}
    for names in (("model", "revision"), ("engine", "kv_layout"), ("model", "adapter")):
        made = {Layout.opaque(block_bytes=64, **dict(zip(names, pair, strict=True))).fingerprint for pair in pairs}
        assert len(made) == len(pairs)


def test_names_that_cannot_be_meant_are_refused_by_field(client: Client) -> None:
    """Fields that are too long or no text, ids that are empty or too long, and prompts that are no tokens are
    refused by name; nothing is registered or stored by it."""
    before = client.admin.occupancy().identities
    for field in ("model", "revision", "engine", "kv_layout", "adapter"):
        with pytest.raises(ValueError, match=field):
            Layout.opaque(block_bytes=64, **{field: "x" * 5_000})
    with pytest.raises(ValueError, match="tenant_salt"):
        Layout.opaque(block_bytes=64, tenant_salt=b"x" * 5_000)
    ns = client.namespace(Layout.opaque(block_bytes=4096, model="empty"))
    for ids in ([b""], [b"x" * 65], [b"ok", b""]):
        with pytest.raises(ValueError, match=r"ids\[\d\]"):
            ns.put(ids, [bytes(4096)] * len(ids))
    for tokens in ([1.5] * 32, ["a"] * 32, [[1]] * 32, [2**70] * 32):
        with pytest.raises(ValueError):
            chain_ids(ns, tokens)
    assert client.admin.occupancy().identities == before


def test_a_prompt_without_tokens_has_no_hit(client: Client) -> None:
    """A prompt of no tokens, or of less than a block, has no identities: its hit is 0 and never negative, and every
    call for it is empty."""
    ns = client.namespace(layout(model="short"))
    for tokens in ([], range(TOKENS - 1)):
        ids = chain_ids(ns, tokens)
        assert (len(ids), ns.lookup(ids).prefix, ns.get(ids), ns.put(ids, [])) == (0, 0, [], [])
        with ns.sequence("short", ids) as sequence, ns.acquire(ids) as lease:
            assert (sequence.lookup().prefix, lease.outcomes) == (0, [])
        assert client.lookup_chains([(ns, ids)]).tokens == 0


# --- clearing ----------------------------------------------------------------------------------------

FOREIGN = (b"app:1", b"tierd", b"tierd:old", b"tierdx:1", b"{tierd}:1", b"{other:00:11}")


def own_keys(valkey: ExternalValkey) -> set[bytes]:
    """Keys of blocks, not those of other applications nor the marker."""
    keys = valkey.run(b"KEYS", b"*")
    assert isinstance(keys, list)
    found = {key for key in keys if isinstance(key, bytes) and key not in FOREIGN}
    return {key for key in found if key.count(b":") >= 2 and not key.startswith(b"{tierd:marker")}


def test_a_clear_reaches_every_tier_and_nobody_elses_keys(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """A clear of everything says how many copies went from each tier and names what is leased; no block is had
    afterwards, not by the next request and not after kill -9; its keys are gone from the server, and those of other
    applications are there as before."""
    for key in FOREIGN:
        valkey.run(b"SET", key, b"theirs")
    server = daemon(hbm_bytes="2MiB", host_bytes="4MiB", spill=valkey.unix_url, spill_bytes_max="16MiB")
    server.event("spill_up")
    with Client(server.address, connect_timeout_s=20.0) as client:
        ns = client.namespace(layout())
        ids = chain_ids(ns, PROMPT)
        assert ns.put(ids, bytes_of(0)) == [PutOutcome.STORED] * BLOCKS
        assert set(ns.evict(ids, to="spill")) == {EvictOutcome.MOVED}
        assert set(ns.readmit(ids, to="hbm")) == {ReadmitOutcome.READY}
        assert set(ns.readmit(ids[:3], to="host")) == {ReadmitOutcome.READY}
        assert own_keys(valkey)
        counts = {tier: row.blocks for tier, row in client.admin.occupancy().tiers.items()}
        with ns.acquire(ids[:1]) as lease:
            assert lease.outcomes[0].name == "LEASED"
            cleared = client.admin.clear()
            assert (cleared.in_use_blocks, cleared.in_use_ids) == (1, tuple(ids[:1]))
            assert wrong(lease.views(), 0) == [0]
        rest = client.admin.clear()
        for tier in (Tier.HBM, Tier.HOST, Tier.SPILL):
            assert cleared.tiers[tier].blocks + rest.tiers[tier].blocks == counts[tier], tier
        assert ns.lookup(ids).presence == [Presence.MISS] * BLOCKS
        assert ns.get(ids) == [None] * BLOCKS
        assert (rest.deletes_waiting, own_keys(valkey)) == (0, set())
        server.restart()
        assert ns.get(ids) == [None] * BLOCKS
        assert ns.lookup(ids).presence == [Presence.MISS] * BLOCKS
        assert ns.put(ids, bytes_of(500)) == [PutOutcome.STORED] * BLOCKS, "nothing is left that stands in the way"
        assert wrong(ns.get(ids), 500) == [0] * BLOCKS
        client.admin.clear()
        assert ns.get(ids) == [None] * BLOCKS
        assert own_keys(valkey) == set()
    assert [valkey.run(b"GET", key) for key in FOREIGN] == [b"theirs"] * len(FOREIGN)
