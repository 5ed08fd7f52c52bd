"""vLLM's environment (tests/clients/install.sh) and the model; without one of them tests are skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_process import StartEngine

from tierd.demo.model import Kind, find_model

HERE = Path(__file__).parent
TEST_WITHIN_S = 1_200
"""On a busy machine an engine takes minutes to start."""

ENVIRONMENTS = Path(os.environ.get("TIERD_CLIENTS_DIR") or Path.home() / ".cache" / "tierd-clients")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.timeout(TEST_WITHIN_S))


@pytest.fixture(scope="session")
def vllm_python() -> Path:
    """The interpreter of vLLM's environment."""
    python = ENVIRONMENTS / "vllm" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no vLLM in {ENVIRONMENTS}: make clients installs it")
    return python


@pytest.fixture(scope="session")
def model() -> str:
    """The directory of SmolLM2-135M."""
    source = find_model(lambda _: None)
    if source.kind is not Kind.SMOLLM2:
        pytest.skip(source.reason)
    return source.directory


@pytest.fixture
def start_engine(vllm_python: Path, model: str) -> Iterator[StartEngine]:
    start = StartEngine(vllm_python, model)
    yield start
    start.end()
    for engine in start.engines:
        print("--- log of an engine\n" + "".join(engine.log[-100:]))
