"""Tests that need a CUDA device: skipped without one, each saying so."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

REASON = "no CUDA device: torch finds none"


def has_cuda() -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all of this directory, and skips what is not about the lack of a device."""
    here = [item for item in items if "tests/device" in str(item.path)]
    missing = bool(here) and not has_cuda()
    for item in here:
        item.add_marker(pytest.mark.device)
        if missing and "without_a_device" not in item.name:
            item.add_marker(pytest.mark.skip(reason=REASON))
