"""Looks at the files that hold secrets: whether the daemon can use them, and whether others can read them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

from tierd.adapters.secret_files import check_certificate, read_tokens
from tierd.core.errors import InvalidInput
from tierd.doctor.facts import SecretFacts
from tierd.settings import Settings

TOKEN_FILES = ("data_token_file", "admin_token_file")


def look_at_secrets(settings: Settings, config: Path | None) -> SecretFacts:
    """`config`: the TOML file that was read, if one was."""
    secret = [path for path in (*_token_files(settings).values(), settings.tls_key_file) if path is not None]
    if config is not None and _has_password(config):
        secret.append(config)
    return SecretFacts(tuple(_problems(settings)), tuple(str(path) for path in secret if _readable_by_others(path)))


def _token_files(settings: Settings) -> dict[str, Path | None]:
    return {name: getattr(settings, name) for name in TOKEN_FILES}


def _problems(settings: Settings) -> Iterator[str]:
    """What keeps the daemon from using them, in its own words."""
    for name, path in _token_files(settings).items():
        try:
            if path is not None:
                read_tokens(path, name)
        except InvalidInput as error:
            yield str(error)
    try:
        if settings.tls_cert_file is not None and settings.tls_key_file is not None:
            check_certificate(settings.tls_cert_file, settings.tls_key_file, settings.tls_client_ca_file)
    except InvalidInput as error:
        yield str(error)


def _has_password(config: Path) -> bool:
    """Whether the spill URL in a file of settings holds a login."""
    return "@" in str(tomllib.loads(config.read_text()).get("spill", ""))


def _readable_by_others(path: Path) -> bool:
    """A file that is not there is told elsewhere."""
    return path.exists() and bool(path.stat().st_mode & 0o044)
