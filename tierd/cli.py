"""The command line: one name per command, each loaded when it is used.

`tierd --help` must not cost the import of grpc, pydantic or numpy, so this module knows of each command only
its name, its one-line help and where it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

import typer

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("tierd.console.serve:serve", "Run the daemon."),
    "stats": ("tierd.console.show:stats", "Bytes and blocks per tier."),
    "namespaces": ("tierd.console.show:namespaces", "What each namespace, or tenant, has in each tier."),
    "sequences": ("tierd.console.show:sequences", "Running requests, and what of their hbm budgets is used."),
    "blocks": ("tierd.console.show:blocks", "List blocks, by filter."),
    "explain": ("tierd.console.show:explain", "Why a block stands where it stands in the order of eviction."),
    "plan": ("tierd.console.show:plan", "Dry run: what would go if so many bytes were needed."),
    "config": ("tierd.console.show:config", "The settings in force of a running daemon."),
    "evict": ("tierd.console.change:evict", "Move blocks down, or drop them."),
    "readmit": ("tierd.console.change:readmit", "Move blocks up."),
    "pin": ("tierd.console.change:pin", "Protect blocks from being dropped, until a time."),
    "unpin": ("tierd.console.change:unpin", "End pins before their time."),
    "spill": ("tierd.console.spill:spill", "Attach, detach or switch the spill store of a running daemon."),
    "clear": ("tierd.console.change:clear", "Remove blocks, by filter."),
    "drain": ("tierd.console.change:drain", "Store in the spill tier what lies above it alone."),
    "verify": ("tierd.console.change:verify", "Compare stored bytes with their checksums."),
    "doctor": ("tierd.console.doctor:doctor", "Whether this machine has what the daemon needs."),
    "size": ("tierd.console.size:size_command", "Bytes of a model's blocks, and what a tier holds of it."),
    "sim": ("tierd.sim.command:sim", "Replay a trace by policies; `sim attention`, `sim compare`."),
    "sim compare": ("tierd.sim.compare_command:compare", "Policies over several traces and capacities."),
    "sim attention": ("tierd.sim.attention_command:attention", "Replay attention through policies over tokens."),
    "calibrate": ("tierd.sim.calibrate_command:calibrate", "Which policy and parameters serve a trace."),
    "bench": ("tierd.bench.command:bench", "How near to the limits of this machine it works."),
    "eval": ("tierd.eval.command:evaluate", "What budgets of tokens cost in quality, with a real model."),
    "demo": ("tierd.demo.command:demo", "See it at work on this machine."),
}

EXIT_ERROR = 1
EXIT_USAGE = 2

app = typer.Typer(
    name="tierd", add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False,
    help="Multi-tier KV-cache offload daemon: HBM, host memory and Redis.",
)


@app.callback(invoke_without_command=True)
def _version(
    version: bool = typer.Option(False, "--version", help="Print the version and exit.", is_eager=True),
) -> None:
    if version:
        from importlib.metadata import version as of

        typer.echo(f"tierd {of('tierd')}")
        raise typer.Exit


def _passing_on(name: str) -> Callable[[typer.Context], None]:
    """A command that hands its arguments, unread, to its function with a parser of its own; where the first of them
    makes the name of another command, to that one's."""

    def run(context: typer.Context) -> None:
        longer = " ".join([name, *context.args[:1]])
        called, args = (longer, context.args[1:]) if longer in COMMANDS else (name, context.args)
        module, function = COMMANDS[called][0].split(":")
        inner = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        inner.command()(getattr(import_module(module), function))
        inner(args=args, prog_name=f"tierd {called}")

    return run


for _name, (_, _help) in COMMANDS.items():
    if " " not in _name:
        _unread = {"ignore_unknown_options": True, "allow_extra_args": True}
        app.command(_name, help=_help, add_help_option=False, context_settings=_unread)(_passing_on(_name))


def main() -> None:
    """Entry point. Expected errors are one line on stderr and status 1, wrong usage is status 2."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except _expected() as error:
        typer.echo(f"tierd: {error}{_advice(error)}", err=True)
        sys.exit(EXIT_ERROR)


def _advice(error: Exception) -> str:
    from tierd_client.errors import ConnectFailed

    if not isinstance(error, ConnectFailed):
        return ""
    return "; `tierd serve` starts one, --address or TIERD_ADDRESS names another"


def _expected() -> tuple[type[Exception], ...]:
    """Errors that are told in one line; imported once one has happened."""
    from tierd.core.errors import TierdError
    from tierd_client.errors import TierdClientError

    return (TierdError, TierdClientError)


if __name__ == "__main__":
    main()
