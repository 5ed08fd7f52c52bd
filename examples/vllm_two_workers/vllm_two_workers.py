"""Two vLLM engines, each a process of its own, on one daemon: what one has computed the other one reads.

The first engine reads a page, the second answers from the first one's prefill. While the second reads another page
the daemon is killed: it computes the page, and its answer is the one that the first engine comes to. The daemon is
started again: it still has the first page, and the engines share what comes next.

    python examples/vllm_two_workers/vllm_two_workers.py --vllm VENV/bin/python [--model DIRECTORY]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tierd.bench.stage import Daemon, serving
from tierd.demo.model import find_model
from tierd.demo.text import real_pages
from tierd_client import Tier

ENVIRONMENTS = Path(os.environ.get("TIERD_CLIENTS_DIR") or Path.home() / ".cache" / "tierd-clients")
PAGE_TOKENS = 650
BLOCK_TOKENS = 32
STORED_WITHIN_S = FOUND_AGAIN_WITHIN_S = 30.0
KILLED_AFTER_S = 0.5
"""Of a prompt that takes seconds to be computed."""


class Engine:
    """engine.py as a process, which ends when its input does."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name = name
        self._process = process

    def ask(self, prompt: list[int]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(prompt) + "\n")
        self._process.stdin.flush()

    def said(self) -> dict[str, Any]:
        """The next line that is one of engine.py's."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
        raise SystemExit(f"{self.name} has ended with status {self._process.wait()}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm", default=str(ENVIRONMENTS / "vllm" / "bin" / "python"),
                        help="Python of the environment with vLLM and tierd-client")
    parser.add_argument("--model", default="", help="directory of a Hugging Face model")
    asked = parser.parse_args()
    model = asked.model or find_model(lambda _: None).directory
    shared, unfinished, next_one = pages(model)
    with ExitStack() as stack:
        daemon = stack.enter_context(serving(host_bytes="512MiB"))
        first, second = engines = [
            stack.enter_context(engine(name, asked.vllm, model, daemon.child.address))
            for name in ("first", "second")]
        for one in engines:
            one.said()
        one_reads_what_the_other_computed(daemon, first, second, shared)
        the_daemon_is_killed(daemon, first, second, unfinished)
        the_daemon_is_back(daemon, first, second, next_one)


def one_reads_what_the_other_computed(daemon: Daemon, first: Engine, second: Engine, prompt: list[int]) -> None:
    computed = answered(first, prompt, "computes a page")
    await_blocks(daemon, len(prompt) // BLOCK_TOKENS)
    read = answered(second, prompt, "is asked about the same page")
    check(read["found"] > len(prompt) // 2, "the second engine answers from the first one's prefill")
    check(read["answer"] == computed["answer"], "both answers are the same")


def the_daemon_is_killed(daemon: Daemon, first: Engine, second: Engine, prompt: list[int]) -> None:
    second.ask(prompt)
    time.sleep(KILLED_AFTER_S)
    daemon.child.kill()
    without = told(second, second.said(), "reads a page while the daemon is killed")
    check(answered(first, prompt, "computes that page, without a daemon")["answer"] == without["answer"],
          "both answers are the same")


def the_daemon_is_back(daemon: Daemon, first: Engine, second: Engine, prompt: list[int]) -> None:
    daemon.child.start()
    kept = blocks(daemon)
    check(kept >= PAGE_TOKENS // BLOCK_TOKENS, f"the daemon, started again, still has {kept} blocks")
    for number in range(int(FOUND_AGAIN_WITHIN_S)):  # an engine looks for it every second
        varied = [*prompt[number:], *prompt[:number]]
        computed = answered(first, varied, "computes one page more")
        if await_blocks(daemon, kept + len(prompt) // BLOCK_TOKENS, within_s=2.0):
            break
    read = answered(second, varied, "is asked about it")
    check(read["found"] > len(varied) // 2, "the engines share blocks again")
    check(read["answer"] == computed["answer"], "both answers are the same")


def pages(model: str) -> list[list[int]]:
    """Three pages of real text as token ids; none has a beginning in common with another."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    texts = sorted(real_pages().values(), key=len)[-3:]
    return [tokenizer.encode(text).ids[:PAGE_TOKENS] for text in texts]


@contextmanager
def engine(name: str, python: str, model: str, address: str) -> Iterator[Engine]:
    command = [python, str(Path(__file__).with_name("engine.py")), model, address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Engine(name, process)


def answered(engine: Engine, prompt: list[int], does: str) -> dict[str, Any]:
    engine.ask(prompt)
    return told(engine, engine.said(), does)


def told(engine: Engine, answer: dict[str, Any], does: str) -> dict[str, Any]:
    print(f"{engine.name:6} {does:42} {answer['found']:4} of {answer['prompt']} tokens found, "
          f"{answer['seconds']:.2f} s", flush=True)
    return answer


def blocks(daemon: Daemon) -> int:
    with daemon.client() as client:
        return client.admin.occupancy().tiers[Tier.HOST].blocks


def await_blocks(daemon: Daemon, count: int, within_s: float = STORED_WITHIN_S) -> bool:
    """Engines store beside their work. Whether there are so many."""
    ends_at = time.monotonic() + within_s
    while blocks(daemon) < count and time.monotonic() < ends_at:
        time.sleep(0.05)
    return blocks(daemon) >= count


def check(what: bool, name: str) -> None:
    print(f"       {'yes' if what else 'NO'}: {name}", flush=True)
    if not what:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
