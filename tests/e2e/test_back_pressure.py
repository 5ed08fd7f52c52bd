"""A spill server that is slower than what is to be stored there: stores are left out, and nothing else suffers."""

from __future__ import annotations

from block_pattern import pattern, wrong_bytes
from spill_load import BLOCK_BYTES, LAYOUT, assert_readable, name, put_and_spill

from tierd.testing.redis_proxy import Mode, RedisProxy
from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, EvictOutcome, PutOutcome, Tier, Tiers
from tierd_client.admin import TierOccupancy

SPILLED = range(1_000, 1_040)
NEW = range(300)
LATE_S = 0.1
"""Of each reply: a store takes a hundred times longer than a put."""


def spill_of(client: Client) -> TierOccupancy:
    return client.admin.occupancy().tiers[Tier.SPILL]


def test_a_slow_server_costs_stores(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """Behind a slow server puts with room are stored at once, blocks that cannot be stored there as fast are left
    out and counted, loads come all the same, and what is said to lie there is there with its bytes."""
    with RedisProxy(valkey.unix_url) as proxy:
        server = daemon(
            spill=proxy.url, host_bytes="16MiB", spill_bytes_max="64MiB", spill_write="through", max_moves=16,
            spill_timeout_ms=10_000)
        with Client(server.address) as client:
            ns = client.namespace(LAYOUT)
            put_and_spill(ns, SPILLED)
            before = spill_of(client)
            proxy.switch(Mode.DELAY, delay_s=LATE_S)
            for number in NEW:
                outcome = ns.put([name(number)], [pattern(number, BLOCK_BYTES)], timeout_s=0.0)
                assert outcome == [PutOutcome.STORED], number
            for block, number in zip(ns.get([name(one) for one in SPILLED], timeout_s=60.0), SPILLED, strict=True):
                assert block is not None and not wrong_bytes(block, number)
            assert spill_of(client).shed_total["busy"] > before.shed_total["busy"]
            proxy.switch(Mode.PASS)
            assert_durable(client, [*NEW, *SPILLED])


def assert_durable(client: Client, numbers: list[int]) -> None:
    """Those of these blocks that lie in the spill tier come back from there alone; the others are in memory."""
    ns = client.namespace(LAYOUT)
    tiers = ns.lookup([name(number) for number in numbers]).tiers
    below = [number for number, one in zip(numbers, tiers, strict=True) if one & Tiers.SPILL]
    assert len(below) >= len(SPILLED)
    assert set(ns.evict([name(number) for number in below], to="spill")) == {EvictOutcome.MOVED}
    assert_readable(ns, numbers, least=len(numbers))
