"""Where a daemon's socket is when nobody says otherwise; daemon, command line and engines must agree on it."""

from __future__ import annotations

import os
from pathlib import Path

ADDRESS_VARIABLE = "TIERD_ADDRESS"
SOCKET_NAME = "tierd.sock"


def default_state_dir() -> Path:
    """/run/tierd for root, else the user's runtime directory, else one in /tmp that only the user enters."""
    if os.geteuid() == 0 and os.access("/run", os.W_OK):
        return Path("/run/tierd")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "tierd" if runtime else Path(f"/tmp/tierd-{os.geteuid()}")


def default_address() -> str:
    """Of the daemon to talk to: $TIERD_ADDRESS, else the socket in the default state directory."""
    return os.environ.get(ADDRESS_VARIABLE) or f"unix://{default_state_dir()}/{SOCKET_NAME}"
