"""The CPU twin of HBM passes the contract of arenas, over real shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierd.adapters.hbm_cpu import HbmCpuTwin
from tierd.adapters.shm import SharedDirectory, WantedFile
from tierd.ports import ArenaStore
from tierd.testing.arena_contract import SEGMENTS, ArenaContract


class TestHbmCpuTwin(ArenaContract):
    @pytest.fixture
    def arena(self, tmp_path: Path) -> Iterator[ArenaStore]:
        directory = SharedDirectory(tmp_path, bytes(16))
        files = directory.replace([WantedFile(str(n), size, "hbm_bytes") for n, size in SEGMENTS.items()])
        arena = HbmCpuTwin({number: files[str(number)].array() for number in SEGMENTS})
        yield arena
        arena.close()
