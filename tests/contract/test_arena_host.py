"""The host arena passes the contract of arenas, over real shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierd.adapters.arena_host import HostArena
from tierd.adapters.shm import SharedDirectory, WantedFile
from tierd.ports import ArenaStore
from tierd.testing.arena_contract import SEGMENTS, ArenaContract


class TestHostArena(ArenaContract):
    @pytest.fixture
    def arena(self, tmp_path: Path) -> Iterator[ArenaStore]:
        directory = SharedDirectory(tmp_path, bytes(16))
        files = directory.replace([WantedFile(str(n), size, "host_bytes") for n, size in SEGMENTS.items()])
        arena = HostArena({number: files[str(number)].array() for number in SEGMENTS})
        yield arena
        arena.close()
