"""One real Valkey server for all contract tests of a run; a test finds it empty."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tierd.testing.valkey import ExternalValkey


@pytest.fixture(scope="session")
def valkey_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ExternalValkey]:
    directory: Path = tmp_path_factory.mktemp("valkey")
    with ExternalValkey(directory, maxmemory="512mb") as server:
        yield server


@pytest.fixture
def valkey(valkey_process: ExternalValkey) -> ExternalValkey:
    valkey_process.run(b"FLUSHALL")
    return valkey_process
