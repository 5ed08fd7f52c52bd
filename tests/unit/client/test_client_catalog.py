"""The reader of the catalog: finds, reads, and notices when the daemon changed what it was reading."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tierd_client.catalog import PLANE, CatalogReader
from tierd_client.direct import Lane
from tierd_client.format import (
    BUCKET_TOMBSTONE,
    CATALOG_MAGIC,
    HAZARD_PAGE_BYTES,
    HAZARDS_MAX,
    STATE_FILLING,
    STATE_READY,
    WORD_REACH,
    WORD_SALT,
    I64Array,
    Table,
    U8Array,
    U64Array,
    catalog_columns,
    first_bucket,
    words_of,
)
from tierd_client.hazards import HazardPage, Looked

ROWS, BUCKETS, SIZE, NAMESPACE, GROUP = 64, 128, 4096, 7, 3
OWNER = NAMESPACE, GROUP
HBM, HOST, SPILL = 0, 1, 2
HOST_SEGMENT = 3


class Daemon:
    """Writes a catalog as the format's text says, and one host segment; shares no code with the reader."""

    def __init__(self) -> None:
        columns = catalog_columns(ROWS, BUCKETS)
        self.table = Table.create(CATALOG_MAGIC, columns)
        self.table.words[WORD_SALT] = 0x1234
        self.table.words[WORD_REACH] = 0b111
        self.segment = np.zeros(ROWS * SIZE, np.uint8)
        self.ids = np.random.default_rng(5).integers(0, 256, (ROWS, 32), np.uint8)

    def add(self, row: int, tier: int = HOST, state: int = STATE_READY) -> bytes:
        """Puts identity `row` into row `row`, its bytes into slot `row`."""
        table, identity = self.table, self.ids[row]
        bucket = int(first_bucket(words_of(identity[None]), 0x1234, BUCKETS - 1)[0])
        while table["index"][bucket]:
            bucket = (bucket + 1) % BUCKETS
        table["index"][bucket] = row + 1
        table["identity"][row] = identity
        table["sequence"][row] = 2
        table["size"][row] = SIZE
        table["namespace"][row], table["group"][row] = OWNER
        table["state"][tier, row] = state
        table["address"][tier, row] = HOST_SEGMENT << 48 | row * SIZE
        table["generation"][tier, row] = 100 + row
        self.segment[row * SIZE : (row + 1) * SIZE] = row
        return bytes(identity)

    def view(self, number: int) -> U8Array | None:
        return self.segment if number == HOST_SEGMENT else None


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


def test_a_block_is_read_by_identity(daemon: Daemon) -> None:
    """Each READY block is read to the byte, whatever shares its bucket; an unknown identity is not found."""
    ids = [daemon.add(row) for row in range(ROWS - 1)]
    reader, out = CatalogReader(daemon.table), np.empty(SIZE, np.uint8)
    for row, identity in enumerate(ids):
        assert reader.read_into(identity, out, daemon.view, OWNER)
        assert (out == row).all()
    assert not reader.read_into(daemon.ids[ROWS - 1].tobytes(), out, daemon.view)


def test_a_probe_goes_over_tombstones(daemon: Daemon) -> None:
    """An identity that was inserted behind one that has gone since is still found."""
    first = int(first_bucket(words_of(daemon.ids[1][None]), 0x1234, BUCKETS - 1)[0])
    daemon.table["index"][first] = 40
    identity = daemon.add(1)
    daemon.table["index"][first] = BUCKET_TOMBSTONE
    reader = CatalogReader(daemon.table)
    assert reader.find(identity) == (1, 2)
    assert reader.lookup(daemon.ids[1][None]).tolist() == [2]


def _refused(change: Callable[[Daemon], None]) -> bool:
    daemon = Daemon()
    identity = daemon.add(4)
    change(daemon)
    return not CatalogReader(daemon.table).read_into(identity, np.empty(SIZE, np.uint8), daemon.view, OWNER)


def _set(column: str, value: int) -> Callable[[Daemon], None]:
    return lambda daemon: daemon.table[column].__setitem__(4, value)


def _set_copy(column: str, value: int) -> Callable[[Daemon], None]:
    return lambda daemon: daemon.table[column].__setitem__((HOST, 4), value)


@pytest.mark.parametrize(
    "change",
    [
        _set("sequence", 3), _set("size", SIZE - 1), _set("namespace", 8), _set("group", 4),
        _set_copy("state", STATE_FILLING), _set_copy("address", 9 << 48),
        _set_copy("address", HOST_SEGMENT << 48 | ROWS * SIZE - 1),
    ],
    ids=["odd", "size", "namespace", "group", "filling", "segment", "bounds"],
)
def test_what_cannot_be_read_soundly_is_not_read(change: Callable[[Daemon], None]) -> None:
    """A record being written, of another size, namespace or group, not READY, not mapped, or out of its segment is
    left to the daemon."""
    assert not _refused(lambda daemon: None)
    assert _refused(change)


@pytest.mark.parametrize("column", ["sequence", "generation"])
def test_a_change_during_the_copy_is_noticed(daemon: Daemon, column: str) -> None:
    """A record that moves between its first check and the end of the copy gives False."""
    identity = daemon.add(4)

    def view(number: int) -> U8Array | None:
        changed = daemon.table[column] if column == "sequence" else daemon.table[column][HOST]
        changed[4] += 2
        return daemon.view(number)

    assert not CatalogReader(daemon.table).read_into(identity, np.empty(SIZE, np.uint8), view)


def test_places_by_columns_are_those_of_single_blocks(daemon: Daemon) -> None:
    """Several identities are found in host at the places at which each alone is, and nothing else is."""
    for row in range(ROWS - 1):
        daemon.add(row, HBM if row % 5 == 0 else HOST, STATE_FILLING if row % 7 == 6 else STATE_READY)
    daemon.table["sequence"][8] = 3
    daemon.table["size"][9] = SIZE - 1
    daemon.table["group"][11] = GROUP + 1
    reader = CatalogReader(daemon.table)
    places = reader.places(daemon.ids.tobytes(), SIZE, OWNER)
    for number, identity in enumerate(daemon.ids):
        alone = reader.place(identity.tobytes(), SIZE, OWNER)
        assert places.found[number] == (alone is not None and alone[PLANE] == HOST)
        if places.found[number]:
            columns = places.rows, places.sequence, places.generation, places.address
            assert alone is not None and tuple(int(column[number]) for column in columns) == alone[:4]
    assert places.known.sum() == ROWS - 2
    assert places.found.sum() > ROWS // 2


@pytest.mark.parametrize("column", ["sequence", "generation"])
def test_a_change_since_places_were_found_is_noticed(daemon: Daemon, column: str) -> None:
    """Of several copies exactly those count as unchanged whose sequence word and generation are what they were."""
    for row in range(ROWS - 1):
        daemon.add(row)
    reader = CatalogReader(daemon.table)
    places, chosen = reader.places(daemon.ids[:8].tobytes(), SIZE, OWNER), np.arange(8)
    assert reader.still_there(places, chosen).all()
    of = daemon.table[column] if column == "sequence" else daemon.table[column][HOST]
    of[5] += 2
    assert np.flatnonzero(~reader.still_there(places, chosen)).tolist() == [5]


def _lane(daemon: Daemon) -> Lane:
    nobody: Any = SimpleNamespace(client=SimpleNamespace(checks=None))
    mapped: Any = SimpleNamespace(views={HOST_SEGMENT: daemon.segment})
    return Lane(nobody, GROUP, nobody, mapped, CatalogReader(daemon.table), OWNER, nobody)


class SteppedPage(HazardPage):
    """Lets the daemon do something just before or just after slots are published."""

    def __init__(self, step: Callable[[], None], *, before: bool) -> None:
        self.words = np.zeros(HAZARD_PAGE_BYTES, np.uint8)
        super().__init__(self.words)
        self._step, self._before = step, before

    def publish(self, addresses: U64Array, rows: I64Array, size: int) -> I64Array | None:
        if self._before:
            self._step()
        entries = super().publish(addresses, rows, size)
        if not self._before:
            self._step()
        return entries

    def named(self) -> set[int]:
        return set(self.words.view("<u8").reshape(-1, 2)[1:, 0].tolist()) - {0}


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize("column", ["sequence", "generation", "state"])
def test_what_changes_while_it_is_published_is_not_looked_at(daemon: Daemon, column: str, before: bool) -> None:
    """A block whose record changes between its discovery and the look after publishing is left to the daemon, and
    its slot is named no more; the others are looked at, each named once."""
    ids = b"".join(daemon.add(row) for row in range(8))
    changed = daemon.table["sequence"] if column == "sequence" else daemon.table[column][HOST]
    page = SteppedPage(lambda: changed.__setitem__(5, changed[5] + 2), before=before)
    looked = Looked(page)
    _lane(daemon).look_at(looked, ids, SIZE, [HOST])
    assert looked.addresses == {row: HOST_SEGMENT << 48 | row * SIZE for row in range(8) if row != 5}
    assert page.named() == set(looked.addresses.values())
    looked.end()
    assert page.named() == set()
    assert not page.words[:8].any()


def test_a_full_page_leaves_blocks_to_the_daemon(daemon: Daemon) -> None:
    """Blocks for which a page has no room are not looked at; when others are given back there is room again."""
    ids = b"".join(daemon.add(row) for row in range(8))
    page, lane = SteppedPage(lambda: None, before=True), _lane(daemon)
    full = [Looked(page) for _ in range(HAZARDS_MAX // 8 + 1)]
    for looked in full:
        lane.look_at(looked, ids, SIZE, [HOST])
    assert [len(looked.addresses) for looked in full] == [8] * (HAZARDS_MAX // 8) + [0]
    full[0].end()
    lane.look_at(full[-1], ids, SIZE, [HOST])
    assert len(full[-1].addresses) == 8


def test_what_an_index_leads_astray_is_not_found(daemon: Daemon) -> None:
    """A bucket that names another identity's row, as while the index is rebuilt, gives no block and no bits."""
    daemon.add(4)
    wrong = int(np.flatnonzero(daemon.table["index"])[0])
    daemon.table["index"][wrong] = 6
    reader = CatalogReader(daemon.table)
    assert reader.place(daemon.ids[4].tobytes(), SIZE) is None
    assert not reader.lookup(daemon.ids[:8]).any()


def test_a_batched_lookup_tells_tiers(daemon: Daemon) -> None:
    """Each identity has a bit per tier with a READY copy; other namespaces and odd rows read as absent."""
    for row, tier in enumerate((HBM, HOST, SPILL)):
        daemon.add(row, tier)
    daemon.table["state"][SPILL, 1] = STATE_READY
    daemon.add(3, HOST, STATE_FILLING)
    daemon.add(4)
    daemon.table["sequence"][4] = 3
    daemon.add(5)
    daemon.table["namespace"][5] = NAMESPACE + 1
    bits = CatalogReader(daemon.table).lookup(daemon.ids[:7], OWNER)
    assert bits.tolist() == [1, 2 | 4, 4, 0, 0, 0, 0]


@pytest.mark.parametrize(("reach", "seen"), [(0b111, 0b110), (0b011, 0b010), (0, 0)])
def test_a_lookup_shows_only_tiers_that_can_be_reached(daemon: Daemon, reach: int, seen: int) -> None:
    """A copy in a spill tier that is down is not shown, and of a daemon that does not say it nothing is."""
    daemon.add(0)
    daemon.table["state"][SPILL, 0] = STATE_READY
    daemon.table.words[WORD_REACH] = reach
    assert CatalogReader(daemon.table).lookup(daemon.ids[:1], OWNER).tolist() == [seen]
