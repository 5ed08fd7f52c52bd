"""`tierd doctor`: whether this machine has what `tierd serve` with the same settings needs."""

from __future__ import annotations

import inspect
import os
from collections import Counter
from pathlib import Path
from typing import Any

import typer

from tierd.config import SettingsError, load
from tierd.console.answers import print_json
from tierd.console.link import AsJson
from tierd.console.serve import setting_parameters
from tierd.core.errors import InvalidInput
from tierd.core.policy.registry import parse
from tierd.doctor.checks import Finding, Severity, examine
from tierd.doctor.facts import CudaFacts, Facts, SpillFacts
from tierd.doctor.machine import look_at_machine, look_at_shm, look_at_state
from tierd.doctor.secrets import look_at_secrets
from tierd.plugins import offer_policies
from tierd.settings import Settings

PROCESS_BYTES = 256 << 20
"""The daemon without arenas and tables: 150 MB, and room for messages under way."""
CUDA_PROCESS_BYTES = 2 << 30
"""What torch and a CUDA context take of host memory beside it."""


def doctor(config: Path | None, as_json: bool, **flags: Any) -> None:
    """Whether this machine has what `tierd serve` needs: memory, limits, directories, the spill server, the GPU.

    Takes the settings of `serve`, from flags, TIERD_* variables and the file alike, and changes nothing. Run it as
    the daemon's user: limits and rights are those of whoever asks. One finding a line: ok, note, warning or error;
    what was measured; what to do. Exits 1 when there is an error.
    """
    try:
        settings = load(flags, os.environ, config)
        offer_policies()
        parse(settings.policy)
    except (SettingsError, InvalidInput) as error:
        raise typer.BadParameter(str(error)) from None
    findings = examine(gather(settings, config))
    if as_json:
        print_json(findings)
    else:
        _print(findings)
    if any(one.severity is Severity.ERROR for one in findings):
        raise typer.Exit(1)


def gather(settings: Settings, config: Path | None) -> Facts:
    """Looks at everything that the settings want. `config`: the file that some of them come from."""
    from tierd.wiring import embedded_bytes, memory_plan

    kind = settings.spill.get_secret_value()
    own = PROCESS_BYTES
    own += embedded_bytes(settings) if kind == "embedded" else settings.spill_bytes_max if kind == "memory" else 0
    cuda = _cuda(settings)
    return Facts(
        settings=settings,
        shm_bytes=sum(file.size for file in memory_plan(settings).files().values()),
        process_bytes=own if cuda is None else own + CUDA_PROCESS_BYTES,
        shm=look_at_shm(settings), machine=look_at_machine(), state=look_at_state(settings),
        secrets=look_at_secrets(settings, config),
        spill=_spill(settings), cuda=cuda, embedded=_embedded_problem() if kind == "embedded" else "",
    )


def _spill(settings: Settings) -> SpillFacts | None:
    if "://" not in settings.spill.get_secret_value():
        return None
    from tierd.doctor.server import look_at_spill

    return look_at_spill(settings)


def _cuda(settings: Settings) -> CudaFacts | None:
    if not settings.hbm_bytes or settings.hbm_device == "cpu":
        return None
    from tierd.doctor.cuda import look_at_cuda

    return look_at_cuda()


def _embedded_problem() -> str:
    from tierd.adapters.spill_embedded import server_binary
    from tierd.core.errors import Unavailable

    try:
        server_binary()
    except Unavailable as error:
        return str(error)
    return ""


def _print(findings: list[Finding]) -> None:
    for one in findings:
        advice = f"; {one.advice}" if one.advice else ""
        typer.echo(f"{one.severity.value:<8}{one.check}: {one.measured}{advice}")
    counts = Counter(one.severity for one in findings)
    typer.echo("\n" + ", ".join(f"{one.value}: {counts[one]}" for one in reversed(Severity)))


def _parameters() -> list[inspect.Parameter]:
    """The flags of `serve`, and --json."""
    json = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=AsJson)
    return [*setting_parameters(), json]


doctor.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]
doctor.__annotations__ = {one.name: one.annotation for one in _parameters()}
