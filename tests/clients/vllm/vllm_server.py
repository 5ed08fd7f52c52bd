"""`vllm serve` and `vllm bench serve` as processes of their own, for tests and measurements of serving."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_answers import PAUSE

from tierd.testing.valkey import free_port

STARTS_WITHIN_S = LOADED_WITHIN_S = 600.0
BLOCK_TOKENS = 32
MODEL_TOKENS = 512
LOG_CHARACTERS = 12_000
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1",
    "VLLM_TARGET_DEVICE": "cpu", "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_CPU_NUM_OF_RESERVED_CPU": "1",  # else vLLM computes with another number of threads with a connector
}
COUNTER = r"^vllm:{}_total\{{.*\}} (\S+)$"
FOUND = "external_prefix_cache_hits"
POLL_S = 0.5


@dataclass(frozen=True)
class Load:
    """What the load client asks: prompts that share prefixes, in random order, some at a time."""

    requests: int = 12
    prefixes: int = 4
    prefix_tokens: int = 384
    suffix_tokens: int = 32
    new_tokens: int = 8
    at_a_time: int = 2

    @property
    def prompt_tokens(self) -> int:
        return self.requests * (self.prefix_tokens + self.suffix_tokens)

    def arguments(self, seed: int) -> list[str]:
        named = {
            "dataset-name": "prefix_repetition", "num-prompts": self.requests, "max-concurrency": self.at_a_time,
            "prefix-repetition-num-prefixes": self.prefixes, "prefix-repetition-prefix-len": self.prefix_tokens,
            "prefix-repetition-suffix-len": self.suffix_tokens, "seed": seed,
            "prefix-repetition-output-len": self.new_tokens, "ready-check-timeout-sec": 0,
        }
        return [word for name, value in named.items() for word in (f"--{name}", str(value))]


class Server:
    """A server that answers, until the context that made it is left."""

    def __init__(self, python: Path, model: Path, port: int) -> None:
        self._python, self._model = python, model
        self.address = f"http://127.0.0.1:{port}"

    def counted(self, name: str) -> float:
        """A counter of its metrics, without its prefix and suffix."""
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=60) as answer:
            return sum(map(float, re.findall(COUNTER.format(name), answer.read().decode(), re.MULTILINE)))

    def loaded(
        self, load: Load, seed: int, folder: Path, happens: Callable[[], object] = lambda: None,
    ) -> dict[str, Any]:
        """What the load client finds, under its own names, when that happens once a third of its requests have been
        answered; and of the prompts the share of tokens that the connector found, `found`. `seed` draws them."""
        answered, found = self.counted("request_success"), self.counted(FOUND)
        result = folder / "result.json"
        command = [
            *vllm(self._python), "bench", "serve", "--base-url", self.address, "--model", str(self._model),
            "--tokenizer", str(self._model), *load.arguments(seed), "--save-result",
            "--result-dir", str(folder), "--result-filename", result.name,
        ]
        client = subprocess.Popen(
            command, env=os.environ | ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while self.counted("request_success") < answered + load.requests // 3 and client.poll() is None:
            PAUSE.wait(POLL_S)
        happens()
        said, _ = client.communicate(timeout=LOADED_WITHIN_S)
        assert client.returncode == 0, said[-LOG_CHARACTERS:]
        whole: dict[str, Any] = json.loads(result.read_text())
        return whole | {"found": (self.counted(FOUND) - found) / load.prompt_tokens}


@contextmanager
def serving(
    python: Path, model: Path, transfer: dict[str, Any] | None, folder: Path, engine_blocks: int,
) -> Iterator[Server]:
    """A server with that KV transfer configuration, once it is healthy. `folder`: for its log. `engine_blocks`: of
    its own KV memory, those of one prompt of MODEL_TOKENS at least, and one."""
    port = free_port()
    command = [
        *vllm(python), "serve", str(model), "--host", "127.0.0.1", "--port", str(port), "--dtype",
        "float32", "--block-size", str(BLOCK_TOKENS), "--max-model-len", str(MODEL_TOKENS), "--max-num-seqs", "4",
        "--enforce-eager", "--disable-hybrid-kv-cache-manager", "--num-gpu-blocks-override", str(engine_blocks),
        "--uvicorn-log-level", "warning",
        *(["--kv-transfer-config", json.dumps(transfer)] if transfer else []),
    ]
    log = folder / f"vllm-{port}.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT, start_new_session=True)
    try:
        server = Server(python, model, port)
        _await_health(server, process, log)
        yield server
    finally:
        with suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(process.pid, 9)
        process.wait()
        print(f"--- log of {log}\n{log.read_text()[-LOG_CHARACTERS:]}")


def vllm(python: Path) -> list[str]:
    """vLLM's command, in the environment of that interpreter."""
    return [str(python), "-m", "vllm.entrypoints.cli.main"]


def with_tokenizer(model: Path, target: Path) -> Path:
    """The model's files, and what makes a tokenizer of transformers of them."""
    target.mkdir()
    for path in model.iterdir():
        (target / path.name).symlink_to(path)
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "bos_token": "<|im_start|>"}
    (target / "tokenizer_config.json").write_text(json.dumps(about))
    return target


def _await_health(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < ends_at:
        with suppress(OSError), urllib.request.urlopen(f"{server.address}/health", timeout=5):
            return
        assert process.poll() is None, log.read_text()[-LOG_CHARACTERS:]
        PAUSE.wait(0.5)
    raise AssertionError(f"not healthy within {STARTS_WITHIN_S:.0f} s:\n{log.read_text()[-LOG_CHARACTERS:]}")
