"""A daemon as a process, for the example worker."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tierd.testing.serve import ServeProcess


@pytest.fixture
def daemon() -> Iterator[ServeProcess]:
    places = [Path(tempfile.mkdtemp(prefix="tierd-deploy-", dir=base)) for base in (None, "/dev/shm")]
    one = ServeProcess(*places, {})
    yield one.start()
    one.kill()
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
