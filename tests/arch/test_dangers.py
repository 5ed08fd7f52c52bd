"""What may not be written anywhere: code that data could run, waits and skips without a reason."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from source_tree import imports_of, name_of, sources, tree_of

EXECUTES_DATA = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}
EXECUTES_TEXT = {"eval", "exec", "compile", "__import__"}
LOADS_PICKLES = {("torch", "load"), ("pickle", "loads"), ("numpy", "load"), ("np", "load")}
SLEEPS_BLOCKING = {("time", "sleep")}

CODE = sources("tierd", "clients")
TESTS = sources("tests")


def calls_of(path: Path) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call))


def dotted(call: ast.Call) -> tuple[str, str]:
    """("torch", "load") of torch.load(...); the first is empty for a plain name."""
    if isinstance(call.func, ast.Attribute):
        return (call.func.value.id if isinstance(call.func.value, ast.Name) else "?", call.func.attr)
    return "", call.func.id if isinstance(call.func, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((one.value for one in call.keywords if one.arg == name), None)


def where(path: Path, call: ast.AST) -> str:
    return f"{name_of(path)}:{getattr(call, 'lineno', 0)}"


def test_nothing_unpickles() -> None:
    """No module imports a format whose values can run code."""
    assert not [name_of(path) for path in CODE for one in imports_of(path) if one.package in EXECUTES_DATA]


def test_nothing_evaluates_text() -> None:
    """Nothing calls eval, exec, compile or __import__."""
    calls = ((path, call) for path in CODE for call in calls_of(path))
    assert not [where(path, call) for path, call in calls if _is_plain(call) and dotted(call)[1] in EXECUTES_TEXT]


def _is_plain(call: ast.Call) -> bool:
    return not dotted(call)[0]


def test_arrays_are_loaded_without_pickle() -> None:
    """torch.load is not used, and numpy.load only with allow_pickle=False."""
    risky = [(path, call) for path in CODE for call in calls_of(path) if dotted(call) in LOADS_PICKLES]
    assert not [where(path, call) for path, call in risky if not _refuses_pickle(call)]


def _refuses_pickle(call: ast.Call) -> bool:
    said = keyword(call, "allow_pickle")
    return isinstance(said, ast.Constant) and said.value is False


def test_nothing_swallows_every_error() -> None:
    """No handler catches everything and does nothing with it."""
    handlers = [
        (path, node) for path in CODE for node in ast.walk(tree_of(path)) if isinstance(node, ast.ExceptHandler)
    ]
    assert not [where(path, one) for path, one in handlers if _is_broad(one) and _does_nothing(one)]


def _is_broad(handler: ast.ExceptHandler) -> bool:
    names = ast.unparse(handler.type) if handler.type is not None else "Exception"
    return bool(re.search(r"\b(Base)?Exception\b", names))


def _does_nothing(handler: ast.ExceptHandler) -> bool:
    return all(isinstance(one, ast.Pass | ast.Continue) for one in handler.body)


def test_no_globals() -> None:
    """Nothing declares a global: state belongs to an object that somebody made."""
    nodes = ((path, node) for path in CODE for node in ast.walk(tree_of(path)))
    assert not [where(path, node) for path, node in nodes if isinstance(node, ast.Global)]


def test_queues_are_bounded() -> None:
    """No queue is made without a size."""
    calls = ((path, call) for path in CODE for call in calls_of(path))
    queues = [(path, call) for path, call in calls if dotted(call)[1] in ("Queue", "SimpleQueue")]
    assert not [where(path, call) for path, call in queues if not call.args and keyword(call, "maxsize") is None]


def test_tasks_belong_to_a_group() -> None:
    """Nothing starts a task and forgets it: tasks are made by a task group."""
    calls = ((path, call) for path in CODE for call in calls_of(path))
    tasks = [(path, call) for path, call in calls if dotted(call)[1] in ("create_task", "ensure_future")]
    assert not [where(path, call) for path, call in tasks if "group" not in dotted(call)[0]]


def test_no_waiting_by_sleep_in_tests() -> None:
    """No test waits by time.sleep: it awaits the condition."""
    assert not [where(path, call) for path in TESTS for call in calls_of(path) if dotted(call) in SLEEPS_BLOCKING]


def test_skips_have_reasons() -> None:
    """Every skip and expected failure says why (importorskip says it by itself)."""
    marks = [
        (path, call) for path in sources("tests", "tierd/testing") for call in calls_of(path)
        if dotted(call)[1] in ("skip", "skipif", "xfail")
    ]
    assert not [where(path, call) for path, call in marks if not _has_reason(call)]
    assert not [where(path, one) for path in TESTS for one in _decorators(path) if _is_bare_mark(one)]


def _has_reason(call: ast.Call) -> bool:
    said = keyword(call, "reason")
    return said is not None or (dotted(call)[1] == "skip" and bool(call.args))


def _decorators(path: Path) -> Iterator[ast.expr]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return (one for node in ast.walk(tree_of(path)) if isinstance(node, kinds) for one in node.decorator_list)


def _is_bare_mark(decorator: ast.expr) -> bool:
    """`@pytest.mark.skip` without a call, so without a reason."""
    return isinstance(decorator, ast.Attribute) and decorator.attr in ("skip", "xfail")
