"""How the code is cut: lengths of functions, names of files, how much of it is tests."""

from __future__ import annotations

import ast
from pathlib import Path

from source_tree import ROOT, functions_of, lines_of, name_of, sources, tree_of

FITS_A_SCREEN = 34
NEVER_ABOVE = 70
NEVER_ABOVE_IN_FILE = 600
DRAWERS = {"utils", "util", "helpers", "helper", "common", "misc", "shared", "manager", "base_utils"}
TEST_STUFF = "tierd/testing"
"""Contract suites, faulty stores and the simulated machine: tests that are shipped for others to run."""

CODE = sources("tierd", "clients")
EVERYTHING = sources("tierd", "clients", "tests", "proto")


def test_functions_fit_a_screen() -> None:
    """Nine functions in ten have at most 34 lines, and none more than 70."""
    lengths = [(lines, f"{name_of(path)}:{name}") for path in CODE for name, lines in functions_of(path)]
    long = [one for one in lengths if one[0] > FITS_A_SCREEN]
    assert not [one for one in lengths if one[0] > NEVER_ABOVE]
    assert 10 * len(long) <= len(lengths)


def test_functions_of_tests_are_bounded_too() -> None:
    """No function of the tests has more than 70 lines."""
    assert not [
        f"{name_of(path)}:{name}" for path in sources("tests") for name, lines in functions_of(path)
        if lines > NEVER_ABOVE
    ]


def test_files_can_be_read_in_one_sitting() -> None:
    """No file of the product has more than 600 lines."""
    product = [path for path in CODE if not name_of(path).startswith(TEST_STUFF)]
    assert not [name_of(path) for path in product if len(path.read_text().splitlines()) > NEVER_ABOVE_IN_FILE]


def test_no_drawers() -> None:
    """No module is named for holding whatever has no other place."""
    assert not [name_of(path) for path in EVERYTHING if path.stem in DRAWERS or path.parent.name in DRAWERS]


def test_every_module_says_what_it_is() -> None:
    """Each module begins with a sentence that says what it is, or has nothing in it."""
    assert not [name_of(path) for path in EVERYTHING if path.read_text().strip() and not _says_something(path)]


def _says_something(path: Path) -> bool:
    return bool((ast.get_docstring(tree_of(path)) or "").strip())


def test_every_test_says_what_would_be_false() -> None:
    """Each test has a docstring: the sentence that is false when it fails."""
    tests = [
        (path, node) for path in sources("tests") for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    ]
    assert not [f"{name_of(path)}:{node.name}" for path, node in tests if not ast.get_docstring(node)]


def test_tests_are_as_long_as_the_code() -> None:
    """There are at least as many lines of tests, with what is shipped for testing, as of everything else."""
    shipped = lines_of(TEST_STUFF)
    assert lines_of("tests") + shipped >= lines_of("tierd", "clients") - shipped


def test_no_shadowed_tests() -> None:
    """No two modules of tests have one name: pytest imports them by it."""
    special = ("conftest.py", "__init__.py", "__main__.py")
    names = [path.name for path in sources("tests") if path.name not in special]
    assert len(names) == len(set(names))


def test_sources_are_where_they_are_found() -> None:
    """The folders that these tests read exist."""
    assert all((ROOT / folder).is_dir() for folder in ("tierd", "clients", "tests", "proto", TEST_STUFF))
