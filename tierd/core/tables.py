"""The tables that the engine works on: shared memory of a daemon, or private memory."""

from __future__ import annotations

from dataclasses import dataclass

from tierd_client.format import (
    CATALOG_MAGIC,
    GHOST_MAGIC,
    LEARNT_MAGIC,
    SESSION_MAGIC,
    Table,
    catalog_columns,
    ghost_columns,
    learnt_columns,
    session_columns,
)


@dataclass(frozen=True, slots=True)
class Tables:
    """The four tables, wherever they lie."""

    catalog: Table
    ghosts: Table
    sessions: Table
    learnt: Table

    @classmethod
    def private(cls, rows: int, ghosts: int | None = None, sessions: int = 1024, holds: int = 65_536) -> Tables:
        """Tables in private memory, for studies and tests. `ghosts` defaults to 4 a row."""
        buckets = 1 << max(4, (2 * rows - 1).bit_length())
        ghosts = 4 * rows if ghosts is None else ghosts
        return cls(
            Table.create(CATALOG_MAGIC, catalog_columns(rows, buckets)),
            Table.create(GHOST_MAGIC, ghost_columns(ghosts)),
            Table.create(SESSION_MAGIC, session_columns(sessions, holds)),
            Table.create(LEARNT_MAGIC, learnt_columns(ghosts)),
        )
