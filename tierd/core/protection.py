"""Which rows may not leave a tier now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tierd.core.arrays import constant
from tierd_client.format import I64Array

_NONE, _NEVER = constant(0, np.int32), constant(0, np.float64)


class Protection(Protocol):
    """Which rows may not leave the tier now."""

    def one(self, row: int) -> bool: ...

    def many(self, rows: I64Array) -> NDArray[np.bool_]: ...


@dataclass(frozen=True, slots=True)
class Barred:
    """Rows with a pin, a lease or a move."""

    pins: NDArray[np.int32]
    leases: NDArray[np.int32]
    moves: NDArray[np.uint8]
    kept: NDArray[np.float64] | None = None

    def one(self, row: int) -> bool:
        held = self.pins.item(row) or self.leases.item(row) or self.moves.item(row)
        return bool(held or (self.kept is not None and self.kept[row]))

    def many(self, rows: I64Array) -> NDArray[np.bool_]:
        barred: NDArray[np.bool_] = (self.pins[rows] | self.leases[rows] | self.moves[rows]) != _NONE
        if self.kept is not None:
            barred |= self.kept[rows] != _NEVER
        return barred
