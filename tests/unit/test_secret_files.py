"""Files of tokens and certificates: what is read, and what is refused without a word of its content."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme

from tierd.adapters.secret_files import TOKENS_MAX, check_certificate, read_secret, read_tokens
from tierd.core.errors import InvalidInput

TOKEN = b"0123456789abcdef"


def write(directory: Path, content: bytes, name: str = "file") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


def test_tokens_are_read_by_line(tmp_path: Path) -> None:
    """Each line is a token; empty lines, comments and blanks at the ends do not count."""
    path = write(tmp_path, b"# of the workers\n\n  " + TOKEN + b" \r\n" + TOKEN[::-1] + b"\n")
    assert read_tokens(path, "data_token_file") == (TOKEN, TOKEN[::-1])


@pytest.mark.parametrize(("content", "problem"), [
    (b"", "is empty"), (b" \n", "is empty"), (b"# nothing\n", "has 0 tokens"), (TOKEN[:15], ":1: not a token"),
    (TOKEN + b"\nwith a space in it", ":2: not a token"), (b"x" * 513, "not a token"),
    (b"\xff" * 20, "not a token"),
    (b"\n".join(b"%016d" % number for number in range(TOKENS_MAX + 1)), f"has {TOKENS_MAX + 1} tokens"),
    (b"x" * ((1 << 20) + 1), "more than 1048576 bytes"),
])
def test_tokens_that_are_none(tmp_path: Path, content: bytes, problem: str) -> None:
    """A file that does not hold tokens is refused by setting, path and line, and its content is not told."""
    path = write(tmp_path, content)
    with pytest.raises(InvalidInput) as caught:
        read_tokens(path, "data_token_file")
    text = str(caught.value)
    assert text.startswith("data_token_file") and str(path) in text and problem in text
    assert TOKEN[:15].decode() not in text and "space in" not in text


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The setting, the path and the reason are named."""
    with pytest.raises(InvalidInput, match=r"admin_token_file: .*/none: No such file"):
        read_secret(tmp_path / "none", "admin_token_file")


def test_certificates_are_tried_at_the_start(tmp_path: Path) -> None:
    """A certificate with its key passes; garbage, another certificate's key and no authority are named."""
    authority = trustme.CA()
    one, other = authority.issue_cert("a"), authority.issue_cert("b")
    certificate = write(tmp_path, one.cert_chain_pems[0].bytes(), "cert")
    key = write(tmp_path, one.private_key_pem.bytes(), "key")
    stray = write(tmp_path, other.private_key_pem.bytes(), "stray")
    garbage = write(tmp_path, b"garbage", "garbage")
    check_certificate(certificate, key, write(tmp_path, authority.cert_pem.bytes(), "ca"))
    for wrong in ((garbage, key), (certificate, garbage), (certificate, stray), (certificate, tmp_path / "none")):
        with pytest.raises(InvalidInput, match="tls_cert_file"):
            check_certificate(*wrong, None)
    with pytest.raises(InvalidInput, match="tls_client_ca_file"):
        check_certificate(certificate, key, garbage)
