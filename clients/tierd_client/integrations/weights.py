"""What tells one model's weights from another's of the same name and shape: a digest of samples of their bytes.

The samples are as close as the smallest matrix of a large model is long, so that training of a few of its layers
tells as well; a copy on another host has the same.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json")
"""Files that say what a model computes: weights, and the configuration."""

SAMPLES = 1024
"""Of each file, spread evenly: every 5 MB of one of 5 GB."""

SAMPLE_BYTES = 4 << 10


def weights_digest(directory: Path) -> str:
    """32 hex digits of a model's directory; empty where it has no such files. Raises OSError."""
    files = sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES and path.is_file())
    digest = hashlib.blake2b(digest_size=16, person=b"tierd-weights-v2")
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            for sample in range(SAMPLES):
                file.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest() if files else ""
