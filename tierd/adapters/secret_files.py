"""Secrets that lie in files: bearer tokens, certificates and keys. Their contents appear in no message."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

from tierd.core.errors import InvalidInput

TOKENS_MAX = 64
FILE_BYTES_MAX = 1 << 20
_TOKEN = re.compile(rb"[\x21-\x7e]{16,512}")


def read_secret(path: Path, setting: str) -> bytes:
    """The whole file. InvalidInput naming the setting when it cannot be read, is empty or is too large."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(setting, f"{path}: {error.strerror}") from error
    if not content.strip() or len(content) > FILE_BYTES_MAX:
        problem = "is empty" if len(content) <= FILE_BYTES_MAX else f"has more than {FILE_BYTES_MAX} bytes"
        raise InvalidInput(setting, f"{path} {problem}")
    return content


def check_certificate(certificate: Path, key: Path, client_ca: Path | None) -> None:
    """Whether TLS can be served with these files; InvalidInput names the setting of the one that is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password=lambda: b"")
    except (OSError, ValueError) as error:
        raise InvalidInput("tls_cert_file", f"{certificate} with key {key}: {error}") from error
    try:
        if client_ca is not None:
            context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        raise InvalidInput("tls_client_ca_file", f"{client_ca}: {error}") from error


def read_tokens(path: Path, setting: str) -> tuple[bytes, ...]:
    """One token a line; empty lines and those that begin with # do not count. Several, so that one can be replaced
    while clients still use the other. InvalidInput names the line, never what is in it."""
    lines = [(number, line.strip()) for number, line in enumerate(read_secret(path, setting).splitlines(), 1)]
    tokens = [(number, line) for number, line in lines if line and not line.startswith(b"#")]
    for number, token in tokens:
        if not _TOKEN.fullmatch(token):
            raise InvalidInput(setting, f"{path}:{number}: not a token: 16 to 512 printable characters, no spaces")
    if not 1 <= len(tokens) <= TOKENS_MAX:
        raise InvalidInput(setting, f"{path} has {len(tokens)} tokens, not 1 to {TOKENS_MAX}")
    return tuple(token for _, token in tokens)
