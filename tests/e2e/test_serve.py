"""`tierd serve` from the outside: start, refusals, stop, restart, what it leaves and what it takes."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd_client import Client, Layout, chain_ids
from tierd_client.admin import TierOccupancy
from tierd_client.outcomes import PutOutcome, Tier

BLOCKS = 16
LAYOUT = Layout(model="m", dtype="float16", layers=2, kv_heads=2, head_dim=64, block_tokens=16)
BLOCK_BYTES = 2 * 2 * 2 * 64 * 16 * 2
OTHER_MEMORY_BYTES = 150 * 10**6


def payloads(count: int = BLOCKS) -> list[np.ndarray]:
    return [np.random.default_rng(seed).integers(0, 256, BLOCK_BYTES, np.uint8) for seed in range(count)]


def tokens(count: int = BLOCKS) -> list[int]:
    return list(range(16 * count))


def put_all(client: Client) -> None:
    ns = client.namespace(LAYOUT)
    assert set(ns.put(chain_ids(ns, tokens()), payloads())) == {PutOutcome.STORED}


def check_all(client: Client) -> int:
    """Reads every block back; returns how many are there, after comparing their bytes."""
    ns = client.namespace(LAYOUT)
    got = ns.get(chain_ids(ns, tokens()))
    pairs = [(have, want) for have, want in zip(got, payloads(), strict=True) if have is not None]
    for have, want in pairs:
        assert np.array_equal(np.asarray(have).view(np.uint8).ravel(), want)
    return len(pairs)


def refused(process: ServeProcess) -> str:
    """Starts a daemon that must not start; returns what it said."""
    process.start(wait=False)
    assert process.wait() != 0
    return process.log


def private_bytes(pid: int) -> int:
    """Resident memory of a process without shared memory and without mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


def resident_bytes(pid: int) -> int:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return (int(fields["VmRSS"].split()[0]) - int(fields["RssShmem"].split()[0])) * 1024


# --- start and stop -------------------------------------------------------------------------------------


def test_starts_serves_and_stops(daemon: StartDaemon) -> None:
    """A daemon is ready within 30 s, serves, and exits 0 within 20 s of SIGTERM, sockets gone, memory kept."""
    one = daemon()
    ready = one.event("READY")
    assert ready["start"] == "new" and ready["host_bytes"] == 64 << 20
    with Client(one.address) as client:
        assert client.maps_memory
        put_all(client)
        assert check_all(client) == BLOCKS
        assert one.terminate() == 0
    kept = Path(one.event("stopped")["files"])
    assert not list(one.state_dir.glob("*.sock"))
    assert one.shm_files() == ["catalog", "ghosts", "learnt", "seg-1", "sessions"]
    assert sorted(kept.parent.glob(kept.name)) == sorted(one.shm_dir.iterdir())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stops_with_an_open_session(daemon: StartDaemon, number: signal.Signals) -> None:
    """Clients that are connected do not hold the stop up, whichever signal asks for it."""
    one = daemon(stop_timeout_s=15)
    with Client(one.address) as client:
        put_all(client)
        began = time.monotonic()
        assert one.process is not None
        one.process.send_signal(number)
        assert one.wait() == 0
        assert time.monotonic() - began < 13


def test_files_are_private(daemon: StartDaemon) -> None:
    """Sockets and memory files have mode 0600, the state directory 0700 or what its maker gave it."""
    one = daemon(spill="embedded")
    for path in [*one.shm_dir.iterdir(), *one.state_dir.iterdir()]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_health_and_reflection(daemon: StartDaemon) -> None:
    """Health tells the daemon and each tier apart."""
    one = daemon(hbm_bytes="1MiB")
    with grpc.insecure_channel(one.address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        def status(name: str) -> int:
            return stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status

        serving = health_pb2.HealthCheckResponse.SERVING
        assert [status(name) for name in ("", "tierd.host", "tierd.hbm")] == [serving] * 3
        assert status("tierd.spill") == health_pb2.HealthCheckResponse.NOT_SERVING


def test_tcp_address(daemon: StartDaemon) -> None:
    """A daemon listens on every address given; a port of 0 is chosen and said in the log."""
    one = daemon(start=False)
    one.settings["listen"] = [one.address, "127.0.0.1:0"]
    one.start()
    address = one.event("listening")["addresses"][1]
    with Client(address) as far, Client(one.address) as near:
        put_all(near)
        assert check_all(far) == BLOCKS


def test_config_is_shown_without_credentials(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """A password in the spill URL is in no log line and not in GetConfig."""
    url = valkey.tcp_url.replace("redis://", "redis://default:geheim@")
    one = daemon(spill=url)
    with Client(one.address) as client:
        assert client.admin.config()["spill"] == url.replace("geheim", "***")
    one.terminate()
    assert "geheim" not in one.log


# --- refusals -------------------------------------------------------------------------------------------


def test_second_daemon_on_a_state_directory(daemon: StartDaemon) -> None:
    """A second daemon on the state directory is refused, naming it, and does the first one no harm."""
    first = daemon()
    second = daemon(start=False, beside=first)
    second.state_dir = first.state_dir
    said = refused(second)
    assert str(first.state_dir) in said and f"pid {first.pid}" in said
    with Client(first.address) as client:
        put_all(client)


def test_two_daemons_on_one_shm_dir(daemon: StartDaemon) -> None:
    """Daemons with state directories of their own share a shm_dir without touching each other's files."""
    first = daemon()
    with Client(first.address) as client:
        put_all(client)
        second = daemon(beside=first)
        with Client(second.address) as other:
            put_all(other)
            second.restart()
        assert check_all(client) == BLOCKS
        first.restart()
    with Client(first.address) as client:
        assert check_all(client) == BLOCKS


def test_no_room_for_the_host_tier(daemon: StartDaemon) -> None:
    """Too much host memory stops the start at once, naming sizes, path and setting, and leaves no file."""
    one = daemon(start=False, host_bytes="60TiB", spill="none")
    began = time.monotonic()
    said = refused(one)
    assert time.monotonic() - began < 30
    assert "host_bytes" in said and f"{60 << 40:,}" in said and "available" in said and str(one.shm_dir) in said
    assert one.shm_files() == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host_bytes": "10"}, ["--host-bytes", "4096"]),
        ({"host_bits": "1GiB"}, ["host-bits"]),
        ({"policy": "fifo"}, ["policy"]),
        ({"policy": "lrfu(alpha=7)"}, ["alpha"]),
        ({"listen": "0.0.0.0:7001"}, ["--insecure"]),
        ({"admin_token_file": "/nowhere/tokens"}, ["admin_token_file", "No such file"]),
        ({"tls_cert_file": "/nowhere/c", "tls_key_file": "/nowhere/k"}, ["tls_cert_file", "No such file"]),
        ({"http_address": "9400"}, ["http-address", "HOST:PORT"]),
        ({"hbm_device": "cuda:0", "hbm_bytes": "1MiB"}, ["hbm_device"]),
    ],
)
def test_impossible_settings(daemon: StartDaemon, settings: dict[str, str], words: list[str]) -> None:
    """A setting that is unknown or impossible stops the start, is named, and leaves nothing behind."""
    one = daemon(start=False, **settings)
    said = refused(one)
    for word in words:
        assert word in said, said
    assert "Traceback" not in said
    assert one.shm_files() == []


def test_usage_errors_exit_2(daemon: StartDaemon, tmp_path: Path) -> None:
    """Wrong settings exit with status 2, wherever they come from."""
    config = tmp_path / "tierd.toml"
    config.write_text('host_byte = "1GiB"\n')
    for arguments, environment in (
        (["--config", str(config)], {}), (["--max-ids", "0"], {}), ([], {"TIERD_HOSTS": "1"}), (["--nonsense"], {}),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "tierd.cli", "serve", "--state-dir", str(tmp_path / "s"), *arguments],
            env=os.environ | environment, capture_output=True, text=True, timeout=30, check=False,
        )
        assert done.returncode == 2, done.stderr
        assert done.stderr and not done.stdout


def test_address_taken(daemon: StartDaemon) -> None:
    """An address that somebody else listens on stops the start and is named; nothing serves half."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused(daemon(start=False, listen=address))


# --- memory ---------------------------------------------------------------------------------------------


def test_other_memory(daemon: StartDaemon) -> None:
    """Beyond arenas and tables the daemon takes less than 150 MB, and torch is not loaded while hbm is off."""
    one = daemon(host_bytes="256MiB", spill="embedded", catalog_rows=0)
    one.event("populated")
    with Client(one.address) as client:
        put_all(client)
        assert check_all(client) == BLOCKS
    assert resident_bytes(one.pid) < OTHER_MEMORY_BYTES
    assert "libtorch" not in Path(f"/proc/{one.pid}/maps").read_text()


def test_population_does_not_delay_readiness(daemon: StartDaemon) -> None:
    """The pages of the arenas are touched while the daemon serves already."""
    one = daemon(host_bytes="1GiB")
    one.event("populated")
    names = [line.split('"event": "')[1].split('"')[0] for line in one.lines if '"event": "' in line]
    assert names.index("READY") < names.index("populated")


# --- restart --------------------------------------------------------------------------------------------


def test_warm_restart_after_kill(daemon: StartDaemon) -> None:
    """After kill -9 and a new start every host block is served from memory, with its record."""
    one = daemon()
    with Client(one.address) as client:
        put_all(client)
        ns = client.namespace(LAYOUT)
        before = client.admin.describe(chain_ids(ns, tokens()))
    one.restart()
    assert one.event("READY")["start"] == "warm"
    with Client(one.address) as client:
        after = client.admin.describe(chain_ids(client.namespace(LAYOUT), tokens()))
        for old, new in zip(before, after, strict=True):
            assert old is not None and new is not None
            assert (old.touches, old.last_step, old.ema, old.crf) == (new.touches, new.last_step, new.ema, new.crf)
        assert check_all(client) == BLOCKS


def test_client_goes_on_after_restart(daemon: StartDaemon) -> None:
    """A client that lives through kill and restart goes on by itself and reads the right bytes."""
    one = daemon()
    with Client(one.address) as client:
        put_all(client)
        one.restart()
        assert check_all(client) == BLOCKS
        assert client.maps_memory


def test_hbm_is_empty_after_restart(daemon: StartDaemon) -> None:
    """Copies in hbm are gone after a restart, as a GPU's would be, while host copies stay."""
    one = daemon(hbm_bytes="8MiB")
    with Client(one.address) as client:
        put_all(client)
        ns = client.namespace(LAYOUT)
        ids = chain_ids(ns, tokens())
        ns.readmit(ids[:4], to="hbm", wait=True)
        assert client.admin.occupancy().tiers[Tier.HBM].blocks == 4
        one.restart()
        assert client.admin.occupancy().tiers[Tier.HBM].blocks == 0
        assert check_all(client) == BLOCKS


def test_changed_capacity_starts_empty(daemon: StartDaemon) -> None:
    """Another host capacity starts empty and says so; nothing of the old memory is left."""
    one = daemon()
    with Client(one.address) as client:
        put_all(client)
    one.kill()
    one.settings["host_bytes"] = "32MiB"
    one.start()
    assert one.event("READY")["start"] == "empty"
    assert "seg-1" in one.event("started_empty")["reason"]
    with Client(one.address) as client:
        assert check_all(client) == 0
    assert sum(path.stat().st_size for path in one.shm_dir.glob("*seg-*")) == 32 << 20


def test_embedded_valkey_dies_with_the_daemon(daemon: StartDaemon) -> None:
    """kill -9 of the daemon takes its Valkey along; a new start brings a new one."""
    one = daemon(spill="embedded")
    pid = one.event("embedded_valkey")["pid"]
    pidfd = os.pidfd_open(pid)
    one.kill()
    signal_ended = select.select([pidfd], [], [], 10)[0]
    os.close(pidfd)
    assert signal_ended, "the server outlived the daemon"
    assert one.start().event("embedded_valkey")["pid"] != pid


def test_spilled_blocks_survive_with_an_external_server(daemon: StartDaemon, valkey: ExternalValkey) -> None:
    """Blocks spilled to a server that outlives the daemon are found again after kill -9."""
    one = daemon(spill=valkey.unix_url)
    with Client(one.address) as client:
        put_all(client)
        ns = client.namespace(LAYOUT)
        one.event("spill_up")
        ns.evict(chain_ids(ns, tokens()), to="spill")
        assert client.admin.occupancy().tiers[Tier.SPILL].blocks == BLOCKS
    one.restart()
    one.event("spill_up")
    with Client(one.address) as client:
        assert check_all(client) == BLOCKS


# --- processes that hold slots ---------------------------------------------------------------------------

HOLDER = """
import sys
from tierd_client import Client, Layout, chain_ids
from tierd_client.routine import run
from tierd_client.v1 import blocks_pb2
client = Client(sys.argv[1])
ns = client.namespace(Layout(model="m", dtype="float16", layers=2, kv_heads=2, head_dim=64, block_tokens=16))
if sys.argv[2] == "lease":
    lease = ns.acquire(chain_ids(ns, list(range(256)))).__enter__()
else:
    ids = b"".join(bytes([n]) * 32 for n in range(1, 9))
    session = client.connection.current()
    blocks = blocks_pb2.BlockIds(namespace=run(ns._routines.registered(session)).number, ids=ids)
    reply = session.call("Reserve", blocks_pb2.ReserveRequest(session=session.id, blocks=blocks)).block()
    assert set(reply.outcomes) == {blocks_pb2.RESERVE_OUTCOME_GRANTED}, reply
print("holds", flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(address: str, what: str) -> Iterator[subprocess.Popen[str]]:
    """A client process that holds 16 leases, or 8 reservations that it never fills, until it is killed."""
    command = [sys.executable, "-c", HOLDER, address, what]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None and child.stdout.readline() == "holds\n"
        yield child
    finally:
        child.kill()
        child.communicate(timeout=10)


def host(client: Client) -> TierOccupancy:
    return client.admin.occupancy().tiers[Tier.HOST]


def held_bytes(client: Client) -> int:
    """Bytes of host slots that are neither free nor evictable now, nor held ahead of puts."""
    one = host(client)
    assert one.free_bytes + one.used_bytes + one.reserved_bytes + one.quarantined_bytes == one.capacity_bytes
    return one.reserved_bytes - one.stocked_bytes + one.quarantined_bytes + one.leased_blocks * BLOCK_BYTES


def await_freed(client: Client) -> None:
    deadline = time.monotonic() + 10
    while held_bytes(client):
        assert time.monotonic() < deadline, "the slots of a dead process were not freed"


HELD = [("lease", BLOCKS * BLOCK_BYTES), ("reserve", 8 * BLOCK_BYTES)]


@pytest.mark.parametrize(("what", "size"), HELD)
def test_dead_client_gives_everything_back(daemon: StartDaemon, what: str, size: int) -> None:
    """Slots held by a client that was killed are free again, although it never said goodbye."""
    one = daemon()
    with Client(one.address) as client:
        put_all(client)
        with holder(one.address, what):
            assert held_bytes(client) == size
        await_freed(client)
        assert client.admin.occupancy().sessions == 1
        assert check_all(client) == BLOCKS


@pytest.mark.parametrize(("what", "size"), HELD)
def test_survivor_keeps_its_slots(daemon: StartDaemon, what: str, size: int) -> None:
    """What a living process may touch stays out of use over kill -9 and restart, and is freed when it dies."""
    one = daemon()
    with Client(one.address) as client:
        put_all(client)
        with holder(one.address, what) as child:
            child.send_signal(signal.SIGSTOP)  # it can neither detach nor come back
            one.restart()
            assert held_bytes(client) == size
        await_freed(client)
        assert check_all(client) == BLOCKS


@pytest.mark.parametrize(("what", "size"), HELD)
def test_client_that_died_while_the_daemon_was_down(daemon: StartDaemon, what: str, size: int) -> None:
    """Slots of a process that died while no daemon ran are free at the next start."""
    one = daemon()
    with Client(one.address) as client:
        put_all(client)
        with holder(one.address, what):
            assert held_bytes(client) == size
            one.kill()
        one.start()
        assert held_bytes(client) == 0
        assert check_all(client) == BLOCKS
