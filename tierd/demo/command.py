"""`tierd demo`: everything at work on this machine, in one command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from tierd.demo.model import SYNTHETIC, Kind, ModelSource, find_model, tokenizer_of
from tierd.demo.report import Result, show
from tierd.demo.rounds import CONVERSATIONS, STEPS, Plot
from tierd.demo.stage import DemoFailed, Stage
from tierd.demo.text import conversations
from tierd.interrupts import terminated_as_interrupt


def demo(
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Random tensors instead of a model: under 30 seconds.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Runs the daemon, a Valkey and two workers with a language model, and shows what they save each other.

    Status 0 when every byte, record and logit came out as it must, else 1.
    """
    with _bar() as (bar, task), terminated_as_interrupt():
        result = _run(synthetic, bar, task)
    if as_json:
        typer.echo(result.as_json())
    else:
        show(result, Console())
    if result.failures():
        raise typer.Exit(1)


def _run(synthetic: bool, bar: Progress, task: TaskID) -> Result:
    source = _source(synthetic, bar, task)
    talks = conversations(tokenizer_of(source), CONVERSATIONS)
    bar.update(task, total=STEPS, completed=0)
    done = iter(range(STEPS))

    def step(what: str) -> None:
        bar.update(task, description=what, completed=next(done, STEPS))

    with Stage() as stage:
        return Plot(stage, source, talks, step).run()


def _source(synthetic: bool, bar: Progress, task: TaskID) -> ModelSource:
    if synthetic:
        return ModelSource(Kind.SYNTHETIC, SYNTHETIC, reason="random tensors: neither prefill nor logits")
    _check_imports()
    bar.update(task, description="converting the model (once)", total=1)
    source = find_model(lambda share: bar.update(task, completed=share))
    if source.reason:
        bar.console.print(f"[yellow]{source.name}: {source.reason}[/]")
    return source


def _check_imports() -> None:
    """Before anything is started. The workers import them; this process never does."""
    import importlib.util

    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise DemoFailed(f"{' and '.join(missing)} missing: pip install 'tierd[demo]', or tierd demo --synthetic")


@contextmanager
def _bar() -> Iterator[tuple[Progress, TaskID]]:
    """Progress on stderr."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True),
        transient=True,
    )
    with bar:
        yield bar, bar.add_task("looking for a model", total=None)

