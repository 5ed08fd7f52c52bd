"""HBM on a CUDA device passes the same contract as its CPU twin. Skipped where there is no device."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from tierd.core.errors import Unavailable
from tierd.ports import ArenaStore
from tierd.testing.arena_contract import SEGMENTS, ArenaContract, address, random_bytes

torch = pytest.importorskip("torch")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

pytestmark = pytest.mark.device


@needs_cuda
class TestHbmCuda(ArenaContract):
    @pytest.fixture
    def arena(self) -> Iterator[ArenaStore]:
        from tierd.adapters.hbm_cuda import HbmCuda

        arena = HbmCuda("cuda:0", SEGMENTS)
        yield arena
        arena.close()


@needs_cuda
def test_too_large_is_refused_and_leaves_cuda_usable() -> None:
    """A pool that does not fit is an error naming hbm_bytes, and the next CUDA call does not inherit it."""
    from tierd.adapters.hbm_cuda import HbmCuda

    with pytest.raises(Unavailable, match="hbm_bytes"):
        HbmCuda("cuda:0", {1: 1 << 50})
    assert int(torch.ones(4, device="cuda:0").sum()) == 4


@needs_cuda
def test_pinned_host_memory() -> None:
    """Registered host memory is known to CUDA as pinned, moves the right bytes, and can be given back."""
    from tierd.adapters.hbm_cuda import HbmCuda, pin, unpin

    host = random_bytes(3, 1 << 20)
    assert pin([host]) == host.size
    try:
        assert torch.frombuffer(host.data, dtype=torch.uint8).is_pinned()
        arena = HbmCuda("cuda:0", SEGMENTS)
        arena.write(address(3, 0), host)
        out = np.empty_like(host)
        arena.read(address(3, 0), out)
        assert np.array_equal(out, host)
    finally:
        unpin([host])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_no_device_is_said() -> None:
    """Without a device a CUDA arena is refused in words, naming the setting."""
    from tierd.adapters.hbm_cuda import HbmCuda

    with pytest.raises(Unavailable, match="hbm_device"):
        HbmCuda("cuda:0", SEGMENTS)
