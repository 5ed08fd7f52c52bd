"""The contract of a SpillStore as tests: subclass `SpillContract`, give it the fixture `store` and `tamper`."""

from __future__ import annotations

import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import xxhash

from tierd.adapters.envelope import HEADER_BYTES
from tierd.core.errors import BlockDamaged, BlockVanished, SpillDown
from tierd.core.messages import Record
from tierd.ports import SpillStore, StoredBlock, Wanted
from tierd_client.format import U8Array

FINGERPRINT = bytes(range(32))
OTHER_FINGERPRINT = bytes(range(1, 33))
DEADLINE_S = 10.0
"""Of calls that must succeed."""
SIZES = [1, 4095, 4096, 131_073, 5 << 20]
MIXING_THREADS = 8
MIXING_ROUNDS = 60

# Values that a detour over text, float32 or a sign would lose.
RECORDS = [
    Record(),
    Record(touches=1, last=-(2**63), wall=1.7e9 + 2**-20, ema=0.1 + 0.2, crf=5e-324),
    Record(touches=2**32 - 1, last=2**63 - 1, wall=0.0, ema=-0.0, crf=np.nextafter(1e300, 0.0).item()),
    Record(touches=3, last=2, wall=1.0, ema=0.3, crf=0.4, weighted=True),
]


def identity_of(number: int) -> bytes:
    return struct.pack("<Q", number) * 4


def payload_of(seed: int, size: int) -> U8Array:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def block_of(
    number: int, payload: U8Array, *, fingerprint: bytes = FINGERPRINT, record: Record | None = None,
    parent: bytes | None = None, group: int = 0, position: int = 0,
) -> StoredBlock:
    """Description of a payload under the identity of that number."""
    return StoredBlock(
        fingerprint=fingerprint, identity=identity_of(number), group=group, position=position, parent=parent,
        size=payload.nbytes, checksum=xxhash.xxh3_64_intdigest(payload.data), record=record or Record(),
    )


def put_random(store: SpillStore, number: int, size: int = 4096) -> tuple[StoredBlock, U8Array]:
    payload = payload_of(number, size)
    block = block_of(number, payload)
    store.put(block, payload, DEADLINE_S)
    return block, payload


def get_new(store: SpillStore, number: int, size: int = 4096) -> tuple[int, U8Array]:
    out = np.full(size, 0xEE, np.uint8)
    return store.get(FINGERPRINT, identity_of(number), out, DEADLINE_S), out


def look_at(store: SpillStore, number: int) -> StoredBlock:
    (found,) = store.look(FINGERPRINT, [identity_of(number)], DEADLINE_S)
    assert found is not None
    return found


def bits_of(record: Record) -> bytes:
    numbers = struct.pack("<Qqddd", record.touches, record.last, record.wall, record.ema, record.crf)
    return numbers + bytes([record.weighted])


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half a header": lambda value: value[: HEADER_BYTES // 2],
    "only a header": lambda value: value[:HEADER_BYTES],
    "one byte less": lambda value: value[:-1],
    "one byte more": lambda value: value + b"x",
    "magic": lambda value: b"X" + value[1:],
    "version": lambda value: value[:8] + b"\x02" + value[9:],
    "a statistic": lambda value: value[:152] + bytes([value[152] ^ 1]) + value[153:],
    "header checksum": lambda value: value[:255] + bytes([value[255] ^ 0x80]) + value[256:],
    "zeros": lambda value: bytes(len(value)),
    "text": lambda _: b'{"payload": "..."}' * 100,
}


class SpillContract:
    """What every SpillStore must do. The fixture `store` is empty and has room for 128 MiB."""

    def tamper(self, store: SpillStore, number: int, change: Callable[[bytes], bytes]) -> None:
        """Replaces the stored value of the block `number` (header and payload) by what `change` makes of it."""
        raise NotImplementedError

    @pytest.mark.parametrize("size", SIZES)
    def test_round_trip(self, store: SpillStore, size: int) -> None:
        """A payload comes back byte for byte with its checksum, whatever its size."""
        block, payload = put_random(store, size, size)
        checksum, out = get_new(store, size, size)
        assert checksum == block.checksum
        assert np.array_equal(out, payload)

    @pytest.mark.parametrize("record", RECORDS)
    def test_statistics(self, store: SpillStore, record: Record) -> None:
        """Statistics come back to the last bit."""
        payload = payload_of(1, 100)
        store.put(block_of(1, payload, record=record), payload, DEADLINE_S)
        assert bits_of(look_at(store, 1).record) == bits_of(record)

    @pytest.mark.parametrize("parent", [None, identity_of(77)])
    def test_place_in_the_chain(self, store: SpillStore, parent: bytes | None) -> None:
        """Group, position and parent, or that there is none, come back."""
        payload = payload_of(2, 100)
        block = block_of(2, payload, parent=parent, group=65535, position=2**32 - 1)
        store.put(block, payload, DEADLINE_S)
        assert look_at(store, 2) == block

    def test_overwrite(self, store: SpillStore) -> None:
        """The last put of an identity is what is read, with its own size."""
        put_random(store, 3, 8192)
        payload = payload_of(33, 5000)
        store.put(block_of(3, payload), payload, DEADLINE_S)
        assert np.array_equal(get_new(store, 3, 5000)[1], payload)

    def test_only_its_own_bytes(self, store: SpillStore) -> None:
        """A get fills exactly `out`, be it in the middle of an arena, and a put takes exactly `payload`."""
        arena = payload_of(4, 12_288)
        wanted = arena[4096:8192].copy()
        store.put(block_of(4, wanted), arena[4096:8192], DEADLINE_S)
        room = np.full(12_288, 0xEE, np.uint8)
        store.get(FINGERPRINT, identity_of(4), room[4096:8192], DEADLINE_S)
        assert np.array_equal(room[4096:8192], wanted)
        assert (room[:4096] == 0xEE).all() and (room[8192:] == 0xEE).all()

    def test_payload_is_not_kept(self, store: SpillStore) -> None:
        """What the caller does to its buffer after a put does not reach the stored block."""
        payload = payload_of(5, 65_536)
        store.put(block_of(5, payload), payload, DEADLINE_S)
        payload[:] = 0
        assert np.array_equal(get_new(store, 5, 65_536)[1], payload_of(5, 65_536))

    def test_read_only_payload(self, store: SpillStore) -> None:
        """A payload that must not be written, such as received bytes, can be stored."""
        payload = np.frombuffer(bytes(range(256)), np.uint8)
        store.put(block_of(6, payload), payload, DEADLINE_S)
        assert np.array_equal(get_new(store, 6, 256)[1], payload)

    def test_vanished(self, store: SpillStore) -> None:
        """An identity that was never put, or was put in another namespace, is BlockVanished."""
        put_random(store, 7)
        with pytest.raises(BlockVanished):
            get_new(store, 8)
        with pytest.raises(BlockVanished):
            store.get(OTHER_FINGERPRINT, identity_of(7), np.empty(4096, np.uint8), DEADLINE_S)

    def test_wrong_size_is_damage(self, store: SpillStore) -> None:
        """A block is never read into room of another size, and the call after it gets its own answer."""
        _, payload = put_random(store, 9)
        for size in (4095, 4097, 1 << 20):
            with pytest.raises(BlockDamaged):
                get_new(store, 9, size)
            assert np.array_equal(get_new(store, 9)[1], payload)

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_damage(self, store: SpillStore, damage: str) -> None:
        """A stored value that is not what was stored is BlockDamaged, and the call after it is not disturbed."""
        put_random(store, 10, 70_000)
        _, payload = put_random(store, 11, 70_000)
        self.tamper(store, 10, DAMAGES[damage])
        with pytest.raises(BlockDamaged):
            get_new(store, 10, 70_000)
        assert np.array_equal(get_new(store, 11, 70_000)[1], payload)

    def test_block_of_another_identity(self, store: SpillStore) -> None:
        """A whole and sound block is BlockDamaged under the key of another one."""
        put_random(store, 12)
        stolen: list[bytes] = []

        def steal(value: bytes) -> bytes:
            stolen.append(value)
            return value

        self.tamper(store, 12, steal)
        put_random(store, 13)
        self.tamper(store, 13, lambda _: stolen[0])
        with pytest.raises(BlockDamaged, match="identity"):
            get_new(store, 13)

    @pytest.mark.parametrize("size", [4096, 1_000_000])
    @pytest.mark.parametrize("place", [0, 0.5, 1])
    def test_damaged_payload(self, store: SpillStore, size: int, place: float) -> None:
        """A payload with one wrong byte, wherever, is BlockDamaged, and the call after it is not disturbed."""
        _, payload = put_random(store, 15)
        put_random(store, 14, size)
        at = HEADER_BYTES + int(place * (size - 1))
        self.tamper(store, 14, lambda value: value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])
        with pytest.raises(BlockDamaged, match="checksum"):
            get_new(store, 14, size)
        assert np.array_equal(get_new(store, 15)[1], payload)

    def test_several_at_once(self, store: SpillStore) -> None:
        """Blocks that are put and got together come back each in its place, and what is wrong with one concerns
        that one alone."""
        sizes = [70_000, 5000, 200_000, 4096]
        payloads = [payload_of(30 + n, size) for n, size in enumerate(sizes)]
        pairs = [(block_of(30 + n, payload), payload) for n, payload in enumerate(payloads)]
        assert dict(store.put_all(pairs, DEADLINE_S)) == dict.fromkeys(range(4), True)
        self.tamper(store, 31, lambda value: value[:-1] + bytes([value[-1] ^ 1]))
        outs = [np.empty(size, np.uint8) for size in (*sizes, 100)]
        wanted = [Wanted(FINGERPRINT, identity_of(30 + n), out) for n, out in enumerate(outs)]
        vanished, whole, damaged, last = wanted[4], wanted[0], wanted[1], wanted[2]
        found = dict(store.get_all([vanished, whole, damaged, last, wanted[3]], DEADLINE_S))
        kinds = [BlockVanished, int, BlockDamaged, int, int]
        assert [type(found[n]) for n in range(5)] == kinds
        assert all(np.array_equal(outs[n], payloads[n]) for n in (0, 2, 3))

    def test_look(self, store: SpillStore) -> None:
        """A look tells what is stored, place, size, checksum and statistics, and None of what is not; a block
        that a put acknowledged is the store's own."""
        payload = payload_of(20, 70_000)
        block = block_of(20, payload, record=RECORDS[1], parent=identity_of(3), position=9)
        assert store.put(block, payload, DEADLINE_S)
        numbers = [19, 20, 21] * 40
        found = store.look(FINGERPRINT, [identity_of(number) for number in numbers], DEADLINE_S)
        assert found == [block if number == 20 else None for number in numbers]
        assert store.look(OTHER_FINGERPRINT, [block.identity], DEADLINE_S) == [None]
        assert store.look(FINGERPRINT, [], DEADLINE_S) == []

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_look_at_damage(self, store: SpillStore, damage: str) -> None:
        """What is not whole, or not a block, is not there for a look, and what is asked beside it is."""
        for number in (22, 23):
            put_random(store, number, 70_000)
        self.tamper(store, 22, DAMAGES[damage])
        found = store.look(FINGERPRINT, [identity_of(22), identity_of(23)], DEADLINE_S)
        assert found[0] is None
        assert found[1] is not None and found[1].identity == identity_of(23)

    @pytest.mark.parametrize("record", RECORDS[1:])
    def test_newer_statistics(self, store: SpillStore, record: Record) -> None:
        """Statistics are restated without the payload: of two the one with the later wall time counts, in
        whatever order they come; those of a block that is not there are ignored, and end with the block."""
        block, payload = put_random(store, 24)
        older, newer = record._replace(wall=10.0), record._replace(wall=20.0)
        for one in (newer, older):
            store.restate(FINGERPRINT, {block.identity: one, identity_of(25): one}, DEADLINE_S)
            found = store.look(FINGERPRINT, [block.identity, identity_of(25)], DEADLINE_S)
            assert found[0] is not None and bits_of(found[0].record) == bits_of(newer)
            assert found[1] is None
        assert np.array_equal(get_new(store, 24)[1], payload)
        store.put(replace(block, record=record._replace(wall=30.0)), payload, DEADLINE_S)
        assert store.look(FINGERPRINT, [block.identity], DEADLINE_S)[0] == replace(
            block, record=record._replace(wall=30.0)
        )
        store.unlink(FINGERPRINT, [block.identity], DEADLINE_S)
        put_random(store, 25)
        store.put(block, payload, DEADLINE_S)
        assert store.look(FINGERPRINT, [block.identity, identity_of(25)], DEADLINE_S)[0] == block

    def test_footprints(self, store: SpillStore) -> None:
        """A stored block takes at least its bytes and a header, and no more than allocators round up to; of what is
        not stored nothing is told."""
        block, _ = put_random(store, 30, 100_000)
        asked = [identity_of(29), block.identity]
        absent, taken = store.footprints(FINGERPRINT, asked, DEADLINE_S)
        assert absent is None
        assert taken is not None and 100_000 + HEADER_BYTES <= taken <= 140_000
        store.restate(FINGERPRINT, {block.identity: Record(touches=2, wall=3.0)}, DEADLINE_S)
        assert (store.footprints(FINGERPRINT, [block.identity], DEADLINE_S)[0] or 0) >= taken
        assert store.footprints(FINGERPRINT, [], DEADLINE_S) == []

    def test_unlink(self, store: SpillStore) -> None:
        """Unlinked blocks are gone, others stay; unlinking what is not there, or nothing, is no error."""
        for number in range(600, 610):
            put_random(store, number)
        gone = [identity_of(number) for number in range(5000)] + [identity_of(600)]
        store.unlink(FINGERPRINT, gone, DEADLINE_S)
        store.unlink(FINGERPRINT, [identity_of(600)], DEADLINE_S)
        store.unlink(FINGERPRINT, [], DEADLINE_S)
        with pytest.raises(BlockVanished):
            get_new(store, 609)
        put_random(store, 609)
        store.unlink(OTHER_FINGERPRINT, [identity_of(609)], DEADLINE_S)
        get_new(store, 609)

    def test_probe(self, store: SpillStore) -> None:
        """The first probe of a server finds no marker and says so; the next finds it."""
        first = store.probe(DEADLINE_S)
        assert not first.same and first.detail
        assert store.probe(DEADLINE_S).same

    def test_no_time(self, store: SpillStore) -> None:
        """With a deadline that has passed every call is SpillDown, and changes nothing."""
        block, payload = put_random(store, 15)
        calls: list[Callable[[], object]] = [
            lambda: store.put(block_of(16, payload), payload, 0.0),
            lambda: store.get(FINGERPRINT, block.identity, np.empty(4096, np.uint8), 0.0),
            lambda: store.unlink(FINGERPRINT, [block.identity], -1.0),
            lambda: store.look(FINGERPRINT, [block.identity], 0.0),
            lambda: store.restate(FINGERPRINT, {block.identity: Record(wall=1.0)}, 0.0),
            lambda: store.probe(0.0),
        ]
        for call in calls:
            with pytest.raises(SpillDown):
                call()
        get_new(store, 15)
        with pytest.raises(BlockVanished):
            get_new(store, 16)

    def test_threads_never_mix_blocks(self, store: SpillStore) -> None:
        """Threads that put and get at the same time each read their own blocks, whole."""

        def turn(thread: int) -> None:
            random = np.random.default_rng(thread)
            for round_ in range(MIXING_ROUNDS):
                number, size = thread * 1000 + round_ % 5, int(random.integers(1, 200_000))
                payload = payload_of(number + round_, size)
                store.put(block_of(number, payload), payload, DEADLINE_S)
                _, out = get_new(store, number, size)
                assert np.array_equal(out, payload)
                with pytest.raises(BlockVanished):
                    get_new(store, number + 500)

        with ThreadPoolExecutor(MIXING_THREADS) as pool:
            list(pool.map(turn, range(MIXING_THREADS)))

    def test_close(self, store: SpillStore) -> None:
        """`close` may be called again, and calls after it are SpillDown."""
        put_random(store, 17)
        store.close()
        store.close()
        with pytest.raises(SpillDown):
            get_new(store, 17)
