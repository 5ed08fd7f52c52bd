"""The example of the README, run as it stands there, and what a user does next."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_pattern import pattern

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import Client, ConnectFailed, InvalidArgument, Layout, PutOutcome, Tier, Tiers, chain_ids

README = Path(__file__).parents[2] / "README.md"
SMALL = "layers=4, kv_heads=2, head_dim=64"
LAYOUT = Layout(model="llama-3.1-8b", dtype="bfloat16", layers=4, kv_heads=2, head_dim=64, block_tokens=16)
SHAPE = (2, 4, 16, 2, 64)
BUSY_S = 3.0
"""What a busy machine may be late by."""
BLOCK_BYTES = 2 * 4 * 16 * 2 * 64 * 2
TOKENS = [(7 * place) % 32_000 for place in range(16 * 12 + 5)]


def example(address: str) -> str:
    """The code of the README, with the daemon's address."""
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert code.count("unix:///run/tierd/tierd.sock") == 1
    return str(code.replace("unix:///run/tierd/tierd.sock", address))


def run_example(server: ServeProcess, tokens: list[int], kv: Any) -> dict[str, Any]:
    """What its variables are at the end, with another prompt and a model that a test can afford."""
    code, given = re.subn(r"^(token_ids|kv) = .*\n", "", example(server.address), flags=re.MULTILINE)
    code, model = re.subn("layers=32, kv_heads=8, head_dim=128", SMALL, code)
    assert (given, model) == (2, 1)
    names = {"token_ids": tokens, "kv": kv}
    exec(compile(code, "README.md", "exec"), names)
    return names


@pytest.fixture
def server(daemon: StartDaemon) -> ServeProcess:
    """A daemon with host alone, as most of what follows needs no more."""
    return daemon(host_bytes="16MiB")


def test_the_example_runs_as_it_stands(daemon: StartDaemon) -> None:
    """Pasted into a file it stores all its blocks, and says so."""
    pytest.importorskip("torch")
    server = daemon(host_bytes="256MiB", spill="embedded")
    command = [sys.executable, "-c", example(server.address)]
    done = subprocess.run(command, capture_output=True, timeout=60, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 blocks were there, STORED\n[BlockRecord(identity=")


def test_the_example_reuses_blocks(daemon: StartDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    """Cold it stores all blocks, warm it needs none, and with a longer prompt only the new ones; what it gets are
    the bytes that it put, and what it prints are the records of blocks that are in all tiers."""
    torch = pytest.importorskip("torch")
    server = daemon(hbm_bytes="8MiB", host_bytes="16MiB", spill="embedded", spill_bytes_max="64MiB")
    server.event("spill_up")
    kv = torch.randn(12, *SHAPE).to(torch.bfloat16)
    cold = run_example(server, TOKENS[: 16 * 9], kv[:9])
    assert cold["n"] == 0 and cold["outcomes"] == [PutOutcome.STORED] * 9
    warm = run_example(server, TOKENS[: 16 * 9], kv[:9])
    assert warm["n"] == 9 and warm["outcomes"] == []
    longer = run_example(server, TOKENS, kv)
    assert longer["n"] == 9 and longer["outcomes"] == [PutOutcome.STORED] * 3
    expected = kv.view(torch.uint8).numpy().reshape(12, -1)
    assert [block.tobytes() for block in longer["blocks"]] == [one.tobytes() for one in expected]
    printed = capsys.readouterr().out
    for word in ("touches=", "last_step=", "ema=", "crf=", "rank="):
        assert word in printed
    with Client(server.address) as client:
        records = client.admin.describe(chain_ids(client.namespace(LAYOUT), TOKENS))
        assert all(record and record.tiers == Tiers.HBM | Tiers.SPILL for record in records)


def test_the_examples_of_the_documents_run(daemon: StartDaemon) -> None:
    """What docs/client.md and docs/hbm.md show of hybrid models, new weights and lending runs as it stands."""
    server = daemon(host_bytes="128MiB", max_lent_pools="1")
    layers, pages, tokens, heads, dim = 2, 16, 16, 2, 8
    layout = Layout(model="m", dtype="float16", layers=layers, kv_heads=heads, head_dim=dim, block_tokens=tokens)
    hybrid, switch = python_of("client.md")
    lending, on_device = python_of("hbm.md")
    with Client(server.address) as client:
        shared: dict[str, Any] = {"client": client, "layout": layout, "token_ids": range(1024)}
        exec("from tierd_client import Group, Layout, Part\n" + hybrid, shared)
        for ids in shared["chains"]:
            block = bytes(shared["layout"].groups[ids.group].block_bytes)
            assert set(shared["ns"].put(ids, [block] * len(ids))) == {PutOutcome.STORED}
        exec(hybrid, shared)
        assert shared["hit"].tokens == 512 and [len(one) for one in shared["blocks"]] == [32, 8, 1]
        exec(switch, shared | {"layout": layout})
        lending = lending.replace("unix:///run/tierd/tierd.sock", server.address).replace("Layout(...)", "layout")
        names: dict[str, Any] = {
            "layout": layout, "kv_bytes": pages * layout.block_bytes, "layers": layers, "pages": pages,
            "block_tokens": tokens, "heads": heads, "head_dim": dim, "tokens": range(48), "step": 3,
        }
        exec(lending, names)
        ids = chain_ids(layout, range(48))
        assert names["ns"].lookup(ids).tiers == [Tiers.HOST, Tiers.HBM, Tiers.HBM]
        exec(on_device, {"ns": names["ns"], "ids": ids})
        names["pool"].close()
        names["client"].close()


def python_of(document: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (README.parent / "docs" / document).read_text(), re.DOTALL)


@pytest.mark.parametrize("given", ["array", "list", "flat", "bytes"])
def test_numpy_goes_in_and_comes_out(server: ServeProcess, given: str) -> None:
    """Blocks may be given as one array, a list of arrays, flat bytes or `bytes`; what comes back has the
    layout's dtype and shape."""
    layout = Layout(model="m", dtype="float16", layers=4, kv_heads=2, head_dim=64, block_tokens=16)
    data = np.random.default_rng(1).standard_normal((12, *SHAPE)).astype(np.float16)
    forms: dict[str, Any] = {
        "array": data, "list": list(data), "flat": data.view(np.uint8).reshape(12, -1),
        "bytes": [one.tobytes() for one in data],
    }
    with Client(server.address) as client:
        ns = client.namespace(layout)
        ids = chain_ids(ns, TOKENS)
        assert ns.put(ids, forms[given]) == [PutOutcome.STORED] * 12
        blocks = ns.get(ids)
        assert all(block.dtype == np.float16 and np.array_equal(block, one)
                   for block, one in zip(blocks, data, strict=True))


def test_wrong_sizes_are_named(server: ServeProcess) -> None:
    """A buffer of another size than the block's is a ValueError that names index and sizes; nothing is stored."""
    with Client(server.address) as client:
        ns = client.namespace(LAYOUT)
        good = bytes(BLOCK_BYTES)
        for bad in (good[1:], good + b"x", b""):
            with pytest.raises(InvalidArgument, match=rf"\[1\].*{len(bad)} bytes.*{BLOCK_BYTES}"):
                ns.put([b"a", b"b", b"c"], [good, bad, good])
        with pytest.raises(ValueError, match="2 buffers for 3 ids"):
            ns.put([b"a", b"b", b"c"], [good, good])
        for nothing in (None, 7, np.zeros((2, BLOCK_BYTES), np.uint8)):
            with pytest.raises(InvalidArgument, match=r"^tensors: "):
                ns.put([b"a", b"b", b"c"], nothing)
        assert ns.get([b"a", b"b", b"c"]) == [None] * 3


SECOND_WORKER = """
import sys
from tierd_client import Client, Layout
with Client(sys.argv[1], shared_memory=sys.argv[2]) as client:
    blocks = client.namespace(Layout.opaque(block_bytes=int(sys.argv[3]))).get([b"a", b"b", b"c"])
    sys.stdout.buffer.write(blocks[0].tobytes() + blocks[1].tobytes())
    assert blocks[2] is None
"""


@pytest.mark.parametrize("mode", ["require", "never"])
def test_two_workers_share_blocks(server: ServeProcess, mode: str) -> None:
    """What one worker put another process gets, by plain ids of bytes, with and without shared memory."""
    with Client(server.address) as client:
        ns = client.namespace(Layout.opaque(block_bytes=BLOCK_BYTES))
        data = [pattern(number, BLOCK_BYTES) for number in range(2)]
        assert ns.put([b"a", b"b"], data) == [PutOutcome.STORED] * 2
        command = [sys.executable, "-c", SECOND_WORKER, server.address, mode, str(BLOCK_BYTES)]
        got = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
        assert got == b"".join(one.tobytes() for one in data)


def test_what_is_larger_than_host_is_full(daemon: StartDaemon) -> None:
    """Without a spill tier a request that is larger than host gets FULL for its tail, at once, and its head is
    stored."""
    server = daemon(host_bytes="1MiB", spill="none")
    with Client(server.address) as client:
        ns = client.namespace(Layout.opaque(block_bytes=64 << 10, block_tokens=16))
        ids = chain_ids(ns, range(16 * 24))
        began = time.monotonic()
        outcomes = ns.put(ids, np.zeros((24, 64 << 10), np.uint8), timeout_s=20.0)
        assert time.monotonic() - began < 10
        assert outcomes == [PutOutcome.STORED] * 16 + [PutOutcome.FULL] * 8
        assert ns.lookup(ids).prefix == 16
        host = client.admin.occupancy().tiers[Tier.HOST]
        assert (host.free_bytes, host.used_bytes) == (0, host.capacity_bytes)


def test_without_a_server_a_client_fails_within_two_seconds(tmp_path: Path) -> None:
    """A client of a socket that is not there, or of a port on which nobody answers, raises ConnectFailed within
    the connect timeout."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        for address in (f"unix://{tmp_path}/tierd.sock", f"127.0.0.1:{mute.getsockname()[1]}"):
            began = time.monotonic()
            with pytest.raises(ConnectFailed):
                Client(address)
            assert time.monotonic() - began < 2.0 + BUSY_S
