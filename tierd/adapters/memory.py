"""All shared memory of one daemon: catalog, ghosts, session table and segments, kept over a restart.

Catalog, session table and segments belong together: they are taken over as a whole or made anew as a whole,
because a catalog over other bytes than its own would be a wrong hit, also for a client that still maps the
files of the earlier daemon. The catalog is made last, so a start that was killed half-way left none.

Copies in hbm are forgotten at every start, as a GPU's memory would be. The bytes of its CPU twin are left
alone all the same: a client may still look at them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from tierd.adapters.hazards import of_pages
from tierd.adapters.shm import SharedDirectory, SharedFile, WantedFile
from tierd_client.format import (
    CATALOG_MAGIC,
    GHOST_MAGIC,
    LEARNT_MAGIC,
    SESSION_MAGIC,
    STATE_ABSENT,
    Column,
    FormatError,
    Table,
    catalog_columns,
    ghost_columns,
    learnt_columns,
    session_columns,
    table_bytes,
)

HOST_SEGMENT_BASE = 1
HBM_SEGMENT_BASE = 0x4000
SEGMENT_PREFIX = "seg-"
HBM_PLANE = 0


class Start(Enum):
    """What the daemon found."""

    NEW = "new"  # nothing of an earlier daemon
    WARM = "warm"  # the earlier daemon's memory, kept
    EMPTY = "empty"  # memory that could not be kept; `reason` says why


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Sizes of everything, from the settings. Segments are (number, bytes)."""

    catalog_rows: int
    catalog_buckets: int
    ghost_rows: int
    sessions: int
    holds: int
    host_segments: tuple[tuple[int, int], ...]
    twin_segments: tuple[tuple[int, int], ...] = ()

    def tables(self) -> dict[str, tuple[bytes, list[Column], str]]:
        """Magic, columns and deciding setting of each table, in the order in which they are made."""
        catalog = catalog_columns(self.catalog_rows, self.catalog_buckets)
        return {
            "sessions": (SESSION_MAGIC, session_columns(self.sessions, self.holds), "max_holds"),
            "ghosts": (GHOST_MAGIC, ghost_columns(self.ghost_rows), "ghost_rows"),
            "learnt": (LEARNT_MAGIC, learnt_columns(self.ghost_rows), "ghost_rows"),
            "catalog": (CATALOG_MAGIC, catalog, "catalog_rows"),
        }

    def files(self) -> dict[str, WantedFile]:
        """Every file wanted, by name, in the order in which they are made."""
        wanted = [WantedFile(segment_name(n), size, "host_bytes") for n, size in self.host_segments]
        wanted += [WantedFile(segment_name(n), size, "hbm_bytes") for n, size in self.twin_segments]
        wanted += [WantedFile(n, table_bytes(columns), s) for n, (_, columns, s) in self.tables().items()]
        return {one.name: one for one in wanted}


@dataclass(slots=True)
class SharedMemory:
    """What was opened. `files` by name; `start` and `reason` are for the log.

    `made`: names of the files that this start made. `in_use`: set once the daemon serves.
    """

    directory: SharedDirectory
    files: dict[str, SharedFile]
    tables: dict[str, Table]
    start: Start
    reason: str = ""
    segments: dict[int, SharedFile] = field(default_factory=dict)
    made: list[str] = field(default_factory=list)
    in_use: bool = False

    def close(self) -> None:
        """Unmaps everything and leaves the files for the next start, but for those that never came into use."""
        if not self.in_use:
            self.directory.remove(self.made)
        self.tables.clear()
        for file in self.files.values():
            file.close()


def open_memory(directory: SharedDirectory, plan: MemoryPlan, instance: bytes, boot: bytes) -> SharedMemory:
    """Takes over what an earlier daemon of this instance left, else makes it. Raises NoRoom, OSError."""
    wanted = plan.files()
    found = set(directory.names())
    kept = _Kept(directory, plan, wanted, instance)
    try:
        start, reason = kept.decide(found)
        missing = [one for name, one in wanted.items() if name not in kept.files]
        pages = set(filter(of_pages, found)) if start is Start.WARM else set()
        kept.files |= directory.replace(missing, old=found - kept.files.keys() - pages)
    except BaseException:
        kept.drop(list(kept.files))
        raise
    tables = _tables(plan, kept, instance, boot)
    tables["catalog"]["state"][HBM_PLANE] = STATE_ABSENT
    numbers = [number for number, _ in plan.host_segments + plan.twin_segments]
    segments = {number: kept.files[segment_name(number)] for number in numbers}
    made = [one.name for one in missing]
    return SharedMemory(directory, kept.files, tables, start, reason, segments, made)


def segment_name(number: int) -> str:
    return f"{SEGMENT_PREFIX}{number}"


class _Kept:
    """Files and tables of the earlier daemon that fit the plan, while it is decided what to do with them."""

    def __init__(
        self, directory: SharedDirectory, plan: MemoryPlan, wanted: dict[str, WantedFile], instance: bytes
    ) -> None:
        self._directory = directory
        self._plan = plan
        self._wanted = wanted
        self._instance = instance
        self.files: dict[str, SharedFile] = {}
        self.tables: dict[str, Table] = {}

    def decide(self, found: set[str]) -> tuple[Start, str]:
        """Keeps everything, or only the ghosts, or nothing; says which and why."""
        ghosts_problem = self._take("ghosts")
        self._take("learnt")
        segments = self._plan.host_segments + self._plan.twin_segments
        whole = ["catalog", "sessions", *(segment_name(number) for number, _ in segments)]
        if "catalog" not in found:
            return Start.NEW, ""
        for name in (*whole, *self._surplus(found)):
            problem = self._take(name)
            if problem:
                self.drop(whole)
                return Start.EMPTY, problem
        return Start.WARM, ghosts_problem if "ghosts" in found else "no ghosts found"

    def drop(self, names: list[str]) -> None:
        for name in names:
            self.tables.pop(name, None)
            file = self.files.pop(name, None)
            if file is not None:
                file.close()

    def _surplus(self, found: set[str]) -> list[str]:
        """Host segments of the earlier daemon that are no longer wanted: its catalog points into them."""
        others = (name for name in found - self._wanted.keys() if not of_pages(name))
        numbers = {name: name.removeprefix(SEGMENT_PREFIX) for name in others}
        return sorted(name for name, n in numbers.items() if n.isdecimal() and int(n) < HBM_SEGMENT_BASE)

    def _take(self, name: str) -> str:
        """Opens one file; returns what is wrong with it, empty when it was taken."""
        if name not in self._wanted:
            return f"{name}: the settings no longer ask for it"
        file = self._directory.open(self._wanted[name])
        if file is None:
            return f"{name}: not there, or not of the size that the settings ask for"
        described = self._plan.tables().get(name)
        if described is not None:
            try:
                self.tables[name] = self._attach(file, described[0], described[1])
            except FormatError as error:
                file.close()
                return f"{name}: {error}"
        self.files[name] = file
        return ""

    def _attach(self, file: SharedFile, magic: bytes, columns: list[Column]) -> Table:
        table = Table.attach(magic, file.mapping)
        if table.instance != self._instance:
            raise FormatError(f"it is of instance {table.instance.hex()}")
        if {c.name: (c.dtype, c.shape) for c in columns} != {
            name: (column.dtype.str, column.shape) for name, column in table.columns.items()
        }:
            raise FormatError("its columns or capacity are not those that the settings ask for")
        return table


def _tables(plan: MemoryPlan, kept: _Kept, instance: bytes, boot: bytes) -> dict[str, Table]:
    """Tables of this boot: stamped where they were kept, else made; the catalog last."""
    tables = {}
    for name, (magic, columns, _) in plan.tables().items():
        table = kept.tables.get(name)
        if table is None:
            mapping = kept.files[name].mapping
            table = Table.create(magic, columns, buffer=mapping, instance=instance, boot=boot)
        table.set_boot(boot)
        tables[name] = table
    return tables
