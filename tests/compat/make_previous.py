"""Makes the fixture of the previous release: its client and its daemon as zip files that Python imports from.

    python tests/compat/make_previous.py [COMMIT]

After a release: set PREVIOUS to its commit, run this, and commit what it wrote. A commit always gives the same
bytes.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from io import BytesIO
from pathlib import Path

PREVIOUS = "2ab8f09b1c8212d36aea7f2f697ab5c89499acae"
"""The spine: the last commit whose wire and formats users had before the whole surface."""

HERE = Path(__file__).parent
CLIENT, DAEMON = HERE / "previous" / "client.zip", HERE / "previous" / "daemon.zip"
LEFT_OUT = ("tierd/demo/", "tierd/testing/", "tierd/sim/")
"""Of the daemon: what serves nobody."""

OLDER_TOOLS = (
    (b"    7,\n    35,\n    1,\n", b"    6,\n    31,\n    1,\n"),
    (b"GRPC_GENERATED_VERSION = '1.85.1'", b"GRPC_GENERATED_VERSION = '1.78.0'"),
)
"""What stubs ask of the environment, and what today's does: older tools make the same of the rest."""

EPOCH = (1980, 1, 1, 0, 0, 0)


def packed(commit: str, folder: str, strip: str = "") -> bytes:
    """The Python files of a folder at a commit as a zip file, without the leading `strip` of their names."""
    out = BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in _git("ls-tree", "-r", "--name-only", "--full-tree", commit, folder).decode().splitlines():
            if name.endswith(".py") and not name.startswith(LEFT_OUT):
                source = _git("show", f"{commit}:{name}")
                for asked, granted in OLDER_TOOLS:
                    source = source.replace(asked, granted)
                archive.writestr(zipfile.ZipInfo(name.removeprefix(strip), EPOCH), source, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, check=True).stdout


def main() -> None:
    commit = sys.argv[1] if len(sys.argv) > 1 else PREVIOUS
    for path, folder, strip in ((CLIENT, "clients/tierd_client", "clients/"), (DAEMON, "tierd", "")):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(packed(commit, folder, strip))
        print(f"{path.name}: {path.stat().st_size:,} bytes of {commit[:12]}")


if __name__ == "__main__":
    main()
