"""Engines as processes of their own (vllm_engine.py), for the tests of vLLM."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

ANSWERS_WITHIN_S = 600.0


class Engine:
    """vllm_engine.py as a process; one line there, one back."""

    def __init__(
        self, python: Path, model: str, transfer: dict[str, Any] | None, processes: bool, options: dict[str, Any],
    ) -> None:
        script = Path(__file__).with_name("vllm_engine.py")
        command = [str(python), str(script), model, json.dumps(transfer or {}), json.dumps(options)]
        environment = os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes))}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment, start_new_session=True)
        self.log: list[str] = []
        threading.Thread(target=self._read_log, daemon=True).start()
        self._answer("ready")

    def ask(self, command: str) -> Any:
        """The answer to a command, by its first word."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer(command.split()[0])

    def generate(self, first: int, count: int, **hints: Any) -> dict[str, Any]:
        """What the engine answers to a prompt of `count` tokens of the text from token `first` on."""
        answer: dict[str, Any] = self.ask(f"generate {first} {count} {json.dumps(hints) if hints else ''}")
        return answer

    def together(self, count: int, new: int, *firsts: int) -> list[dict[str, Any]]:
        """What it answers with `new` tokens each to prompts of `count` tokens that it gets at once."""
        answers: list[dict[str, Any]] = self.ask(f"together {count} {new} {' '.join(map(str, firsts))}")
        return answers

    def end(self) -> None:
        """Ends it with its children."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, 9)
            self._process.wait()

    def _answer(self, name: str) -> Any:
        assert self._process.stdout is not None
        guard = threading.Timer(ANSWERS_WITHIN_S, self._process.kill)
        guard.start()
        try:
            for line in self._process.stdout:
                if line.startswith("{") and name in (said := json.loads(line)):
                    return said[name]
        finally:
            guard.cancel()
        raise AssertionError(f"no answer to {name}; the engine's log:\n{''.join(self.log[-60:])}")

    def _read_log(self) -> None:
        assert self._process.stderr is not None
        self.log.extend(self._process.stderr)


class StartEngine:
    """`start(transfer)`: an engine with that KV transfer configuration; all are ended with the test."""

    def __init__(self, python: Path, model: str) -> None:
        self._python, self._model = python, model
        self.engines: list[Engine] = []

    def __call__(self, transfer: dict[str, Any] | None, *, processes: bool = False, **options: Any) -> Engine:
        """`processes`: scheduler and worker in processes of their own. `options`: of vLLM's engine."""
        self.engines.append(Engine(self._python, self._model, transfer, processes, options))
        return self.engines[-1]

    def end(self) -> None:
        """Ends all that were started."""
        for engine in self.engines:
            engine.end()
