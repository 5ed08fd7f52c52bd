"""What the package offers: its names, what importing it costs, and its closed tables."""

from __future__ import annotations

import subprocess
import sys
from enum import IntEnum

import grpc
import pytest

import tierd_client
from tierd_client import errors, outcomes
from tierd_client.v1 import blocks_pb2


def test_every_name_that_is_announced_exists() -> None:
    """Each name in __all__ can be had from the package, and dir() lists it."""
    for name in tierd_client.__all__:
        assert getattr(tierd_client, name).__name__ == name
        assert name in dir(tierd_client)
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        tierd_client.Nothing  # noqa: B018


def test_layouts_and_identities_need_neither_grpc_nor_torch() -> None:
    """Importing formats, layouts and identities, or the package itself, loads no grpc, protobuf or torch."""
    code = (
        "import sys, tierd_client, tierd_client.format, tierd_client.layout, tierd_client.identity\n"
        "from tierd_client import Layout, chain_ids\n"
        "print([name for name in ('grpc', 'google.protobuf', 'torch', 'xxhash') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "[]"


def test_the_client_does_not_load_torch() -> None:
    """Importing Client loads no torch: that is for those who ask for tensors."""
    code = "import sys\nfrom tierd_client import Client\nprint('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == "False"


def test_every_status_has_an_error() -> None:
    """Each gRPC status but OK is in the table, and the table has no other."""
    assert set(errors.STATUS_ERRORS) == {code.name for code in grpc.StatusCode} - {"OK"}


@pytest.mark.parametrize(
    ("kind", "wire", "prefix"),
    [
        (outcomes.Tier, blocks_pb2.Tier, "TIER_"),
        (outcomes.Presence, blocks_pb2.Presence, "PRESENCE_"),
        (outcomes.PutOutcome, blocks_pb2.PutOutcome, "PUT_OUTCOME_"),
        (outcomes.AcquireOutcome, blocks_pb2.AcquireOutcome, "ACQUIRE_OUTCOME_"),
        (outcomes.EvictOutcome, blocks_pb2.EvictOutcome, "EVICT_OUTCOME_"),
        (outcomes.ReadmitOutcome, blocks_pb2.ReadmitOutcome, "READMIT_OUTCOME_"),
        (outcomes.PinOutcome, blocks_pb2.PinOutcome, "PIN_OUTCOME_"),
        (outcomes.PrefetchOutcome, blocks_pb2.PrefetchOutcome, "PREFETCH_OUTCOME_"),
        (outcomes.Priority, blocks_pb2.Priority, "PRIORITY_"),
        (outcomes.NextUse, blocks_pb2.NextUse, "NEXT_USE_"),
    ],
)
def test_outcomes_are_those_of_the_wire(kind: type[IntEnum], wire: object, prefix: str) -> None:
    """Names and numbers of each outcome are the wire's, without its UNSPECIFIED."""
    listed = {name.removeprefix(prefix): number for name, number in wire.items()}  # type: ignore[attr-defined]
    assert listed.pop("UNSPECIFIED") == 0
    assert {member.name: member.value for member in kind} == listed


def test_reserve_and_put_outcomes_agree() -> None:
    """A reservation's outcome can be told as the put's: same number, same meaning."""
    reserve = {name.removeprefix("RESERVE_OUTCOME_"): n for name, n in blocks_pb2.ReserveOutcome.items()}
    put = {name.removeprefix("PUT_OUTCOME_"): n for name, n in blocks_pb2.PutOutcome.items()}
    assert reserve.pop("GRANTED") == put["STORED"]
    assert all(put[name] == number for name, number in reserve.items())


@pytest.mark.parametrize("value", [0, 99])
def test_an_outcome_outside_the_set_is_a_broken_peer(value: int) -> None:
    """A number that is no outcome raises BrokenPeer instead of passing for one."""
    with pytest.raises(errors.BrokenPeer, match="PutOutcome"):
        outcomes.outcomes_of(outcomes.PutOutcome, [1, value])


def test_tiers_are_named() -> None:
    """Tiers may be written by name in any case; another name is refused with those that exist."""
    assert outcomes.tier_of("Spill") is outcomes.Tier.SPILL
    assert outcomes.tier_of(None) is None
    with pytest.raises(errors.InvalidArgument, match="none of hbm, host, spill"):
        outcomes.tier_of("disk")
    assert outcomes.tiers_of(b"\x00\x06") == [outcomes.Tiers.NONE, outcomes.Tiers.HOST | outcomes.Tiers.SPILL]
    with pytest.raises(errors.BrokenPeer):
        outcomes.tiers_of(b"\x08")
