"""`tierd serve`: a flag per setting, made from the settings themselves."""

from __future__ import annotations

import inspect
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.markup import escape

from tierd.app import logs
from tierd.cli import EXIT_ERROR, EXIT_USAGE
from tierd.config import SettingsError, load
from tierd.core.errors import InvalidInput, TierdError
from tierd.settings import Settings

REPEATABLE = ("listen",)
SWITCHES = ("insecure",)


def serve(config: Path | None, **flags: Any) -> None:
    """Run the daemon until SIGTERM or SIGINT.

    A flag wins over its TIERD_* variable, that over the file, that over the default. Logs go to stderr; the
    line READY says that it takes calls. Exits 0 after an orderly stop, 2 when a setting is wrong, 1 on any other
    error. Shared memory is kept for the next start.
    """
    signal.signal(signal.SIGTERM, _leave)
    try:
        settings = load(flags, os.environ, config)
        logs.configure(settings.log_level.value, settings.log_format.value == "json")
        _run(settings)
    except (SettingsError, InvalidInput) as error:
        _fail(error, EXIT_USAGE)
    except (TierdError, OSError) as error:
        _fail(error, EXIT_ERROR)


def _run(settings: Settings) -> None:
    from tierd.wiring import serve as run

    try:
        run(settings)
    except ExceptionGroup as group:
        expected, others = group.split((TierdError, OSError))
        if others is not None or expected is None:
            raise
        raise _first(expected) from group


def _first(group: ExceptionGroup[Any]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def _fail(error: Exception, status: int) -> NoReturn:
    typer.echo(f"tierd serve: {error}", err=True)
    sys.exit(status)


def _leave(_number: int, _frame: FrameType | None) -> None:
    """A SIGTERM before the event loop runs: nothing is served yet, so unwinding is all there is to do."""
    sys.exit(0)


def setting_parameters() -> list[inspect.Parameter]:
    """--config and a flag per setting. Values stay text: the settings parse them, so that every source means the
    same."""
    file = typer.Option(envvar="TIERD_CONFIG", help="TOML file with settings.")
    given: list[tuple[str, Any, Any]] = [("config", Annotated[Path | None, file], None)]
    for name, field in Settings.model_fields.items():
        kind: Any = str | None
        if name in SWITCHES:
            kind = bool | None
        elif name in REPEATABLE:
            kind = list[str] | None
        text = escape(field.description or "")  # it may speak of redis[s]://
        option = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False)
        given.append((name, Annotated[kind, option], None))
    keyword = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, keyword, default=value, annotation=kind) for name, kind, value in given]


serve.__signature__ = inspect.Signature(setting_parameters())  # type: ignore[attr-defined]
serve.__annotations__ = {one.name: one.annotation for one in setting_parameters()}
