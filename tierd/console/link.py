"""What every command that talks to a daemon shares: its options, the connection, ids, filters, progress."""

from __future__ import annotations

import functools
import inspect
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tierd_client import Client, InvalidArgument, Tls
from tierd_client.admin import BlockFilter
from tierd_client.arguments import address as check_address
from tierd_client.format import IDENTITY_BYTES
from tierd_client.outcomes import Tier
from tierd_client.places import default_address

SHORTEST_ID_BYTES = 4
"""Of the beginning of an identity that stands for it."""
QUIET_S = 2.0
"""How long a command may work before it shows that it does."""

Address = Annotated[
    str | None,
    typer.Option(help="unix:///PATH or HOST:PORT of the daemon. Default: $TIERD_ADDRESS, else the default socket."),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout.")]
Ids = Annotated[
    list[str] | None,
    typer.Argument(help="Identities, or their first digits, as `tierd blocks` lists them."),
]
TimeoutOption = Annotated[float, typer.Option("--timeout-s", help="How long to wait for all of it, seconds.")]


def connect(address: str | None) -> Client:
    """A client for control alone: it maps no memory. Raises ConnectFailed within two seconds.

    For TCP, files that the environment names: a token, authorities to believe the daemon's certificate (which
    mean TLS), and a certificate of one's own with its key.
    """
    token, roots, certificate, key = map(_content, (
        "TIERD_TOKEN_FILE", "TIERD_ROOTS_FILE", "TIERD_CLIENT_CERT_FILE", "TIERD_CLIENT_KEY_FILE",
    ))
    try:
        target = check_address(address or default_address(), "address")
    except InvalidArgument as error:
        raise typer.BadParameter(str(error), param_hint="--address or TIERD_ADDRESS") from None
    return Client(
        target, name="tierd command line", shared_memory="never",
        token=(token or b"").decode().strip(), tls=Tls(roots, certificate, key) if roots or certificate else None,
    )


def _content(variable: str) -> bytes | None:
    """Of the file that a variable of the environment names; None where it is not set."""
    path = os.environ.get(variable)
    try:
        return Path(path).read_bytes() if path else None
    except OSError as error:
        raise typer.BadParameter(f"{path}: {error.strerror}", param_hint=variable) from None


_FILTER_OPTIONS: dict[str, tuple[Any, Any]] = {
    "namespace": (int, typer.Option("--namespace", min=0, max=65_535, help="Only of this number; 0: any.")),
    "model": (str, typer.Option("--model", help="Only namespaces of this model.")),
    "revision": (str, typer.Option("--revision", help='Only of this revision; "" is none.')),
    "weights_epoch": (int, typer.Option("--epoch", min=0, help="Only of this weights epoch.")),
    "weights_epoch_below": (int, typer.Option("--epoch-below", min=0, help="Only of earlier weights epochs.")),
    "tenant": (str, typer.Option("--tenant", help='Only of this tenant, see `tierd namespaces`; "" is none.')),
    "group": (int, typer.Option("--group", min=0, help="Only the group of this number in its namespace.")),
    "tier": (str, typer.Option("--tier", help="Only blocks with a copy in hbm, host or spill.")),
    "prefix": (str, typer.Option("--prefix", help="Only identities that begin with these hex digits.")),
    "older_than_s": (float, typer.Option("--older-than-s", min=0, help="Only not accessed for so many seconds.")),
}
"""By the names of BlockFilter; each is None when it is not given."""


def filtered(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of a filter; what is given of them comes to it as `where`."""

    @functools.wraps(command)
    def run(**given: Any) -> None:
        options = {name: given.pop(name) for name in _FILTER_OPTIONS}
        command(where=_parse_filter({name: one for name, one in options.items() if one is not None}), **given)

    keyword = inspect.Parameter.KEYWORD_ONLY
    own = inspect.signature(command, eval_str=True).parameters.values()
    parameters = [one.replace(kind=keyword) for one in own if one.name != "where"] + [
        inspect.Parameter(name, keyword, default=None, annotation=Annotated[kind | None, how])
        for name, (kind, how) in _FILTER_OPTIONS.items()
    ]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def _parse_filter(given: dict[str, Any]) -> BlockFilter:
    if "tier" in given:
        given["tier"] = parse_tier(given["tier"], "--tier")
    if "prefix" in given:
        if not re.fullmatch(r"([0-9a-fA-F]{2}){0,32}", given["prefix"]):
            raise typer.BadParameter("not an even number of up to 64 hex digits", param_hint="--prefix")
        given["prefix"] = bytes.fromhex(given["prefix"])
    return cast(BlockFilter, given)


def parse_ids(texts: Iterable[str] | None) -> list[bytes]:
    """Identities as written on the command line, or the first bytes of them."""
    found = []
    for text in texts or ():
        if not re.fullmatch(rf"([0-9a-fA-F]{{2}}){{{SHORTEST_ID_BYTES},{IDENTITY_BYTES}}}", text):
            digits = f"an even number of {2 * SHORTEST_ID_BYTES} to {2 * IDENTITY_BYTES} hexadecimal digits"
            raise typer.BadParameter(f"{text!r} is not {digits}, as `tierd blocks` has them", param_hint="IDS")
        found.append(bytes.fromhex(text))
    return found


def whole_ids(client: Client, ids: Iterable[bytes]) -> list[bytes]:
    """The identities that begin so; of those that are not whole there must be one each that the daemon knows."""
    return [one if len(one) == IDENTITY_BYTES else _only_one(client, one) for one in ids]


def _only_one(client: Client, beginning: bytes) -> bytes:
    found = list(islice(client.admin.list_blocks(prefix=beginning, page_size=2), 2))
    if len(found) != 1:
        problem = "more than one block begins" if found else "no block begins"
        raise typer.BadParameter(f"{problem} with {beginning.hex()}", param_hint="IDS")
    return found[0].identity


def parse_tier(text: str, option: str) -> Tier:
    try:
        return Tier[text.upper()]
    except KeyError:
        raise typer.BadParameter(f"{text!r} is not hbm, host or spill", param_hint=option) from None


def parse_bytes(text: str, option: str) -> int:
    """A size such as 512MiB."""
    from tierd.settings import parse_size

    try:
        return int(str(parse_size(text)))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


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
