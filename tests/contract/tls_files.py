"""A certificate authority for tests, a server's certificate and a client's."""

from __future__ import annotations

import ssl
from pathlib import Path
from urllib.parse import quote

import trustme


class TlsFiles:
    """Files in PEM of a new authority: its own certificate, and what a client shows."""

    def __init__(self, directory: Path, host: str = "127.0.0.1") -> None:
        """host: name or address that the server's certificate is for."""
        authority = trustme.CA()
        client = authority.issue_cert("tierd@client.example")
        self._authority = authority
        self._server = authority.issue_cert(host)
        self.ca = directory / "ca.pem"
        self.certificate = directory / "client.pem"
        self.key = directory / "client.key"
        authority.cert_pem.write_to_path(str(self.ca))
        client.cert_chain_pems[0].write_to_path(str(self.certificate))
        client.private_key_pem.write_to_path(str(self.key))

    def server_context(self, *, client_certificate: bool = True) -> ssl.SSLContext:
        """The server's side; with `client_certificate` it wants one of the same authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.configure_cert(context)
        if client_certificate:
            self._authority.configure_trust(context)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def options(self) -> str:
        """What a URL says about them."""
        return "&".join(f"{name}={quote(str(path))}" for name, path in (
            ("ssl_ca_certs", self.ca), ("ssl_certfile", self.certificate), ("ssl_keyfile", self.key),
        ))
