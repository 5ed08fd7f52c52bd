"""What a vLLM server answers with its blocks in tierd, beside vLLM alone and LMCache: TTFT, throughput and errors.

    python tests/clients/vllm/serving_table.py [--rounds 2] [--json FILE]

By tierd's interpreter; vLLM's and LMCache's are those of tests/clients/install.sh. Each round asks all servers by
turns, by `vllm bench serve` with its data set of repeated prefixes. The servers' own KV memory holds two prompts
and some blocks, less than the prefixes that are in use, as where many users share a GPU. Prints a table.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from conftest import ENVIRONMENTS
from vllm_answers import PAUSE, spec
from vllm_server import BLOCK_TOKENS, Load, Server, serving, with_tokenizer

from tierd.bench.report import machine
from tierd.bench.stage import Daemon
from tierd.bench.stage import serving as serving_daemon
from tierd.demo.model import find_model
from tierd.testing.valkey import ExternalValkey, free_port

LOAD = Load()
ENGINE_BLOCKS = 34
HOST_BYTES = "512MiB"
LMCACHE_GIB = 0.5
SUBJECTS_OF_A_SERVER = 3
DOWN_S = 2.0
STARTS_WITHIN_S = 120.0


@dataclass(frozen=True)
class Subject:
    """A server, and what happens in the middle of each load, and after it. `number`: among the subjects with this
    server."""

    server: Server
    number: int = 0
    happens: Callable[[], object] = lambda: None
    afterwards: Callable[[], object] = lambda: None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", default="", help="file for all that was measured")
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tierd-serving-")))
        results = measured(subjects(stack, folder), asked.rounds, folder)
    say(results, asked.json)


def subjects(stack: ExitStack, folder: Path) -> dict[str, Subject]:
    """All that is compared, each started and warm."""
    python = ENVIRONMENTS / "vllm" / "bin" / "python"
    model = with_tokenizer(Path(find_model(lambda _: None).directory), folder / "model")

    def server(python: Path, transfer: dict[str, Any] | None) -> Server:
        return stack.enter_context(serving(python, model, transfer, folder, ENGINE_BLOCKS))

    valkey = stack.enter_context(ExternalValkey(folder))
    daemon = stack.enter_context(serving_daemon(host_bytes=HOST_BYTES, spill=valkey.unix_url))
    with_tierd = server(python, spec(daemon.child, answer_ms=1_000))
    found = {
        "vLLM alone": Subject(server(python, None)),
        "vLLM with tierd": Subject(with_tierd),
        "tierd, daemon killed, back after 2 s": Subject(with_tierd, 1, lambda: kill_and_start(daemon)),
        "tierd, Redis stopped": Subject(with_tierd, 2, valkey.stop, valkey.start),
    }
    lmcache = ENVIRONMENTS / "lmcache" / "bin" / "lmcache"
    if lmcache.exists():
        port = stack.enter_context(lmcache_server(lmcache, folder))
        joined = joined_environment(folder / "joined", [python, lmcache])
        found["vLLM with LMCache"] = Subject(server(joined, {
            "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
                "lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}}))
    return found


def measured(subjects: Mapping[str, Subject], rounds: int, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What the load client found, by subject, round by round. No server is asked for the same prompts twice."""
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in subjects}
    for number in range(rounds):
        for name, subject in subjects.items():
            seed = SUBJECTS_OF_A_SERVER * number + subject.number
            results[name].append(subject.server.loaded(LOAD, seed, folder, subject.happens))
            subject.afterwards()
    return results


def kill_and_start(daemon: Daemon) -> None:
    daemon.child.kill()
    PAUSE.wait(DOWN_S)
    daemon.child.start()


@contextmanager
def lmcache_server(command: Path, folder: Path) -> Iterator[int]:
    """LMCache's multiprocess server; the connector that keeps blocks in the engine wants CUDA. Its port."""
    port, http_port = free_port(), free_port()
    words = [
        str(command), "server", "--host", "127.0.0.1", "--port", str(port),
        "--http-host", "127.0.0.1", "--http-port", str(http_port), "--chunk-size", str(BLOCK_TOKENS),
        "--l1-size-gb", str(LMCACHE_GIB), "--eviction-policy", "LRU", "--supported-transfer-mode", "auto",
        "--shm-name", f"tierd_serving_{port}",
    ]
    with (folder / "lmcache.log").open("w") as log:
        process = subprocess.Popen(words, stdout=log, stderr=log)
    try:
        await_port(port)
        yield port
    finally:
        process.terminate()
        process.wait(30)


def await_port(port: int) -> None:
    ends_at = time.monotonic() + STARTS_WITHIN_S
    while time.monotonic() < ends_at:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        PAUSE.wait(0.5)
    raise SystemExit(f"LMCache's server does not listen within {STARTS_WITHIN_S:.0f} s")


def joined_environment(folder: Path, executables: Sequence[Path]) -> Path:
    """The interpreter of an environment of others: of two versions of a package it has the first one's."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    tail = Path("lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    others = [str(executable.parents[1] / tail) for executable in executables]
    (folder / tail / "joined.pth").write_text("\n".join(others) + "\n")
    return folder / "bin" / "python"


def row(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One subject: requests of all rounds, of the figures the medians."""
    def of_rounds(name: str) -> float:
        return median(result[name] for result in results)

    return {
        "completed": sum(result["completed"] for result in results),
        "failed": sum(result["failed"] for result in results),
        "requests_per_s": of_rounds("request_throughput"), "ttft_median_s": of_rounds("median_ttft_ms") / 1e3,
        "ttft_mean_s": of_rounds("mean_ttft_ms") / 1e3, "ttft_p99_s": of_rounds("p99_ttft_ms") / 1e3,
        "found": of_rounds("found"),
    }


def say(results: Mapping[str, Sequence[Mapping[str, Any]]], file: str) -> None:
    rows = {name: row(of_subject) for name, of_subject in results.items()}
    about = {
        "machine": machine(), "load": asdict(LOAD), "engine_blocks": ENGINE_BLOCKS, "host_bytes": HOST_BYTES,
    }
    print("| served by | requests | errors | requests/s | TTFT median, s | mean | p99 | of prompts found outside |")
    print("|---|---|---|---|---|---|---|---|")
    for name, one in rows.items():
        print(f"| {name} | {one['completed']} | {one['failed']} | {one['requests_per_s']:.2f} | "
              f"{one['ttft_median_s']:.2f} | {one['ttft_mean_s']:.2f} | {one['ttft_p99_s']:.2f} | "
              f"{one['found']:.0%} |")
    print(f"\n{about}")
    if file:
        Path(file).write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
