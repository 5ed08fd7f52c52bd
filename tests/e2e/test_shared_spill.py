"""Daemons that share one Redis: what one spilled another finds, and what one loses costs the others hits only."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import pytest
from block_pattern import pattern, wrong_bytes

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, Layout, Presence, PutOutcome, Tier, Tiers, chain_ids
from tierd_client.identity import Identities
from tierd_client.namespace import Namespace

BLOCK_BYTES = 4096
TOKENS = 16
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES, block_tokens=TOKENS)
NOTICED_WITHIN_S = 5.0


def name(number: int) -> bytes:
    return b"block-%d" % number


def put_and_spill(ns: Namespace, numbers: range) -> None:
    names = [name(n) for n in numbers]
    assert set(ns.put(names, [pattern(n, BLOCK_BYTES) for n in numbers])) == {PutOutcome.STORED}
    ns.evict(names, to="spill")


def read(ns: Namespace, numbers: range) -> int:
    """How many of these blocks are there; all that are have the right bytes."""
    blocks = ns.get([name(n) for n in numbers], timeout_s=10.0)
    found = [(n, block) for n, block in zip(numbers, blocks, strict=True) if block is not None]
    assert sum(wrong_bytes(block, n) for n, block in found) == 0
    return len(found)


def spilled(client: Client) -> tuple[int, int, int]:
    """Blocks in the spill tier, those of others among them, and bytes of its own."""
    row = client.admin.occupancy().tiers[Tier.SPILL]
    return row.blocks, row.found_blocks, row.used_bytes


def until(true: Callable[[], bool], within_s: float = NOTICED_WITHIN_S) -> None:
    end = time.monotonic() + within_s
    while not true():  # each look is a call to a daemon
        assert time.monotonic() < end


def started(daemon: StartDaemon, url: str, **settings: object) -> ServeProcess:
    one = daemon(**{"spill": url, "host_bytes": "1MiB", "spill_bytes_max": "64MiB"} | settings)
    one.event("spill_up")
    return one


# --- a workload -----------------------------------------------------------------------------------------


def workload(ns: Namespace) -> list[Identities]:
    """Conversations that grow turn by turn over common system prompts, interleaved: 128 prompts, 800 blocks."""
    random = np.random.default_rng(7)
    systems = random.integers(0, 1000, (4, 12 * TOKENS))
    talks = [systems[number % 4] for number in range(32)]
    prompts = []
    for _ in range(4):
        for number, talk in enumerate(talks):
            talks[number] = np.concatenate([talk, random.integers(0, 1000, 6 * TOKENS)])
            prompts.append(chain_ids(ns, talks[number].tolist()))
    return prompts


def content(identity: bytes) -> np.ndarray:
    return pattern(int.from_bytes(identity[:4], "little"), BLOCK_BYTES)


def serve(ns: Namespace, prompts: list[Identities]) -> float:
    """Each prompt reads its leading run and stores the rest, as an engine does; the share of blocks that were
    read. None has wrong bytes."""
    read = asked = 0
    for ids in prompts:
        packed = ids.packed()
        wanted = [content(packed[start : start + 32]) for start in range(0, len(packed), 32)]
        blocks = ns.get(ids, timeout_s=10.0)
        run = next((at for at, block in enumerate(blocks) if block is None), len(blocks))
        assert all(np.array_equal(blocks[at], wanted[at]) for at in range(run))
        if run < len(ids):
            ns.put(ids[run:], wanted[run:])
        read, asked = read + run, asked + len(ids)
    return read / asked


def test_a_cold_daemon_serves_what_another_spilled(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """A daemon that knows nothing reads, of a workload that another one has served, within two points of what
    that one reads of it; it finds the records too, and writes and counts nothing of it as its own."""
    warm = started(daemon, valkey.unix_url, spill_write="through")
    with Client(warm.address) as client:
        ns = client.namespace(LAYOUT)
        prompts = workload(ns)
        serve(ns, prompts)
        until(lambda: client.admin.occupancy().moves_in_flight == 0)
        of_warm = serve(ns, prompts)
        client.flush_accesses()
        (told,) = client.admin.describe(prompts[0][:1])
        assert told is not None and told.touches > 50
    warm.terminate()
    cold = started(daemon, valkey.tcp_url)
    with Client(cold.address) as client:
        ns = client.namespace(LAYOUT)
        of_cold = serve(ns, prompts)
        print("hit rates: warm", of_warm, "cold", of_cold)
        assert of_cold > of_warm - 0.02
        assert of_cold > 0.9
        client.flush_accesses()
        (found,) = client.admin.describe(prompts[0][:1])
        assert found is not None and found.touches == told.touches + len(prompts) // 4
        blocks, of_others, own_bytes = spilled(client)
        assert blocks == of_others and own_bytes == 0


def test_after_a_reboot(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """A daemon whose shared memory is gone finds what it had spilled, and counts it as its own again."""
    one = started(daemon, valkey.unix_url)
    with Client(one.address, connect_timeout_s=20.0) as client:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, range(50))
        before = spilled(client)
        one.kill()
        for path in one.shm_dir.iterdir():
            path.unlink()
        one.start()
        one.event("spill_up")
        assert spilled(client)[0] == 0
        assert set(ns.lookup([name(n) for n in range(50)]).presence) == {Presence.BELOW}
        assert spilled(client) == before
        assert read(ns, range(50)) == 50
        assert read(ns, range(50, 60)) == 0


def test_local_scope(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """With scope local what this daemon does not know is a miss, whatever others stored."""
    for scope, presence in (("shared", Presence.BELOW), ("local", Presence.MISS)):
        one = started(daemon, valkey.unix_url, spill_scope=scope)
        with Client(one.address) as client:
            ns = client.namespace(LAYOUT)
            if scope == "shared":
                put_and_spill(ns, range(3))
            assert set(ns.lookup([name(0)]).presence) == {presence}


def test_two_writers_of_one_identity(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """Two daemons that store the same blocks keep one value of each, and both read it; of two contents each reads
    the one that it knows or nothing, never the other's under its checksum; what one deletes the other misses."""
    a, b = started(daemon, valkey.unix_url), started(daemon, valkey.tcp_url)
    with Client(a.address) as first, Client(b.address) as second:
        one, two = first.namespace(LAYOUT), second.namespace(LAYOUT)
        names = [name(n) for n in range(20)]
        for ns in (one, two):  # neither has looked for what the other is about to store
            ns.put(names, [pattern(n, BLOCK_BYTES) for n in range(20)])
        for ns in (one, two):
            ns.evict(names, to="spill")
        assert spilled(first)[1:] == (0, 20 * BLOCK_BYTES)
        assert spilled(second) == (20, 20, 0)
        assert "20 of the spill tier's blocks were stored by other daemons" in tierd(b, "stats").stdout
        assert read(one, range(20)) == read(two, range(20)) == 20
        odd, odder = pattern(1, BLOCK_BYTES), pattern(2, BLOCK_BYTES)
        for ns, block in ((one, odd), (two, odder)):
            ns.put([b"odd"], [block])
        for ns in (one, two):
            ns.evict([b"odd"], to="spill")
        assert one.get([b"odd"])[0] is None
        assert np.array_equal(two.get([b"odd"])[0], odder)
        first.admin.clear()
        second.admin.clear(tier="host")
        until(lambda: read(two, range(20)) == 0)
        assert read(one, range(20)) == 0


# --- a server that loses blocks -------------------------------------------------------------------------


def test_a_flushed_server_is_forgotten_at_once(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """When the server was flushed, its blocks leave the catalog together, within seconds, own and found ones."""
    one, other = started(daemon, valkey.unix_url), started(daemon, valkey.unix_url)
    with Client(one.address) as client, Client(other.address) as finder:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, range(40))
        assert read(finder.namespace(LAYOUT), range(40)) == 40
        valkey.run(b"FLUSHALL")
        until(lambda: spilled(client)[0] == spilled(finder)[0] == 0)
        assert read(ns, range(40)) == 0
        assert read(finder.namespace(LAYOUT), range(40)) == 40


def test_another_server_at_the_port(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """An empty server in the place of the old one is used, and nothing of the old one is believed."""
    one = started(daemon, valkey.tcp_url)
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, range(40))
        valkey.stop()
        valkey.start()
        until(lambda: spilled(client)[0] == 0)
        assert read(ns, range(40)) == 0
        until(lambda: client.admin.occupancy().tiers[Tier.SPILL].serving)
        put_and_spill(ns, range(40, 60))
        assert read(ns, range(40, 60)) == 20


def test_a_server_that_evicts(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """What the server evicts by itself is a miss and no error, the rest is read, and the server is named."""
    one = started(daemon, valkey.unix_url, spill_statistics_s=0.1)
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        valkey.run(b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru")
        valkey.run(b"CONFIG", b"SET", b"maxmemory", b"6mb")
        for first in range(0, 2000, 200):
            put_and_spill(ns, range(first, first + 200))
        found = sum(read(ns, range(first, first + 100)) for first in range(0, 2000, 100))
        assert 0 < found < 2000
        assert read(ns, range(1990, 2000)) > 0


# --- changed at run time --------------------------------------------------------------------------------


def tierd(server: ServeProcess, *words: str, url: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tierd.cli", *words, "--address", server.address]
    return subprocess.run(command, input=url, capture_output=True, text=True, timeout=60, check=False)


def test_attached_detached_and_switched(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """A running daemon takes a store, gives it up and takes another by command: what lies above stays, what only
    the old one held is a miss until it is back. A store that does not answer, or a URL that is none, changes
    nothing, and no credential is shown."""
    directory = valkey.socket_path.parent / "other"
    directory.mkdir()
    one = daemon(spill="none", host_bytes="4MiB", spill_bytes_max="64MiB", spill_miss_ttl_ms=0)
    with ExternalValkey(directory) as other, Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        assert "off" in client.admin.occupancy().tiers[Tier.SPILL].state
        assert tierd(one, "spill", "detach").returncode == 1
        assert tierd(one, "spill", "switch", valkey.unix_url).returncode == 1
        done = tierd(one, "spill", "attach", "-", "--json", url=valkey.unix_url)
        assert json.loads(done.stdout) == {"forgotten_blocks": 0}
        put_and_spill(ns, range(30))
        ns.put([b"above"], [pattern(99, BLOCK_BYTES)])
        refused = tierd(one, "spill", "switch", "redis://user:secret@127.0.0.1:1/0", "--timeout-s", "1")
        assert refused.returncode == 1 and "secret" not in refused.stderr + one.log
        assert "url: must begin" in tierd(one, "spill", "switch", "http://x").stderr
        assert read(ns, range(5)) == 5
        done = tierd(one, "spill", "switch", other.unix_url, "--json")
        assert json.loads(done.stdout) == {"forgotten_blocks": 30}
        assert read(ns, range(5, 30)) == 0 and read(ns, range(5)) == 5
        assert np.array_equal(ns.get([b"above"])[0], pattern(99, BLOCK_BYTES))
        put_and_spill(ns, range(30, 40))
        assert tierd(one, "spill", "detach").returncode == 0
        assert read(ns, range(30, 40)) == 0
        assert client.admin.occupancy().tiers[Tier.SPILL].state == "off"
        ns.put([b"newer"], [pattern(98, BLOCK_BYTES)])
        assert tierd(one, "spill", "attach", valkey.unix_url).returncode == 0
        assert read(ns, range(30)) == 30
        assert ns.lookup([b"above"]).tiers[0] & Tiers.HOST
    shutil.rmtree(directory)


def test_killed_after_a_switch(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """A daemon that is killed after its store was switched starts on the one of its settings, believes nothing of
    what the other one held, and finds what the first one holds."""
    directory = valkey.socket_path.parent / "other"
    directory.mkdir()
    one = started(daemon, valkey.unix_url)
    with ExternalValkey(directory) as other, Client(one.address, connect_timeout_s=20.0) as client:
        ns = client.namespace(LAYOUT)
        put_and_spill(ns, range(10))
        client.admin.attach_spill(other.unix_url, replace=True)
        put_and_spill(ns, range(10, 20))
        one.restart()
        until(lambda: client.admin.occupancy().tiers[Tier.SPILL].serving)
        assert one.event("spill_forgotten")["blocks"] == 10
        assert read(ns, range(20)) == 10
    shutil.rmtree(directory)


@pytest.mark.parametrize("mode", ["through", "on_reuse"])
def test_modes_of_writing(daemon: StartDaemon, valkey: ExternalValkey, mode: str) -> None:
    """`through` has a block in the store as soon as it is stored, `on_reuse` after its second access."""
    one = started(daemon, valkey.unix_url, spill_write=mode)
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        ns.put([name(1)], [pattern(1, BLOCK_BYTES)])
        if mode == "on_reuse":
            assert spilled(client)[0] == client.admin.occupancy().moves_in_flight == 0
            assert read(ns, range(1, 2)) == 1
            until(lambda: spilled(client)[0] == 1)
            client.admin.clear()
            for part in (range(2, 200), range(200, 300)):  # not the first again: its record is known
                ns.put([name(n) for n in part], [pattern(n, BLOCK_BYTES) for n in part])
            assert "not stored in the spill tier: unused" in tierd(one, "stats").stdout
            assert read(ns, range(299, 300)) == 1
        until(lambda: spilled(client)[0] == 1)


def test_watermarks(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """Of what this daemon stored the lowest ranked blocks are deleted from the server at the high watermark, down
    to the low one."""
    one = started(daemon, valkey.unix_url, spill_bytes_max="400KiB", spill_low_watermark=0.5)
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT)
        for first in range(0, 96, 8):
            put_and_spill(ns, range(first, first + 8))
        assert spilled(client)[0] <= 58
        until(lambda: (valkey.run(b"DBSIZE") or 0) == spilled(client)[0] + 1)  # and the marker
        assert read(ns, range(90, 96)) == 6
