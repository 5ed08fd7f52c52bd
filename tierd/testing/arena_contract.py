"""The contract of an ArenaStore as tests: subclass `ArenaContract` and give it the fixture `arena`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tierd.ports import ArenaStore
from tierd_client.format import U8Array

SEGMENTS = {3: 1 << 20, 7: 256 << 10}
"""What the fixture's arena must have: bytes by segment number."""


def address(segment: int, offset: int) -> int:
    return (segment << 48) | offset


def random_bytes(seed: int, size: int) -> U8Array:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


class ArenaContract:
    """What every ArenaStore with SEGMENTS must do."""

    def test_round_trip(self, arena: ArenaStore) -> None:
        """A block read back has the bytes that were written, at both ends of every segment."""
        for segment, length in SEGMENTS.items():
            for offset, size in ((0, 4096), (length - 12288, 12288), (8192, 1), (4096, 4097)):
                data, out = random_bytes(offset + size, size), np.zeros(size, np.uint8)
                arena.write(address(segment, offset), data)
                arena.read(address(segment, offset), out)
                assert np.array_equal(out, data)

    def test_neighbours_stay(self, arena: ArenaStore) -> None:
        """A write touches exactly its own bytes."""
        whole = random_bytes(1, 12288)
        arena.write(address(3, 0), whole)
        arena.write(address(3, 4096), np.zeros(4096, np.uint8))
        whole[4096:8192] = 0
        out = np.empty(12288, np.uint8)
        arena.read(address(3, 0), out)
        assert np.array_equal(out, whole)

    def test_starts_wiped(self, arena: ArenaStore) -> None:
        """A new arena holds nobody's bytes."""
        for segment, length in SEGMENTS.items():
            out = np.ones(length, np.uint8)
            arena.read(address(segment, 0), out)
            assert not out.any()

    def test_reads_read_only_input(self, arena: ArenaStore) -> None:
        """Bytes that came from the network (a read-only buffer) are written without a copy by the caller."""
        data = np.frombuffer(bytes(range(256)) * 16, np.uint8)
        arena.write(address(7, 4096), data)
        out = np.empty(4096, np.uint8)
        arena.read(address(7, 4096), out)
        assert np.array_equal(out, data)

    @pytest.mark.parametrize(
        "where", [address(3, (1 << 20) - 4095), address(7, 256 << 10), address(4, 0), address(0, 0)]
    )
    def test_range_is_checked(self, arena: ArenaStore, where: int) -> None:
        """A range outside its segment is a ValueError and moves no byte."""
        out = np.full(4096, 9, np.uint8)
        with pytest.raises(ValueError, match="not inside"):
            arena.read(where, out)
        with pytest.raises(ValueError, match="not inside"):
            arena.write(where, out)
        assert (out == 9).all()

    def test_input_is_not_kept(self, arena: ArenaStore) -> None:
        """What the caller does to its buffer after `write` returned does not reach the arena."""
        data = random_bytes(2, 65536)
        expected = data.copy()
        arena.write(address(3, 0), data)
        data[:] = 0
        out = np.empty(65536, np.uint8)
        arena.read(address(3, 0), out)
        assert np.array_equal(out, expected)

    def test_threads(self, arena: ArenaStore) -> None:
        """Copies of several threads to disjoint slots do not disturb each other."""

        def turn(slot: int) -> bool:
            out = np.empty(65536, np.uint8)
            for round_ in range(20):
                data = random_bytes(slot * 100 + round_, 65536)
                arena.write(address(3, slot * 65536), data)
                arena.read(address(3, slot * 65536), out)
                if not np.array_equal(out, data):
                    return False
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(turn, range(16)))

    def test_view(self, arena: ArenaStore) -> None:
        """Where an arena can be mapped its view is the memory itself; elsewhere asking for it is an error."""
        if not arena.mappable:
            with pytest.raises(Exception, match="cannot be mapped"):
                arena.view(address(3, 0), 4096)
            return
        arena.view(address(3, 4096), 4096)[:] = 5
        out = np.empty(4096, np.uint8)
        arena.read(address(3, 4096), out)
        assert (out == 5).all()

    def test_close_twice(self, arena: ArenaStore) -> None:
        """`close` may be called again."""
        arena.close()
        arena.close()
