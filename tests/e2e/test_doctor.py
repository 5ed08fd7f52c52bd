"""`tierd doctor` on this machine with one thing really wrong at a time, and beside a running daemon."""

from __future__ import annotations

import io
import json
import re
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tierd import cli
from tierd.adapters import spill_redis
from tierd.testing.serve import StartDaemon
from tierd.testing.valkey import ExternalValkey
from tierd.testing.valkey_groups import SentinelGroup, ValkeyCluster

CAP_DAC_OVERRIDE, CAP_IPC_LOCK = 1, 14

WITHOUT = (
    "import ctypes, os, sys\n"
    "for capability in sys.argv[1].split(','):\n"
    "    ctypes.CDLL(None).prctl(24, int(capability), 0, 0, 0)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])\n"
)
"""Gives up capabilities (PR_CAPBSET_DROP) and becomes another command: root is bound by limits and modes then."""

ON_SMALL_MOUNT = 'mount -t tmpfs -o size=64m tmpfs "$1" && shift && exec "$@"'


class Doctor:
    """`tierd doctor` on directories of its own; findings by check."""

    def __init__(self, state_dir: Path, shm_dir: Path) -> None:
        self.state_dir = state_dir
        self.shm_dir = shm_dir

    def words(self, **settings: Any) -> list[str]:
        words = ["doctor", "--json"]
        given = {"state_dir": self.state_dir, "shm_dir": self.shm_dir, "host_bytes": "64MiB", "spill": "none"}
        for name, value in (given | settings).items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return words

    def run(
        self, *before: str, without: tuple[int, ...] = (), limit: tuple[int, int] | None = None, status: int = 0,
        **settings: Any,
    ) -> dict[str, list[dict[str, str]]]:
        """Findings above `ok`. `before`: words in front of the command; `without`: capabilities to give up;
        `limit`: a resource limit, as (which, how much). Without any of them it runs in this process."""
        words = self.words(**settings)
        if not (before or without or limit):
            return above_ok(run_here(words, status)[0])
        command = [*before, sys.executable, "-m", "tierd.cli", *words]
        if without:
            command = [sys.executable, "-c", WITHOUT, ",".join(map(str, without)), *command[1:]]
        restrict = (lambda: resource.setrlimit(limit[0], (limit[1], limit[1]))) if limit else None
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, preexec_fn=restrict,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return above_ok(done.stdout)


def above_ok(report: str) -> dict[str, list[dict[str, str]]]:
    """Findings of a JSON report that are worse than `ok`, by check."""
    found: dict[str, list[dict[str, str]]] = {}
    for one in json.loads(report):
        if one["severity"] != "ok":
            found.setdefault(one["check"], []).append(one)
    return found


def run_here(words: list[str], status: int) -> tuple[str, str]:
    """`tierd` in this process through its entry point: standard output and error."""
    said, complained = io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch, redirect_stdout(said), redirect_stderr(complained),
        pytest.raises(SystemExit) as ended,
    ):
        patch.setattr(sys, "argv", ["tierd", *words])
        cli.main()
    assert ended.value.code == status, said.getvalue() + complained.getvalue()
    return said.getvalue(), complained.getvalue()


@pytest.fixture
def doctor() -> Iterator[Doctor]:
    state_dir = Path(tempfile.mkdtemp(prefix="tierd-doctor-"))
    shm_dir = Path(tempfile.mkdtemp(prefix="tierd-doctor-", dir="/dev/shm"))
    yield Doctor(state_dir, shm_dir)
    for path in (state_dir, shm_dir):
        path.chmod(0o700)
        shutil.rmtree(path)


StartValkey = Callable[..., ExternalValkey]


@pytest.fixture
def server() -> Iterator[StartValkey]:
    """Starts a Valkey with options of its configuration."""
    made: list[ExternalValkey] = []

    def start(**options: str) -> ExternalValkey:
        made.append(ExternalValkey(Path(tempfile.mkdtemp(prefix="tierd-valkey-")), **options))
        made[-1].start()
        return made[-1]

    yield start
    for one in made:
        one.stop()
        shutil.rmtree(one.socket_path.parent)


# --- the machine ----------------------------------------------------------------------------------------


def test_a_machine_that_will_do(doctor: Doctor) -> None:
    """Where nothing is wrong nothing is worse than a note, and the status is 0."""
    assert {one["severity"] for group in doctor.run(max_sessions=64).values() for one in group} <= {"note"}


def test_shared_memory_of_a_container(doctor: Doctor) -> None:
    """A shm_dir of 64 MiB, as docker gives, is found too small for 64 MiB of blocks and their tables, and is too
    small for the daemon."""
    inside = ["unshare", "--mount", "sh", "-c", ON_SMALL_MOUNT, "sh", str(doctor.shm_dir)]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount")
    (finding,) = doctor.run(*inside, status=1)["shared memory"]
    assert finding["severity"] == "error" and f"{64 << 20:,} in all" in finding["measured"]
    assert "--shm-size=1g" in finding["advice"] and "emptyDir" in finding["advice"]
    serve = [sys.executable, "-m", "tierd.cli", "serve", *doctor.words()[2:]]
    done = subprocess.run([*inside, *serve], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "host_bytes" in done.stderr


def test_more_than_the_machine_has(doctor: Doctor) -> None:
    """A host tier larger than shared memory and machine is an error of both, and as `serve` itself says."""
    found = doctor.run(status=1, host_bytes="60TiB")
    assert {"shared memory", "machine memory"} <= set(found)


def test_memlock(doctor: Doctor) -> None:
    """A memlock limit below the shared memory is found, and weighs more with a GPU."""
    limit = (resource.RLIMIT_MEMLOCK, 1 << 20)
    (finding,) = doctor.run(without=(CAP_IPC_LOCK,), limit=limit)["memlock limit"]
    assert finding["severity"] == "note" and f"{1 << 20:,} bytes may be locked" in finding["measured"]


def test_descriptors(doctor: Doctor) -> None:
    """Too few file descriptors for max_sessions are found, with how many clients fit."""
    (finding,) = doctor.run(limit=(resource.RLIMIT_NOFILE, 1024))["file descriptors"]
    assert finding["severity"] == "warning" and "178 clients fit" in finding["advice"]


def test_a_state_directory_that_cannot_be_written(doctor: Doctor) -> None:
    """A state directory without the right to write is an error."""
    doctor.state_dir.chmod(0o500)
    (finding,) = doctor.run(without=(CAP_DAC_OVERRIDE,), status=1)["state directory"]
    assert "may not be written" in finding["measured"]


def test_a_state_directory_that_others_may_write(doctor: Doctor) -> None:
    """A state directory that a group may write to is found, with the mode to give it; one that every user may write
    to is an error, as it is for `serve`."""
    doctor.state_dir.chmod(0o770)
    (finding,) = doctor.run()["state directory"]
    assert finding["severity"] == "warning" and "0770" in finding["measured"]
    doctor.state_dir.chmod(0o777)
    (finding,) = doctor.run(status=1)["state directory"]
    assert finding["severity"] == "error" and "every user may write" in finding["measured"]


def test_beside_a_running_daemon(daemon: StartDaemon) -> None:
    """A daemon that runs on the state directory is named by its pid, its memory counts as held, and it is not
    disturbed."""
    one = daemon(spill="none")
    beside = Doctor(one.state_dir, one.shm_dir)
    found = beside.run(catalog_rows=4096)
    assert str(one.pid) in found["running daemon"][0]["measured"]
    assert "shared memory" not in found and "other instances" not in found
    assert not [line for line in one.lines if '"level": "warning"' in line or '"level": "error"' in line]


def test_wrong_settings(doctor: Doctor) -> None:
    """A setting that `serve` would refuse is refused by name, with the status of wrong usage."""
    assert "host_bytes" in run_here(doctor.words(host_bytes="10"), 2)[1]
    assert "policy" in run_here(doctor.words(policy="fifo"), 2)[1]


def test_for_people(doctor: Doctor) -> None:
    """Without --json each finding is one line that begins with its severity, and the last line counts them."""
    words = [word for word in doctor.words(host_bytes="60TiB") if word != "--json"]
    *lines, _, counts = run_here(words, 1)[0].splitlines()
    assert {line.split()[0] for line in lines} <= {"ok", "note", "warning", "error"}
    errors = sum(line.startswith("error") for line in lines)
    assert errors and counts.startswith(f"error: {errors}, warning: ")


def test_secrets_of_others(doctor: Doctor, tmp_path: Path) -> None:
    """A file of settings with a password, and a file of tokens, are found when others can read them; a file of
    tokens without a token is an error."""
    config, tokens = tmp_path / "tierd.toml", tmp_path / "tokens"
    config.write_text('spill_prefix = "x"\n')
    tokens.write_text("0123456789abcdef\n")
    config.chmod(0o644)
    tokens.chmod(0o600)
    assert "secrets" not in doctor.run(config=config, data_token_file=tokens)
    config.write_text('spill = "redis://kv:geheim@127.0.0.1:1/0"\n')
    tokens.chmod(0o640)
    findings = doctor.run(config=config, data_token_file=tokens)["secrets"]
    assert [one["severity"] for one in findings] == ["warning", "warning"]
    assert str(config) in findings[1]["measured"] and str(tokens) in findings[0]["measured"]
    tokens.write_text("short\n")
    (finding, *_) = doctor.run(config=config, data_token_file=tokens, status=1)["secrets"]
    assert finding["severity"] == "error" and "data_token_file" in finding["measured"]


# --- the spill server -----------------------------------------------------------------------------------


def test_a_server_that_will_do(doctor: Doctor, server: StartValkey) -> None:
    """A server with enough memory that does not evict gives no finding, and no key is left on it."""
    one = server(maxmemory="4gb")
    found = doctor.run(spill=one.tcp_url)
    assert not spill_findings(found) and "clock" not in found
    assert one.run(b"DBSIZE") == 0


def test_a_server_that_evicts(doctor: Doctor, server: StartValkey) -> None:
    """maxmemory-policy allkeys-lru, and too little maxmemory, are two findings."""
    found = doctor.run(spill=server(maxmemory="128mb", maxmemory_policy="allkeys-lru").unix_url)
    assert "allkeys-lru" in found["spill eviction"][0]["measured"]
    assert "spill_bytes_max" in found["spill memory"][0]["measured"]


def test_a_user_without_a_right(doctor: Doctor, server: StartValkey) -> None:
    """A user who may not delete is found by the command that was refused; the password is nowhere."""
    one = server(maxmemory="4gb")
    one.run(b"ACL", b"SETUSER", b"kv", b"on", b">geheim", b"~{tierd:*", b"+@all", b"-unlink")
    found = doctor.run(spill=one.tcp_url.replace("redis://", "redis://kv:geheim@"), status=1)
    (finding,) = found["spill rights"]
    assert finding["measured"].startswith("UNLINK: NOPERM")
    assert "geheim" not in json.dumps(found)


def test_every_command_of_the_daemon_is_tried(doctor: Doctor, server: StartValkey) -> None:
    """Each command that the daemon's adapter needs is refused to a user with no rights at all but to log in."""
    used = set(re.findall(r'b"([A-Z]+)",', Path(spill_redis.__file__).read_text())) - {"INFO", "MEMORY", "USAGE"}
    assert {"GET", "SET", "UNLINK"} <= used
    one = server(maxmemory="4gb")
    one.run(b"ACL", b"SETUSER", b"kv", b"on", b">geheim", b"allkeys", b"-@all", b"+ping")
    found = doctor.run(spill=one.tcp_url.replace("redis://", "redis://kv:geheim@"), status=1)
    assert used <= {one["measured"].split(":")[0] for one in found["spill rights"]}


def test_a_user_of_other_keys(doctor: Doctor, server: StartValkey) -> None:
    """A user whose keys are others' is found for each command that takes a key."""
    one = server(maxmemory="4gb")
    one.run(b"ACL", b"SETUSER", b"kv", b"on", b">geheim", b"~other:*", b"+@all")
    found = doctor.run(spill=one.tcp_url.replace("redis://", "redis://kv:geheim@"), status=1)
    assert {one["measured"].split(":")[0] for one in found["spill rights"]} >= {"SET", "GET", "UNLINK"}


@pytest.mark.parametrize("user", ["", "kv:falsch@"])
def test_a_login_that_is_refused(doctor: Doctor, server: StartValkey, user: str) -> None:
    """A missing or wrong password is one error, which does not repeat it."""
    one = server(requirepass="geheim")
    (finding,) = doctor.run(spill=one.tcp_url.replace("redis://", f"redis://{user}"), status=1)["spill server"]
    assert finding["severity"] == "error" and "falsch" not in finding["measured"]


def test_no_server(doctor: Doctor) -> None:
    """A server that is not there is one error that names it."""
    found = doctor.run(spill="redis://127.0.0.1:1/0", status=1)
    assert "127.0.0.1:1" in found["spill server"][0]["measured"]
    assert "spill memory" not in found


def test_a_server_that_hangs(doctor: Doctor, server: StartValkey) -> None:
    """A server that takes connections and answers nothing is told within the deadline of a connection."""
    one = server()
    one.freeze()
    found = doctor.run(spill=one.tcp_url, spill_timeout_ms=300, status=1)
    assert "deadline" in found["spill server"][0]["measured"]


def test_a_server_that_is_full(doctor: Doctor, server: StartValkey) -> None:
    """A server without memory left refuses the store, and the finding has its words."""
    one = server(maxmemory="4mb")
    found = doctor.run(spill=one.unix_url, status=1)
    assert any(one["measured"].startswith("SET: OOM") for one in found["spill rights"])


def test_each_server_of_a_cluster(doctor: Doctor, tmp_path: Path) -> None:
    """Of a cluster every primary is asked, and the one that evicts is named."""
    with ValkeyCluster(tmp_path, maxmemory="1gb") as cluster:
        assert not spill_findings(doctor.run(spill=cluster.url))
        evicting = cluster.primaries()[1]
        evicting.run(b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru")
        (finding,) = spill_findings(doctor.run(spill=cluster.url))
        assert finding["check"] == "spill eviction" and str(evicting.port) in finding["measured"]
        (finding,) = doctor.run(spill=evicting.tcp_url, status=1)["spill server"]
        assert "redis+cluster://" in finding["advice"]


def test_the_primary_under_sentinels(doctor: Doctor, tmp_path: Path) -> None:
    """Under sentinels the primary is asked, by the sentinels' word."""
    with SentinelGroup(tmp_path, maxmemory="4gb") as group:
        assert not spill_findings(doctor.run(spill=group.url))
        wrong = group.url.replace("/kv", "/other")
        assert "other" in doctor.run(spill=wrong, status=1)["spill server"][0]["measured"]


def spill_findings(found: dict[str, list[dict[str, str]]]) -> list[dict[str, str]]:
    return [one for check, group in found.items() for one in group if check.startswith("spill")]
