"""Questions to masks. On the short arrays of one request numpy's own `any`, `all` and `flatnonzero` take five
times as long: most of it is their way through Python."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tierd_client.format import I64Array

Mask = NDArray[np.bool_]


def some(mask: Mask) -> bool:
    """Whether one at least is set."""
    return bool(np.count_nonzero(mask))


def every(mask: Mask) -> bool:
    """Whether all are set, or there are none."""
    return int(np.count_nonzero(mask)) == mask.size


def indices(mask: Mask) -> I64Array:
    """Where a mask of one dimension is set."""
    return mask.nonzero()[0]
