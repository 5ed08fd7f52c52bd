"""Mutants of the core: one small wrong change each, and whether the core's tests notice.

    python tests/mutation/mutate.py --count 60 --seed 1

A seeded sample of all places where `tierd/core` could be changed is drawn, each place by itself, so that a change
of the code elsewhere leaves a sample as it is. Each mutant is written into a private copy of the sources and the
fast tests of the core run against it, up to the first failure. A mutant that makes them fail, or run past the time
limit, is killed. Not mutated: docstrings, annotations, decorators, the texts of errors, enum declarations, string
constants.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]
CORE = Path("tierd/core")
COPIED = ("tierd", "clients", "tests", "pyproject.toml")
TESTS = (
    "tests/unit/core", "tests/unit/test_lrfu_vectors.py", "tests/unit/test_victims_heads.py",
    "tests/contract/test_policies.py", "tests/model", "tests/sim",
)
HANGS_S = 60
"""A test that takes longer has lost its way."""
NOT_LOGIC = ("messages.py", "errors.py")
"""Declarations only: nothing there decides anything."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.BitXor: ast.BitOr,
}


@dataclass(frozen=True)
class Mutant:
    """One change: of the `node`-th node of a file's tree, the `variant`-th way to get it wrong."""

    file: Path
    node: int
    variant: int
    line: int
    what: str
    place: str
    """The line it is in and the changed expression, as text: what stays when code elsewhere changes."""

    def lot(self, seed: int) -> bytes:
        """What is drawn for it: the lowest lots make the sample."""
        text = f"{seed}\0{self.file}\0{self.place}\0{self.variant}"
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.what}"


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    how: str
    seconds: float
    diff: str

    @property
    def killed(self) -> bool:
        return self.how != "survived"


# --- which changes there are --------------------------------------------------------------------------


def mutants_of(file: Path) -> Iterator[Mutant]:
    """All mutants of one source file."""
    source = (ROOT / file).read_text()
    lines, met = source.splitlines(), Counter[str]()
    for number, node in enumerate(_logic_nodes(ast.parse(source))):
        if not (variants := _variants(node)):
            continue
        line = getattr(node, "lineno", 0)
        text = f"{lines[line - 1].strip()}\0{ast.unparse(node)}"
        place = f"{text}\0{met[text]}"
        met[text] += 1
        for variant, what in enumerate(variants):
            yield Mutant(file, number, variant, line, what, place)


def mutated_source(file: Path, mutant: Mutant) -> str:
    tree = ast.parse((ROOT / file).read_text())
    _Apply(list(_logic_nodes(tree))[mutant.node], mutant.variant).visit(tree)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def _logic_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Nodes of a tree in a fixed order, without those that decide nothing."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _skipped(child):
                yield child
                yield from _logic_nodes(child)


def _skipped(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom | ast.JoinedStr):
        return True
    if isinstance(node, ast.ClassDef):
        return any(getattr(base, "id", "") in ("IntEnum", "Enum", "Protocol") for base in node.bases)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    return isinstance(node, ast.Constant) and isinstance(node.value, str | bytes | None | type(...))


def _variants(node: ast.AST) -> list[str]:
    """The ways in which one node can be got wrong, in words; `_changed` makes them."""
    if isinstance(node, ast.Compare):
        return ["comparison"] if type(node.ops[0]) in COMPARISONS else []
    if isinstance(node, ast.BoolOp):
        return ["and/or"]
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in ARITHMETIC:
        return ["arithmetic"] + (["dropped statement"] if isinstance(node, ast.AugAssign) else [])
    if isinstance(node, ast.UnaryOp):
        return ["sign or negation"] if isinstance(node.op, ast.Not | ast.USub | ast.Invert) else []
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        return ["negated condition"]
    if isinstance(node, ast.Constant):
        return ["constant"] if isinstance(node.value, bool) else ["constant + 1", "constant - 1"]
    return ["dropped statement"] if _droppable(node) else []


def _droppable(node: ast.AST) -> bool:
    """Statements whose loss leaves a program that still runs; not the first binding of a local name."""
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    return isinstance(node, ast.Expr | ast.Continue | ast.Break)


class _Apply(ast.NodeTransformer):
    """Replaces one node, found by identity, by its changed form."""

    def __init__(self, target: ast.AST, variant: int) -> None:
        self.target = target
        self.variant = variant

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.target:
            return _changed(node, self.variant)
        return self.generic_visit(node)


def _changed(node: ast.AST, variant: int) -> ast.AST:
    what = _variants(node)[variant]
    node = copy.copy(node)
    if what == "dropped statement":
        return ast.Pass()
    if isinstance(node, ast.Compare):
        node.ops = [COMPARISONS[type(node.ops[0])](), *node.ops[1:]]
    elif isinstance(node, ast.BoolOp):
        node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    elif isinstance(node, ast.BinOp | ast.AugAssign):
        node.op = ARITHMETIC[type(node.op)]()
    elif isinstance(node, ast.UnaryOp):
        return node.operand
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        node.test = ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Constant):
        node.value = _other_value(node.value, variant)
    return node


def _other_value(value: object, variant: int) -> object:
    if isinstance(value, bool):
        return not value
    assert isinstance(value, int | float)
    return value + 1 if variant == 0 else value - 1


# --- whether the tests notice -------------------------------------------------------------------------


class Workshop:
    """A private copy of the sources in which one mutant at a time is tried."""

    def __init__(self, folder: Path, tests: list[str]) -> None:
        self.folder = folder
        self.tests = tests
        for name in COPIED:
            source, target = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy(source, target)
        for file in core_files():
            (folder / file).write_text(ast.unparse(ast.parse((ROOT / file).read_text())) + "\n")

    def run_tests(self, limit_s: float) -> tuple[str, float]:
        """`survived`, `failed` or `timeout`, and the seconds that it took."""
        environment = dict(
            os.environ, PYTHONPATH=f"{self.folder}:{self.folder / 'clients'}", PYTHONDONTWRITEBYTECODE="1",
            TIERD_TEST_EFFORT="fast",
        )
        environment.pop("TIERD_TRACES", None)
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"--timeout={HANGS_S}"]
        started = time.monotonic()
        process = subprocess.Popen(
            command + self.tests, cwd=self.folder, env=environment, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        try:
            self.output, _ = process.communicate(timeout=limit_s)
            how = "survived" if process.returncode == 0 else "failed"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            how = "timeout"
        return how, time.monotonic() - started

    def check_isolation(self) -> None:
        """Refuses to go on when the tests would import another tree than this copy."""
        environment = dict(os.environ, PYTHONPATH=f"{self.folder}:{self.folder / 'clients'}")
        found = subprocess.run(
            [sys.executable, "-c", "import tierd.core; print(tierd.core.__file__)"],
            cwd=self.folder, env=environment, capture_output=True, text=True, check=True,
        ).stdout.strip()
        if not Path(found).is_relative_to(self.folder):
            raise SystemExit(f"the tests would import {found}, not the copy in {self.folder}")

    def judge(self, mutant: Mutant, limit_s: float) -> Verdict:
        path = self.folder / mutant.file
        original = path.read_text()
        changed = mutated_source(mutant.file, mutant)
        path.write_text(changed)
        try:
            how, seconds = self.run_tests(limit_s)
        finally:
            path.write_text(original)
        name = str(mutant.file)
        diff = difflib.unified_diff(original.splitlines(), changed.splitlines(), name, name, "", "", 3, "")
        return Verdict(mutant, how, seconds, "\n".join(diff))


def core_files() -> list[Path]:
    found = sorted((ROOT / CORE).rglob("*.py"))
    return [path.relative_to(ROOT) for path in found if path.name not in NOT_LOGIC]


def judge_all(mutants: list[Mutant], tests: list[str], jobs: int) -> list[Verdict]:
    """Tries each mutant, `jobs` at a time; prints a line for each."""
    with tempfile.TemporaryDirectory(prefix="tierd-mutants-") as name:
        shops = [Workshop(Path(name) / str(number), tests) for number in range(jobs)]
        shops[0].check_isolation()
        how, baseline_s = shops[0].run_tests(1800.0)
        if how != "survived":
            raise SystemExit(f"the tests fail without a mutant:\n{shops[0].output}")
        limit_s = 60.0 + 3.0 * baseline_s * jobs
        print(f"unchanged sources pass in {baseline_s:.0f} s; limit {limit_s:.0f} s a mutant", flush=True)
        idle: SimpleQueue[Workshop] = SimpleQueue()
        for shop in shops:
            idle.put(shop)

        def judge(mutant: Mutant) -> Verdict:
            shop = idle.get()
            try:
                verdict = shop.judge(mutant, limit_s)
            finally:
                idle.put(shop)
            print(f"{verdict.how:9} {verdict.seconds:5.0f} s  {mutant}", flush=True)
            return verdict

        with ThreadPoolExecutor(jobs) as pool:
            return list(pool.map(judge, mutants))


def main() -> int:
    parser = argparse.ArgumentParser(description="Mutants of tierd/core, and whether the tests notice them.")
    parser.add_argument("--count", type=int, default=60, help="mutants to try")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--at-least", type=int, default=0, help="exit with 1 when fewer are killed")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--only", default="", help="only files whose path contains this")
    parser.add_argument("tests", nargs="*", default=list(TESTS), help="what pytest runs")
    arguments = parser.parse_args()
    every = [m for file in core_files() if arguments.only in str(file) for m in mutants_of(file)]
    chosen = sorted(every, key=lambda mutant: mutant.lot(arguments.seed))[: arguments.count]
    print(f"{len(chosen)} of {len(every)} mutants, seed {arguments.seed}", flush=True)
    verdicts = judge_all(chosen, arguments.tests, arguments.jobs)
    for verdict in verdicts:
        if not verdict.killed:
            print(f"\nsurvived: {verdict.mutant}\n{verdict.diff}")
    killed = sum(verdict.killed for verdict in verdicts)
    print(f"\n{killed} of {len(verdicts)} mutants killed")
    return 0 if killed >= arguments.at_least else 1


if __name__ == "__main__":
    raise SystemExit(main())
