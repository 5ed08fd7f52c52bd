"""The command that attaches, detaches and switches the spill store of a running daemon."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import typer

from tierd.console.answers import print_json
from tierd.console.link import Address, AsJson, TimeoutOption, connect, progress


class Action(StrEnum):
    ATTACH = "attach"
    DETACH = "detach"
    SWITCH = "switch"


def spill(
    action: Annotated[Action, typer.Argument(help="attach where there is none, switch to another, or detach.")],
    url: Annotated[str, typer.Argument(help='As the setting `spill`; "-" reads it from stdin, out of sight.')] = "",
    timeout_s: TimeoutOption = 10.0, address: Address = None, as_json: AsJson = False,
) -> None:
    """Change the spill store while the daemon runs. What only the old one held is forgotten and stays there; a
    restart goes by the settings again."""
    if (action is Action.DETACH) == bool(url):
        raise typer.BadParameter("detach takes none, attach and switch take one", param_hint="URL")
    url = sys.stdin.readline().strip() if url == "-" else url
    with connect(address) as client, progress(action.value):
        if action is Action.DETACH:
            forgotten = client.admin.detach_spill()
        else:
            forgotten = client.admin.attach_spill(url, replace=action is Action.SWITCH, timeout_s=timeout_s)
    if as_json:
        print_json({"forgotten_blocks": forgotten})
    else:
        typer.echo(f"done; {forgotten} blocks of the store before were forgotten")
