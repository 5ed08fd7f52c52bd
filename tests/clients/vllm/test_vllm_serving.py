"""vLLM as a server under its own load client, with prompts that share prefixes, while what is behind it dies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_answers import spec
from vllm_server import Load, Server, serving, with_tokenizer

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd.testing.valkey import ExternalValkey

LOAD = Load(requests=8, prefixes=4, prefix_tokens=256, new_tokens=4, at_a_time=1)
ENGINE_BLOCKS = 18
"""Of 32 tokens: for less than two prompts, so that prefixes come out of tierd."""


@pytest.fixture
def behind(daemon: StartDaemon, valkey: ExternalValkey) -> ServeProcess:
    """The daemon, on a Valkey. Its memory takes all prompts: without Redis it drops nothing to make room."""
    return daemon(host_bytes="256MiB", spill=valkey.unix_url)


@pytest.fixture
def server(behind: ServeProcess, vllm_python: Path, model: str, tmp_path: Path) -> Iterator[Server]:
    named = with_tokenizer(Path(model), tmp_path / "model")
    with serving(vllm_python, named, spec(behind), tmp_path, ENGINE_BLOCKS) as server:
        yield server


def test_no_request_fails_whatever_dies(
    server: Server, behind: ServeProcess, valkey: ExternalValkey, tmp_path: Path,
) -> None:
    """All requests are answered while nothing dies, while the daemon is killed and started again in the middle, and
    while Redis is stopped in the middle; before, and after the daemon is back, blocks are found."""
    found = []
    for seed, happens in enumerate([lambda: None, behind.restart, valkey.stop]):
        result = server.loaded(LOAD, seed, tmp_path, happens)
        assert (result["completed"], result["failed"]) == (LOAD.requests, 0)
        found.append(result["found"])
    assert found[0] > 0
    assert found[2] > 0
