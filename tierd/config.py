"""The only reader of settings: flags, environment, file, defaults.

A flag `--host-bytes`, a variable `TIERD_HOST_BYTES` and a key `host_bytes` of the TOML file are the same
setting; the first of them that is given wins. Whatever is unknown or impossible is a SettingsError that
names the setting and where it was given.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tierd.core.errors import TierdError
from tierd.settings import Settings

ENV_PREFIX = "TIERD_"
NOT_SETTINGS = re.compile(
    "TIERD_(ADDRESS|TOKEN_FILE|ROOTS_FILE|CLIENT_(CERT|KEY)_FILE|CONFIG|TRACES|SERVICE_(HOST|PORT.*)|PORT(_.*)?)"
)
"""Variables with the prefix that are none: the client's, the tests', and those that Kubernetes sets in every
pod beside a service called tierd."""

class SettingsError(TierdError):
    """A setting that is unknown or impossible; the text names it and where it was given."""


def load(flags: Mapping[str, Any], environ: Mapping[str, str], config: Path | None = None) -> Settings:
    """Settings of a start. `flags` by setting name, None where not given. Raises SettingsError."""
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for given, origin_of in (_from_file(config), _from_environment(environ), _from_flags(flags)):
        values |= given
        origins |= origin_of
    for name in values:
        if name not in Settings.model_fields:
            raise SettingsError(f"{origins[name]}: unknown setting {name!r}{_did_you_mean(name)}")
    try:
        return Settings(**values)
    except ValidationError as error:
        raise SettingsError("; ".join(_described(one, origins) for one in error.errors())) from None


Given = tuple[dict[str, Any], dict[str, str]]
"""Values by setting, and where each was given."""


def _from_file(config: Path | None) -> Given:
    if config is None:
        return {}, {}
    try:
        text = config.read_text()
        values = tomllib.loads(text)
    except OSError as error:
        raise SettingsError(f"config: {config}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"config: {config}: {error}") from error
    return values, {name: f"{config}:{_line_of(name, text)}" for name in values}


def _line_of(name: str, text: str) -> int:
    pattern = re.compile(rf"""\s*\[*\s*["']?{re.escape(name)}\b""")
    return next((n for n, line in enumerate(text.splitlines(), 1) if pattern.match(line)), 1)


def _from_environment(environ: Mapping[str, str]) -> Given:
    values, origins = {}, {}
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX) and not NOT_SETTINGS.fullmatch(variable):
            name = variable.removeprefix(ENV_PREFIX).lower()
            values[name], origins[name] = value, f"environment {variable}"
    return values, origins


def _from_flags(flags: Mapping[str, Any]) -> Given:
    values = {name: value for name, value in flags.items() if value is not None and value != []}
    return values, {name: f"--{name.replace('_', '-')}" for name in values}


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name.lower().replace("-", "_"), Settings.model_fields, 1)
    return f", did you mean {close[0]!r}?" if close else ""


def _described(error: Any, origins: Mapping[str, str]) -> str:
    """One pydantic error in words that name setting and origin, without its input (it may be a secret)."""
    problem = str(error["msg"]).removeprefix("Value error, ")
    if not error["loc"]:
        named = problem.split(":")[0]
        return f"{origins[named]}: {problem}" if named in origins else problem
    name = str(error["loc"][0])
    if error["type"] == "greater_than_equal":
        problem = f"{error['input']} is too small: at least {error['ctx']['ge']}{_as_unit(name)}"
    elif error["type"] == "less_than_equal":
        problem = f"{error['input']} is too large: at most {error['ctx']['le']}{_as_unit(name)}"
    origin = origins.get(name)
    return f"{origin}: {name}: {problem}" if origin else f"{name}: {problem}"


def _as_unit(name: str) -> str:
    return " bytes (one block or 4 KiB page); write sizes such as 512MiB" if "_bytes" in name else ""
