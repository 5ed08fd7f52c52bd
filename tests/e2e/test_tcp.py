"""A daemon on TCP with TLS and tokens, as a client and the command line elsewhere use it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from os import environ
from pathlib import Path

import numpy as np
import pytest
import trustme

from tierd.testing.serve import ServeProcess, StartDaemon
from tierd_client import AccessDenied, AsyncClient, Client, ConnectFailed, InvalidArgument, Layout, PutOutcome, Tls

BLOCK_BYTES = 5 << 20
LAYOUT = Layout.opaque(block_bytes=BLOCK_BYTES)
DATA, ADMIN = "data-token-0123456789", "admin-token-0123456789"


@dataclass
class Secured:
    """A daemon, and what its clients need."""

    daemon: ServeProcess
    address: str
    tls: Tls
    files: Path


@pytest.fixture
def secured(daemon: StartDaemon, tmp_path: Path) -> Iterator[Secured]:
    authority = trustme.CA()
    own, shown = authority.issue_cert("127.0.0.1"), authority.issue_cert("worker")
    contents = {
        "cert": own.cert_chain_pems[0], "key": own.private_key_pem, "ca": authority.cert_pem,
        "client_cert": shown.cert_chain_pems[0], "client_key": shown.private_key_pem,
    }
    for name, blob in contents.items():
        blob.write_to_path(tmp_path / name)
    (tmp_path / "data").write_text(DATA + "\n")
    (tmp_path / "admin").write_text(ADMIN + "\n")
    one = daemon(
        listen=["unix://" + str(tmp_path / "s"), "127.0.0.1:0"], data_token_file=tmp_path / "data",
        admin_token_file=tmp_path / "admin", tls_cert_file=tmp_path / "cert", tls_key_file=tmp_path / "key",
        tls_client_ca_file=tmp_path / "ca",
    )
    address = one.event("listening")["addresses"][1]
    tls = Tls(*(contents[name].bytes() for name in ("ca", "client_cert", "client_key")))
    yield Secured(one, address, tls, tmp_path)
    assert DATA not in one.log and ADMIN not in one.log


def test_blocks_go_by_streams_with_a_token(secured: Secured) -> None:
    """With a data token blocks are stored and read, by either twin; the control plane wants the admin token."""
    value = np.random.default_rng(1).integers(0, 256, BLOCK_BYTES, np.uint8)
    with Client(secured.address, token=DATA, tls=secured.tls, shared_memory="never") as client:
        ns = client.namespace(LAYOUT)
        assert list(ns.put([b"a"], [value])) == [PutOutcome.STORED]
        assert (np.asarray(ns.get([b"a"])[0]) == value).all()
        with pytest.raises(AccessDenied, match="Clear needs an admin token"):
            client.admin.clear()
    with Client(secured.address, token=ADMIN, tls=secured.tls, shared_memory="never") as client:
        assert client.admin.clear().host_blocks == 1

    async def body() -> None:
        async with AsyncClient(secured.address, token=DATA, tls=secured.tls, shared_memory="never") as client:
            ns = await client.namespace(LAYOUT)
            assert list(await ns.put([b"b"], [value])) == [PutOutcome.STORED]
            assert (np.asarray((await ns.get([b"b"]))[0]) == value).all()

    asyncio.run(body())


def test_others_are_kept_out(secured: Secured) -> None:
    """Without a token or with another one AccessDenied, at once; without TLS or a certificate no connection."""
    for token in ("", "another-token-0123456789"):
        with pytest.raises(AccessDenied) as caught:
            Client(secured.address, token=token, tls=secured.tls, shared_memory="never")
        assert not token or token not in str(caught.value)
    for tls in (None, Tls(secured.tls.roots), Tls()):
        with pytest.raises(ConnectFailed):
            Client(secured.address, token=DATA, tls=tls, shared_memory="never", connect_timeout_s=0.5)


def test_credentials_that_are_none() -> None:
    """A token with a line break, and half of a certificate, are refused before anything is sent."""
    for wrong in ({"token": "a\nb"}, {"token": "ä" * 20}, {"token": "x" * 513}, {"tls": Tls(certificate=b"x")}):
        with pytest.raises(InvalidArgument, match=next(iter(wrong))):
            Client("127.0.0.1:1", **wrong)  # type: ignore[arg-type]


def test_the_command_line_has_credentials_from_files(secured: Secured) -> None:
    """`tierd` uses the files that the environment names; without them it is told what is missing."""
    names = {"TOKEN_FILE": "admin", "ROOTS_FILE": "ca", "CLIENT_CERT_FILE": "client_cert",
             "CLIENT_KEY_FILE": "client_key"}
    given = {f"TIERD_{name}": str(secured.files / file) for name, file in names.items()}

    def tierd(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tierd.cli", "stats", "--address", secured.address]
        return subprocess.run(
            command, env=environ | given | more, capture_output=True, text=True, timeout=30, check=False
        )

    assert "serving" in tierd().stdout
    denied = tierd(TIERD_TOKEN_FILE=str(secured.files / "data"))
    assert denied.returncode == 1 and "Occupancy needs an admin token" in denied.stderr
    assert tierd(TIERD_TOKEN_FILE="/nowhere").returncode == 2
