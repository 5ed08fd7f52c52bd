"""The sources as the tests of the house look at them: parsed, never imported."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GENERATED = "v1"
"""Stubs of gRPC; nobody wrote them."""

BUILT = "build"
"""What `pip install ./clients` leaves: copies."""


@dataclass(frozen=True)
class Import:
    """One imported module of a file. `lazy`: inside a function, so that only its callers pay for it.
    `for_types`: under `if TYPE_CHECKING`, so that nobody does."""

    module: str
    lazy: bool
    for_types: bool

    @property
    def package(self) -> str:
        return self.module.split(".")[0]

    @property
    def ships_with_python(self) -> bool:
        return self.package in sys.stdlib_module_names


@cache
def sources(*folders: str) -> tuple[Path, ...]:
    """Python files of folders of the repository, without generated and built ones."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    skipped = {GENERATED, BUILT}
    return tuple(sorted(path for path in found if skipped.isdisjoint(path.relative_to(ROOT).parts)))


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def name_of(path: Path) -> str:
    """As it is called in messages: relative to the repository."""
    return str(path.relative_to(ROOT))


@cache
def imports_of(path: Path) -> tuple[Import, ...]:
    """All imports of a file."""
    return tuple(_imports(tree_of(path), lazy=False, for_types=False))


def _imports(node: ast.AST, *, lazy: bool, for_types: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, lazy, for_types) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute, so that a reader sees the layer"
            yield from (Import(name, lazy, for_types) for name in _names(child))
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        yield from _imports(child, lazy=lazy or inside, for_types=for_types or typing)


def _names(statement: ast.ImportFrom) -> list[str]:
    """`from a import b` as a.b where that is a module of ours, else as a."""
    module = statement.module or ""
    whole = [f"{module}.{alias.name}" for alias in statement.names]
    return [name if _is_module(name) else module for name in whole]


def _is_module(name: str) -> bool:
    place = ROOT.joinpath(*name.split("."))
    client = (ROOT / "clients").joinpath(*name.split("."))
    return any(path.with_suffix(".py").exists() or path.is_dir() for path in (place, client))


def functions_of(path: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of each function, the decorators not counted."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            yield node.name, node.end_lineno - node.lineno + 1


def lines_of(*folders: str) -> int:
    return sum(len(path.read_text().splitlines()) for path in sources(*folders))
