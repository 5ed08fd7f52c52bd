"""Generates the stubs in clients/tierd_client/v1 from proto/. `--check DIR` writes them to DIR instead.

The stubs live in the client's package, not in one named like the proto package (`tierd`, which is the
daemon), so their imports are rewritten.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
STUBS = ROOT.parent / "clients" / "tierd_client" / "v1"
NAMES = ("blocks", "lending", "admin")


def generate(target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = [f"-I{ROOT}", f"--python_out={scratch}", f"--pyi_out={scratch}", f"--grpc_python_out={scratch}"]
        status = protoc.main(["protoc", *arguments, *(f"tierd/v1/{name}.proto" for name in NAMES)])
        if status != 0:
            raise SystemExit(f"protoc failed with {status}")
        for path in sorted(Path(scratch, "tierd", "v1").iterdir()):
            text = path.read_text().replace("from tierd.v1 import", "from tierd_client.v1 import")
            (target / path.name).write_text(text)
    (target / "__init__.py").write_text('"""Generated from proto/tierd/v1 by `make proto`."""\n')


if __name__ == "__main__":
    generate(Path(sys.argv[2]) if sys.argv[1:2] == ["--check"] else STUBS)
