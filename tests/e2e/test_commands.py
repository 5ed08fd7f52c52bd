"""The command line against a real daemon: what each command prints, for people and as JSON, and its status."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.text import Text

from tierd import cli
from tierd.console.serve import setting_parameters
from tierd.settings import Settings
from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client, Layout, chain_ids

BLOCKS = 16
LAYOUT = Layout(model="m", dtype="float16", layers=2, kv_heads=2, head_dim=64, block_tokens=16)
BLOCK_BYTES = 16384


class Shell:
    """Runs `tierd` as a user does."""

    def __init__(self, address: str) -> None:
        self.address = address

    def run(self, *words: str, status: int = 0, given: str | None = None) -> str:
        """Standard output; fails when the exit status is another one."""
        done = self._run(words, given)
        assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout

    def json(self, *words: str, status: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", status=status))

    def error(self, *words: str, status: int) -> str:
        """Standard error of a command that must fail without a word on standard output."""
        done = self._run(words, None)
        assert done.returncode == status, f"{done.returncode}: {done.stdout}{done.stderr}"
        assert not done.stdout
        return done.stderr

    def _run(self, words: tuple[str, ...], given: str | None) -> subprocess.CompletedProcess[str]:
        """In this process, through the real entry point: a new interpreter each time would cost half a second."""
        said, complained = io.StringIO(), io.StringIO()
        status = 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIERD_ADDRESS", self.address)
            patch.setenv("COLUMNS", "200")
            patch.setattr(sys, "argv", ["tierd", *words])
            patch.setattr(sys, "stdin", io.StringIO(given or ""))
            with redirect_stdout(said), redirect_stderr(complained):
                try:
                    cli.main()
                except SystemExit as end:
                    status = int(end.code or 0)
        return subprocess.CompletedProcess(words, status, said.getvalue(), complained.getvalue())


@pytest.fixture
def served(daemon: StartDaemon) -> Iterator[tuple[ServeProcess, Shell, list[str]]]:
    """A daemon with 16 blocks in host, a shell, and the identities in hex."""
    one = daemon(spill="embedded", hbm_bytes="4MiB")
    one.event("spill_up")
    with Client(one.address) as client:
        ns = client.namespace(LAYOUT, "tiny")
        ids = chain_ids(ns, list(range(16 * BLOCKS)))
        ns.put(ids, [np.full(BLOCK_BYTES, seed, np.uint8) for seed in range(BLOCKS)])
        names = [record.identity.hex() for record in client.admin.describe(ids) if record is not None]
    yield one, Shell(one.address), names


Served = tuple[ServeProcess, Shell, list[str]]


def tiers_of(shell: Shell, *names: str) -> list[list[str]]:
    return [block["tiers"] for block in shell.json("blocks", *names)]


def test_stats(served: Served) -> None:
    """`stats` gives bytes and counts per tier that add up to the capacity, as a table and as JSON."""
    _, shell, _ = served
    found = shell.json("stats")
    assert set(found["tiers"]) == {"hbm", "host", "spill"}
    for tier in found["tiers"].values():
        parts = (tier[f"{name}_bytes"] for name in ("free", "used", "reserved", "quarantined"))
        assert sum(parts) == tier["capacity_bytes"]
    assert found["tiers"]["host"]["blocks"] == BLOCKS
    assert found["identities"] == BLOCKS
    table = shell.run("stats")
    assert re.search(r"host +serving +64.00 MiB +63.75 MiB +256.0 KiB +0 B +0 B", table)
    assert "16 identities" in table and "policy lrfu(" in table


def test_notes_stand_below_the_table(daemon: StartDaemon) -> None:
    """What `stats` says of a spill server does not widen its table."""
    one = daemon(spill="unix:///nowhere.sock")
    lines = Shell(one.address).run("stats").splitlines()
    assert re.match(r"spill +down +1.00 GiB", lines[3]) and lines[4].startswith("spill: ")


def test_beginnings_of_identities(served: Served) -> None:
    """The digits that `blocks` lists name a block in every command; what begins no block, or many, is refused."""
    _, shell, names = served
    listed = shell.run("blocks", "--limit", "1").splitlines()[1].split()[0]
    assert shell.json("blocks", listed)[0]["identity"] == next(name for name in names if name.startswith(listed))
    assert names[3] in shell.run("explain", names[3][:16])
    assert shell.json("evict", names[15][:8], "--drop") == {"dropped": 1}
    assert shell.json("verify", names[2][:16])["verified_blocks"] == 1
    assert f"no block begins with {names[15][:8]}" in shell.error("pin", names[15][:8], status=2)
    assert "8 to 64" in shell.error("explain", names[0][:7], status=2)


def test_blocks(served: Served) -> None:
    """`blocks` lists by filter and in pages, and shows records by identity."""
    _, shell, names = served
    listed = shell.json("blocks")
    assert {block["identity"] for block in listed} == set(names)
    first, second = (shell.json("blocks", "--limit", "10", "--skip", skip) for skip in ("0", "10"))
    assert [len(first), len(second)] == [10, 6] and first + second == listed
    assert [block["identity"] for block in shell.json("blocks", "--prefix", names[3][:20])] == [names[3]]
    assert shell.json("blocks", "--tier", "spill") == []
    (record,) = shell.json("blocks", names[5])
    assert record["position"] == 5 and record["parent"] == names[4] and record["tiers"] == ["host"]
    ranks = [b["copies"][0]["rank"] for b in shell.json("blocks", "--tier", "host", "--by-rank")]
    assert ranks == sorted(ranks, reverse=True)
    table = shell.run("blocks", "--limit", "3")
    assert len(table.splitlines()) == 4 and "tiny" in table and names[0][:16] in shell.run("blocks", names[0])


def test_unknown_block(served: Served) -> None:
    """A block of which nothing is known is null, and status 1."""
    _, shell, names = served
    found = shell.json("blocks", names[0], "00" * 31 + "01", status=1)
    assert found[0]["identity"] == names[0] and found[1] is None


def test_explain(served: Served) -> None:
    """`explain` gives rule, terms, rank and destination of a block, and says where it has no copy."""
    _, shell, names = served
    (found,) = shell.json("explain", names[0])["blocks"]
    assert found["rule"] and found["terms"] and isinstance(found["rank"], float)
    text = shell.run("explain", names[0], names[1])
    assert names[1] in text and "would go to:" in text
    assert "no copy" in shell.run("explain", names[0], "--tier", "spill")


def test_plan(served: Served) -> None:
    """`plan` says what would go for so many bytes, changes nothing, and says when they cannot be had."""
    _, shell, _ = served
    before = shell.json("blocks")
    found = shell.json("plan", "64MiB")
    assert found["enough"] and found["victim_blocks"] == BLOCKS and len(found["victims"]) == BLOCKS
    assert shell.json("plan", "1MiB")["victims"] == []
    assert "cannot be had" in shell.run("plan", "1GiB", status=1)
    assert shell.json("blocks") == before


def test_evict_and_readmit(served: Served) -> None:
    """`evict` moves blocks down and `readmit` brings them up again, by id and by filter, with outcomes counted."""
    _, shell, names = served
    assert shell.json("evict", names[15]) == {"moved": 1}
    assert tiers_of(shell, names[15]) == [["spill"]]
    assert shell.json("evict", "--all", "--tier", "host") == {"moved": BLOCKS - 1}
    assert shell.json("readmit", "--all") == {"ready": BLOCKS}
    assert tiers_of(shell, names[0]) == [["host", "spill"]]
    assert shell.json("readmit", *names[:2], "--to", "hbm") == {"ready": 2}
    assert "hbm" in tiers_of(shell, names[0])[0]
    assert re.search(r"dropped +16", shell.run("evict", "--all", "--drop"))
    assert shell.json("evict", names[0], "--drop") == {"miss": 1}


def test_namespaces(served: Served) -> None:
    """`namespaces` shows each namespace with its bytes per tier, and with --by-tenant the sums."""
    _, shell, _ = served
    (one,) = shell.json("namespaces")
    host = next(tier for tier in one["tiers"].values() if tier["tier"] == "host")
    used = shell.json("stats")["tiers"]["host"]["used_bytes"]
    assert (one["model"], host["used_bytes"]) == ("m", used) and used > 0
    assert shell.json("namespaces", "--by-tenant")[0]["tiers"] == one["tiers"]
    assert "host blocks" in shell.run("namespaces")


def test_sequences(served: Served) -> None:
    """`sequences` shows each running request with its blocks, and of one with a budget what is used of it."""
    server, shell, names = served
    with Client(server.address) as client:
        ids = chain_ids(client.namespace(LAYOUT, "tiny"), list(range(16 * BLOCKS)))
        assert shell.json("sequences") == []
        with client.namespace(LAYOUT, "tiny").sequence("mine", ids, budget="registry"):
            (one,) = shell.json("sequences")
            assert (one["sequence"], one["blocks"], one["budget_blocks"]) == ("mine", len(names), 32)
            assert re.search(r"mine +h2o +\d+ +16 +32 +0 +2 +0 +0 +0 +0", shell.run("sequences"))


def test_filters(served: Served) -> None:
    """Filters of the layout select blocks for every command that takes a filter."""
    _, shell, _ = served
    everything = shell.json("blocks")
    for words in (["--model", "m"], ["--revision", ""], ["--epoch", "0"], ["--tenant", ""], ["--group", "0"]):
        assert shell.json("blocks", *words) == everything
    for words in (["--model", "x"], ["--epoch", "1"], ["--epoch-below", "0"], ["--older-than-s", "1e6"]):
        assert shell.json("blocks", *words) == []
    assert shell.json("clear", "--dry-run", "--model", "x")["host_blocks"] == 0


def test_pin(served: Served) -> None:
    """`pin` keeps blocks through a clear, `blocks` and `explain` show for how long, `unpin` lets them go."""
    _, shell, names = served
    assert shell.json("pin", *names[:2], "--ttl-s", "90") == {"pinned": 2}
    assert {block["identity"] for block in shell.json("blocks", "--pinned")} == set(names[:2])
    assert len(shell.json("blocks", "--not-pinned")) == BLOCKS - 2
    assert re.search(r"pinned (89|90) s", shell.run("blocks", names[0]))
    assert re.search(r"2 blocks pinned, 32.00 KiB of 512.0 MiB", shell.run("stats"))
    assert shell.json("clear", "--yes")["host_blocks"] == BLOCKS - 2
    assert shell.json("pin", names[5], status=1) == {"miss": 1}
    assert "ttl_ms" in shell.error("pin", names[0], "--ttl-s", "1e6", status=1)
    assert shell.json("unpin", "--all") == {"unpinned": 2}
    assert re.search(r"unpinned +0", shell.run("unpin", names[0]))
    assert shell.json("clear", "--yes")["host_blocks"] == 2


def test_clear(served: Served) -> None:
    """`clear` asks first, can be tried dry, and removes what the filter takes."""
    _, shell, names = served
    assert shell.json("clear", "--dry-run", "--prefix", names[0][:8])["host_blocks"] == 1
    shell.run("clear", given="n\n", status=1)
    assert len(shell.json("blocks")) == BLOCKS
    assert shell.json("clear", "--yes", "--prefix", names[15])["host_blocks"] == 1
    assert "removed" in shell.run("clear", given="y\n")
    assert shell.json("blocks") == []


def test_verify(served: Served) -> None:
    """`verify` reads every copy; a damaged one is named with status 1, and is gone after --repair."""
    one, shell, names = served
    assert shell.json("verify")["verified_blocks"] == BLOCKS
    (record,) = shell.json("blocks", names[2])
    damage(one, record["copies"][0]["address"])
    found = shell.json("verify", status=1)
    assert found["damaged"] == [names[2]] and found["verified_blocks"] == BLOCKS - 1
    assert f"damaged: {names[2]}" in shell.run("verify", names[2], "--repair", status=1)
    assert shell.json("verify")["verified_blocks"] == BLOCKS - 1


def damage(one: ServeProcess, address: int) -> None:
    """Flips a byte of a host block behind the daemon's back."""
    (path,) = one.shm_dir.glob(f"*-seg-{address >> 48}")
    with Path(path).open("r+b") as file:
        file.seek(address & ((1 << 48) - 1))
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))


def test_drain(served: Served) -> None:
    """`drain` stores what lies in memory alone, by filter and at a rate, says how it ended, and fails when
    something is left."""
    _, shell, names = served
    found = shell.json("drain", "--prefix", names[3])
    assert (found["state"], found["stored_blocks"], found["stored_bytes"]) == ("done", 1, BLOCK_BYTES)
    assert shell.json("drain", "--rate", "32KiB", "--timeout-s", "1", status=1)["state"] == "deadline"
    assert re.search(r"done +\d+ ", shell.run("drain", "--rate", "1GiB"))
    assert all(set(tiers) == {"host", "spill"} for tiers in tiers_of(shell, *names))


def test_config(served: Served) -> None:
    """`config` shows the settings in force and changes the policy of the running daemon."""
    _, shell, _ = served
    assert shell.json("config")["host_bytes"] == 64 << 20
    assert shell.json("config", "--set-policy", "lru")["policy"].startswith("lru")
    table = shell.run("config")
    assert re.search(r"policy +lru", table) and re.search(r"insecure +false", table)
    assert re.search(r"http_address +127.0.0.1:[1-9]", table) and re.search(r"ghost_rows +16384", table)
    assert "fifo" in shell.error("config", "--set-policy", "fifo", status=1)


@pytest.mark.parametrize(
    "words",
    [
        ["blocks", "xyz"], ["blocks", "--tier", "tape"], ["blocks", "--by-rank"], ["blocks", "--prefix", "abc"],
        ["explain"], ["evict"], ["evict", "--all", "00" * 32], ["evict", "--all", "--to", "moon"], ["plan", "much"],
        ["plan"], ["stats", "--nonsense"], ["stats", "--prefill-tokens-per-s", "9"], ["drain", "--rate", "fast"],
        ["clear", "--epoch", "-1"],
        ["verify", "00" * 32, "--tier", "host"], ["readmit", "--namespace", "-1", "--all"], ["nothing"],
        ["stats", "--address", "/run/tierd/tierd.sock"],
    ],
)
def test_wrong_usage(words: list[str]) -> None:
    """Wrong usage is status 2 and a word on stderr, before anything is asked of a daemon."""
    assert Shell("unix:///nowhere/tierd.sock").error(*words, status=2)


@pytest.mark.parametrize("command", ["stats", "blocks", "verify", "config"])
def test_no_daemon(command: str) -> None:
    """Without a daemon a command fails and does not wait, status 1, the address it tried, and what to do."""
    began = time.monotonic()
    said = Shell("unix:///nowhere/tierd.sock").error(command, status=1)
    assert "/nowhere/tierd.sock" in said and "tierd serve" in said and "--address" in said
    assert time.monotonic() - began < 30


def test_help_of_a_setting_is_what_is_documented() -> None:
    """What `tierd serve --help` prints of a setting is its description to the letter, brackets included."""
    for parameter in setting_parameters()[1:]:
        (option,) = parameter.annotation.__metadata__
        assert Text.from_markup(option.help).plain == Settings.model_fields[parameter.name].description


def test_help_is_quick() -> None:
    """`tierd --help` names every command without importing what they need."""
    code = """
import sys
from tierd import cli
from tierd.testing.serve import ServeProcess, StartDaemon
sys.argv = ["tierd", "--help"]
try:
    cli.main()
except SystemExit:
    pass
heavy = {"grpc", "numpy", "pydantic", "torch", "redis", "google.protobuf", "structlog"} & set(sys.modules)
assert not heavy, heavy
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
    commands = cli.COMMANDS
    assert len(commands) >= 12
    for command in commands:
        assert command in done.stdout
