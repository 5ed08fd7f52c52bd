"""What every command that talks to a daemon shares: its options, the connection, ids, filters, progress."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tierd.places import default_address
from tierd_client import Client
from tierd_client.format import IDENTITY_BYTES
from tierd_client.outcomes import Tier

QUIET_S = 2.0
"""How long a command may work before it shows that it does."""

Address = Annotated[
    str | None,
    typer.Option(help="unix:///PATH or HOST:PORT of the daemon. Default: $TIERD_ADDRESS, else the default socket."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Identities: 64 hexadecimal digits each.")]
NamespaceOption = Annotated[int, typer.Option("--namespace", help="Only this namespace's number; 0: any.")]
TierFilter = Annotated[str | None, typer.Option("--tier", help="Only blocks with a copy in hbm, host or spill.")]
PrefixOption = Annotated[str, typer.Option("--prefix", help="Only identities that begin with these hex digits.")]
TimeoutOption = Annotated[float, typer.Option("--timeout-s", help="How long to wait for all of it, seconds.")]


def connect(address: str | None) -> Client:
    """A client for control alone: it maps no memory. Raises ConnectFailed within two seconds."""
    return Client(address or default_address(), name="tierd command line", shared_memory="never")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which blocks a command is about."""

    namespace: int = 0
    tier: Tier | None = None
    prefix: bytes = b""

    @classmethod
    def parse(cls, namespace: int, tier: str | None, prefix: str) -> Filter:
        if namespace < 0:
            raise typer.BadParameter(f"{namespace} is no namespace's number", param_hint="--namespace")
        if not re.fullmatch(r"([0-9a-fA-F]{2}){0,32}", prefix):
            raise typer.BadParameter("not an even number of up to 64 hex digits", param_hint="--prefix")
        return cls(namespace, parse_tier(tier, "--tier") if tier else None, bytes.fromhex(prefix))


def parse_ids(texts: Iterable[str] | None) -> list[bytes]:
    """Identities as written on the command line."""
    found = []
    for text in texts or ():
        if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * IDENTITY_BYTES}}}", text):
            raise typer.BadParameter(f"{text!r} is not {2 * IDENTITY_BYTES} hexadecimal digits", param_hint="IDS")
        found.append(bytes.fromhex(text))
    return found


def parse_tier(text: str, option: str) -> Tier:
    try:
        return Tier[text.upper()]
    except KeyError:
        raise typer.BadParameter(f"{text!r} is not hbm, host or spill", param_hint=option) from None


@contextmanager
def progress(label: str, total: int | None = None) -> Iterator[Progress]:
    """A bar on stderr, shown once two seconds have passed; its one task is number 0.

    A timer shows it, so that it comes also while a single call waits.
    """
    console = Console(stderr=True)
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console, transient=True,
    )
    bar.add_task(label, total=total)
    timer = threading.Timer(QUIET_S, bar.start)
    timer.daemon = True
    if console.is_terminal:
        timer.start()
    try:
        yield bar
    finally:
        timer.cancel()
        bar.stop()
