"""One peer in a process of its own environment: `python peer_runner.py ADAPTER PLACE`.

It is told what to do by lines of JSON. Each line on standard input is {"do": verb, ...}; its answer is one line on
standard output, {"error": ...} where it failed. What a peer prints goes to standard error. Times are seconds on a
monotonic clock, CPU times of this process (`client`) and of all that it started (`server`), for timed calls alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from peer_adapter import Adapter, Block

POISON = 0xA5
LOOKUP_BLOCK_BYTES = 4096
LEAST_CALLS = 3

Call = Callable[[], Any]


class Clocks:
    """What calls took: `seconds` of each, CPU seconds and blocks of all."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.client_cpu_s = self.server_cpu_s = 0.0
        self.blocks = 0

    @contextmanager
    def cpu(self) -> Iterator[None]:
        client, servers = time.process_time(), cpu_of(descendants(os.getpid()))
        yield
        self.client_cpu_s += time.process_time() - client
        after = cpu_of(servers)
        self.server_cpu_s += sum(after[pid] - servers[pid] for pid in after)

    def run(self, calls: Sequence[Call], blocks_per_call: int, budget_s: float) -> int:
        """Times calls one by one until the budget is spent; how many there were."""
        began = time.perf_counter()
        with self.cpu():
            for done, call in enumerate(calls, 1):
                start = time.perf_counter()
                call()
                end = time.perf_counter()
                self.seconds.append(end - start)
                if end - began > budget_s and done >= LEAST_CALLS:
                    break
        self.blocks += done * blocks_per_call
        return done

    def keep(self, which: Sequence[bool], blocks_per_call: int) -> None:
        """Forgets the times of calls that did not do their work; their CPU time stays."""
        self.seconds = [second for second, kept in zip(self.seconds, which, strict=True) if kept]
        self.blocks = len(self.seconds) * blocks_per_call

    def share(self, wait: Call) -> None:
        """Adds what a wait for all calls took to each of them, in equal parts."""
        began = time.perf_counter()
        with self.cpu():
            wait()
        part = (time.perf_counter() - began) / len(self.seconds)
        self.seconds = [second + part for second in self.seconds]

    def as_json(self) -> dict[str, Any]:
        return vars(self)


class Group(NamedTuple):
    """The blocks of one call: ids in the peer's form, indices in our memory."""

    ids: Any
    indices: range


class Runner:
    """Does to one adapter what the driver says; one method per verb."""

    def __init__(self, adapter: Adapter, place: Path) -> None:
        self._adapter = adapter
        self._place = place
        self._next = 0
        self._order = random.Random(1)

    def start(self) -> dict[str, Any]:
        self._adapter.start(self._place)
        return {"version": self._adapter.version}

    def use(self, block_bytes: int, pool_blocks: int) -> dict[str, Any]:
        """Blocks of a size: as many sources of random bytes, and as many targets."""
        self._adapter.use(block_bytes)
        memory = self._adapter.buffers(2 * pool_blocks, block_bytes)
        self._sources, self._targets = memory[:pool_blocks], memory[pool_blocks:]
        random_bytes = np.random.default_rng(1)
        for block in self._sources:
            block[:] = random_bytes.integers(0, 256, block_bytes, np.uint8)
        return {}

    def round(self, per_call: int, budget_s: float) -> dict[str, Any]:
        """Puts new blocks and gets them in another random order; counts blocks that were not what was put."""
        put, groups = self._stored(self._adapter.put, per_call, budget_s)
        get, found, wrong = self._read(groups, per_call, budget_s)
        self._adapter.clear()
        answer = {"put": put.as_json(), "get": get.as_json(), "wrong": wrong, "missed": found.count(False)}
        return answer | self._queued(per_call, budget_s) if self._adapter.can_queue else answer

    def _queued(self, per_call: int, budget_s: float) -> dict[str, Any]:
        """Puts that do not wait; each bears its share of the wait for all. What is then not there is wrong."""
        queue, groups = self._stored(self._adapter.queue, per_call, budget_s)
        queue.share(self._adapter.flush)
        _, found, wrong = self._read(groups, per_call, budget_s)
        self._adapter.clear()
        return {"queue": queue.as_json(), "queue_wrong": wrong + found.count(False)}

    def _stored(self, store: Callable[..., Any], per_call: int, budget_s: float) -> tuple[Clocks, list[Group]]:
        """Stores new blocks in a random order, call by call."""
        clocks, groups = Clocks(), self._groups(per_call)
        done = clocks.run([self._call(store, group, self._sources) for group in groups], per_call, budget_s)
        return clocks, groups[:done]

    def _read(self, groups: list[Group], per_call: int, budget_s: float) -> tuple[Clocks, list[bool], int]:
        """Reads blocks in another order: which calls found theirs, how many blocks were not as they were put."""
        clocks, found = Clocks(), list[bool]()
        self._order.shuffle(groups)
        for target in self._targets:
            target[:] = POISON
        calls = [self._call(self._adapter.get_into, group, self._targets, found) for group in groups]
        done = clocks.run(calls, per_call, budget_s)
        wrong = sum(self._wrong_blocks(group) for group, was in zip(groups[:done], found, strict=True) if was)
        clocks.keep(found, per_call)
        return clocks, found, wrong

    def fill(self, count: int) -> dict[str, Any]:
        """One chain of small blocks, to be looked up."""
        self.use(LOOKUP_BLOCK_BYTES, count)
        self._chain = list(range(self._next, self._next + count))
        self._next += count
        self._adapter.put_chain(self._chain, self._sources)
        return {}

    def lookup(self, count: int, calls: int, budget_s: float) -> dict[str, Any]:
        """Whether the first blocks of the chain are there, and as many that are not."""
        clocks = Clocks()
        there = self._adapter.ids(self._chain[:count])
        answers: list[int] = []
        clocks.run([lambda: answers.append(self._adapter.exists(there))] * calls, count, budget_s)
        absent = self._adapter.exists(self._adapter.ids([self._next + n for n in range(count)]))
        return {"lookup": clocks.as_json(), "wrong": sum(a != count for a in answers) + (absent != 0)}

    def stop(self) -> dict[str, Any]:
        self._adapter.stop()
        return {}

    def _groups(self, per_call: int) -> list[Group]:
        """The calls of a round, in a random order, with new ids; each source says which one it is."""
        numbers = range(self._next, self._next + len(self._sources))
        self._next += len(self._sources)
        for source, number in zip(self._sources, numbers, strict=True):
            source[:8] = np.frombuffer(number.to_bytes(8, "little"), np.uint8)
        groups = [
            Group(self._adapter.ids(numbers[at : at + per_call]), range(at, at + per_call))
            for at in range(0, len(self._sources) - per_call + 1, per_call)
        ]
        self._order.shuffle(groups)
        return groups

    def _call(
        self, verb: Callable[..., Any], group: Group, memory: Sequence[Block], answers: list[Any] | None = None,
    ) -> Call:
        """One call to be timed; its answer is noted where somebody wants it."""
        blocks = [memory[index] for index in group.indices]
        if answers is None:
            return lambda: verb(group.ids, blocks)
        return lambda: answers.append(verb(group.ids, blocks))

    def _wrong_blocks(self, group: Group) -> int:
        return sum(not np.array_equal(self._sources[index], self._targets[index]) for index in group.indices)


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they did."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found, todo = [], [pid]
    while todo:
        mine = children.get(todo.pop(), [])
        found += mine
        todo += mine
    return found


def cpu_of(pids: Iterable[int]) -> dict[int, float]:
    """CPU seconds of each process that lives, by the kernel's clock of it (clock_getcpuclockid)."""
    seconds: dict[int, float] = {}
    for pid in pids:
        with suppress(OSError):
            seconds[pid] = time.clock_gettime((~pid << 3) | 2)
    return seconds


def end_all(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def serve(runner: Runner) -> None:
    """Answers line by line until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(runner, request.pop("do"))(**request)
        except Exception as error:  # whatever a peer raises is its answer
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(answer), file=answers)


def main(name: str, place: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent / "adapters"))
    try:
        serve(Runner(import_module(name).ADAPTER(), place))
    except Exception:
        traceback.print_exc()
    finally:
        end_all(descendants(os.getpid()))
        os._exit(0)  # some peers' threads never end


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
