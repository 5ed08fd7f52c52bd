"""LMCache's real server over a daemon: `python lmcache_round_trip.py ADDRESS FOLDER CASE`, by its interpreter.

Blocks are stored, the server is ended, so that its own memory is gone, and a new one is asked: what it answers came
from the daemon. Prints "ok"; what is wrong is an assertion.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/bench/peers"), str(ROOT / "tests/bench/peers/adapters")]

import numpy as np  # noqa: E402
from lmcache_server import LMCacheServer  # noqa: E402

from tierd_client import Client, Tier  # noqa: E402

BLOCKS, BLOCK_BYTES = 8, 64 << 10


class OverTierd(LMCacheServer):
    """The server with tierd as its L2."""

    def __init__(self, address: str) -> None:
        adapter = {
            "type": "plugin", "module_path": "tierd_client.integrations.lmcache", "class_name": "TierdL2Adapter",
            "adapter_params": {"address": address},
        }
        self.arguments = ["--l2-adapter", json.dumps(adapter)]


def started(address: str, folder: Path, name: str) -> tuple[OverTierd, Any]:
    place = folder / name
    place.mkdir()
    server = OverTierd(address)
    server.start(place)
    return server, server.buffers(BLOCKS, BLOCK_BYTES)


def round_trip(address: str, folder: Path) -> None:
    """All blocks come back to other pages, byte for byte; a longer prompt is found as far as it was stored."""
    data = np.random.default_rng(5).integers(0, 256, (BLOCKS, BLOCK_BYTES), np.uint8)
    server, pages = started(address, folder, "first")
    for page, block in zip(pages, data, strict=True):
        page[:] = block
    server.put(server.ids(range(BLOCKS)), pages)
    with Client(address) as client:
        until = time.monotonic() + 30
        full = BLOCKS * BLOCK_BYTES
        while client.admin.occupancy().tiers[Tier.HOST].used_bytes < full:
            assert time.monotonic() < until
    server.stop()
    server, pages = started(address, folder, "second")
    for page in pages:
        page[:] = 0xA5
    assert server.exists(server.ids(range(BLOCKS))) == BLOCKS
    assert server.exists(server.ids(range(BLOCKS + 3))) == BLOCKS
    assert server.exists(server.ids(range(100, 100 + BLOCKS))) == 0
    assert server.get_into(server.ids(range(BLOCKS)), list(pages)[::-1])
    for page, block in zip(list(pages)[::-1], data, strict=True):
        assert np.array_equal(page, block)
    server.stop()


def away(address: str, folder: Path) -> None:
    """Without a daemon the server serves what its own memory has."""
    server, pages = started(address, folder, "alone")
    server.put(server.ids(range(BLOCKS)), pages)
    assert server.exists(server.ids(range(BLOCKS))) == BLOCKS
    server.stop()


def dtypes(address: str, folder: Path) -> None:
    """Objects of two dtypes and one size, which LMCache's keys name alike, are in two namespaces."""
    from tierd_client.integrations.lmcache.adapter import Form, Options, layout_of

    del folder
    options = Options(address=address)
    layouts = {layout_of(options, "model", 0, 0, "", Form(4096, name)) for name in ("float16", "bfloat16")}
    assert len(layouts) == 2


if __name__ == "__main__":
    {"round_trip": round_trip, "away": away, "dtypes": dtypes}[sys.argv[3]](sys.argv[1], Path(sys.argv[2]))
    print("ok")
