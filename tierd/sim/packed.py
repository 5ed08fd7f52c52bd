"""Arrays of npz files, which anybody may have made, cut or damaged."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tierd.core.errors import InvalidInput


def read_arrays(path: Path, kind: str, names: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """Those of its arrays that `names` says and that it has, or all. InvalidInput where it is no npz of that kind,
    or something in it is no array."""
    try:
        opened = np.load(path, allow_pickle=False)
        if isinstance(opened, np.ndarray):
            raise InvalidInput(str(path), f"is one array, not a {kind}")
        with opened as held:
            found = {name: held[name] for name in held.files if names is None or name in names}
    except InvalidInput:
        raise
    except Exception as error:  # zipfile, zlib, struct and numpy have errors of their own for damaged files
        raise InvalidInput(str(path), f"is not a {kind} ({error})") from error
    for name, array in found.items():
        if not isinstance(array, np.ndarray):
            raise InvalidInput(f"{path}: {name}", "is not an array")
    return found
