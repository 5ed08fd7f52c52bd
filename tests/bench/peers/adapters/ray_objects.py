"""ray's object store (plasma): put, a get without a copy, and a copy into the caller's memory. Its objects have no
ids of the caller's, so those are kept here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import ray
from peer_adapter import CAPACITY_BYTES, Adapter, Block


class RayObjects(Adapter):
    version = ray.__version__

    def start(self, place: Path) -> None:
        self._of: dict[int, ray.ObjectRef] = {}
        ray.init(
            address="local", num_cpus=1, object_store_memory=CAPACITY_BYTES, include_dashboard=False,
            _temp_dir=str(place), log_to_driver=False, configure_logging=False)

    def ids(self, numbers: Sequence[int]) -> Sequence[int]:
        return numbers

    def put(self, ids: Sequence[int], blocks: Sequence[Block]) -> None:
        for number, block in zip(ids, blocks, strict=True):
            self._of[number] = ray.put(block)

    def get_into(self, ids: Sequence[int], blocks: Sequence[Block]) -> bool:
        for block, found in zip(blocks, ray.get([self._of[number] for number in ids]), strict=True):
            np.copyto(block, found)
        return True

    def clear(self) -> None:
        self._of.clear()

    def stop(self) -> None:
        ray.shutdown()


ADAPTER = RayObjects
