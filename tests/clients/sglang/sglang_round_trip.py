"""SGLang's own factory and page hashes on a daemon: `python sglang_round_trip.py ADDRESS CASE`, by its interpreter.

Prints "ok"; what is wrong is an assertion. The pool stands in for SGLang's, whose module needs CUDA: memory in its
order, with the calls that a backend makes.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.storage.backend_factory import StorageBackendFactory
from sglang.srt.mem_cache.utils import get_hash_str

TOKENS, LAYERS, HEADS, DIM, SIZE = 16, 4, 2, 64, 512


class Pool:
    """Keys and values of a host pool, in the order `layer_first` or `page_first`."""

    page_size, size, dtype = TOKENS, SIZE, torch.bfloat16

    def __init__(self, layout: str = "layer_first") -> None:
        self.layout = layout
        order = (LAYERS, SIZE) if layout == "layer_first" else (SIZE, LAYERS)
        self.kv_buffer = torch.randn(2, *order, HEADS, DIM).to(self.dtype)

    def page(self, index: int) -> torch.Tensor:
        span = slice(index, index + TOKENS)
        return self.kv_buffer[:, :, span] if self.layout == "layer_first" else self.kv_buffer[:, span]

    def get_data_page(self, index: int, flat: bool = True) -> torch.Tensor:
        return self.page(int(index)).flatten()

    def get_dummy_flat_data_page(self) -> torch.Tensor:
        return torch.zeros_like(self.page(0)).flatten()

    def set_from_flat_data_page(self, index: int, data_page: torch.Tensor) -> None:
        self.page(int(index)).copy_(data_page.reshape(self.page(0).shape))

    def get_page_buffer_meta(self, indices: torch.Tensor) -> tuple[list[int], list[int]]:
        pieces = []
        for index in indices.tolist()[::TOKENS]:
            page = self.page(index)
            pieces += [page[part, layer] for layer in range(LAYERS) for part in range(2)] \
                if self.layout == "layer_first" else [page[0], page[1]]
        return [piece.data_ptr() for piece in pieces], [piece.nbytes for piece in pieces]


def backend(address: str, *, v1: int, **fields: Any) -> Any:
    extra = {
        "backend_name": "tierd", "module_path": "tierd_client.integrations.sglang", "class_name": "TierdHiCache",
        "interface_v1": v1, "tierd": {"address": address},
    }
    settings = {
        "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "attn_cp_rank": 0, "attn_cp_size": 1,
        "is_mla_model": False, "enable_storage_metrics": False, "is_page_first_layout": False, "model_name": "tiny",
    }
    config = HiCacheStorageConfig(**(settings | fields), extra_config=extra)
    return StorageBackendFactory.create_backend("dynamic", config, None)


def hashes(pages: int, first: int = 0) -> list[str]:
    keys: list[str] = []
    for page in range(pages):
        tokens = list(range(first + page * TOKENS, first + (page + 1) * TOKENS))
        keys.append(get_hash_str(tokens, keys[-1] if keys else None))
    return keys


def indices(first_page: int, pages: int) -> torch.Tensor:
    return torch.arange(first_page * TOKENS, (first_page + pages) * TOKENS)


def in_place(address: str, layout: str) -> None:
    """Pages come back to other places, a partial hit is its leading run, and the next batch goes on behind it."""
    pool, storage, keys = Pool(layout), backend(address, v1=1), hashes(6, first=1000)
    storage.register_mem_pool_host(pool)
    wanted = [pool.page(page * TOKENS).clone() for page in range(6)]
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys[:4], indices(0, 4)) == [True] * 4
    behind = HiCacheStorageExtraInfo(prefix_keys=keys[:4])
    assert storage.batch_set_v1(keys[4:5], indices(4, 1), behind) == [True]
    assert storage.batch_exists(keys) == 5
    assert storage.batch_exists(keys[4:], behind) == 1
    assert storage.batch_get_v1(keys, indices(20, 6)) == [True] * 5 + [False]
    for page in range(5):
        assert torch.equal(pool.page((20 + page) * TOKENS), wanted[page])
    assert storage.batch_get_v1(keys[:2], torch.arange(3, 3 + 2 * TOKENS)) == [False] * 2
    other = backend(address, v1=1, tp_rank=1, tp_size=2)
    other.register_mem_pool_host(Pool(layout))
    assert other.batch_exists(keys) == 0


def flat(address: str) -> None:
    """The generic interface: flat pages by key, one and many, hits and misses."""
    pool, storage, keys = Pool(), backend(address, v1=0), hashes(4, first=5000)
    storage.register_mem_pool_host(pool)
    values = [pool.get_data_page(page * TOKENS) for page in range(3)]
    assert storage.set(keys[0], values[0])
    assert storage.batch_set(keys[1:3], values[1:])
    assert storage.exists(keys[2])
    assert not storage.exists(keys[3])
    places = [pool.get_dummy_flat_data_page() for _ in keys]
    got = storage.batch_get(keys, places)
    assert [one is not None for one in got] == [True, True, True, False]
    assert all(torch.equal(one, value) for one, value in zip(got, values, strict=False))
    assert storage.get(keys[3], pool.get_dummy_flat_data_page()) is None


def pools(address: str) -> None:
    """Version 2: a pool whose every page is needed shortens the hit, one of trailing pages only at its end."""
    kv, extra, storage, keys = Pool(), Pool(), backend(address, v1=1), hashes(6, first=9000)
    storage.register_mem_pool_host(kv)
    storage.register_mem_host_pool_v2(extra, PoolName.MAMBA)
    storage.register_mem_host_pool_v2(kv, PoolName.KV)
    assert storage.batch_set_v1(keys, indices(0, 6)) == [True] * 6
    wanted = extra.page(3 * TOKENS).clone()
    stored = storage.batch_set_v2([PoolTransfer(PoolName.MAMBA, host_indices=indices(3, 1), keys=keys[3:4])])
    assert stored == {PoolName.MAMBA: [True]}
    trailing = PoolTransfer(PoolName.MAMBA, keys=keys[-1:], hit_policy=PoolHitPolicy.TRAILING_PAGES)
    found = storage.batch_exists_v2(keys, [trailing])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (4, [4])
    found = storage.batch_exists_v2(keys, [PoolTransfer(PoolName.MAMBA, hit_policy=PoolHitPolicy.ALL_PAGES)])
    assert found.kv_hit_pages == 0
    got = storage.batch_get_v2([
        PoolTransfer(PoolName.MAMBA, host_indices=indices(9, 1), keys=keys[3:4]),
        PoolTransfer(PoolName.KV, host_indices=indices(20, 2), keys=keys[:2]),
    ])
    assert got == {PoolName.MAMBA: [True], PoolName.KV: [True, True]}
    assert torch.equal(kv.page(21 * TOKENS), kv.page(TOKENS))
    assert torch.equal(extra.page(9 * TOKENS), wanted)


def away(address: str) -> None:
    """Without a daemon everything is a miss, and nothing raises."""
    pool, storage, keys = Pool(), backend(address, v1=1), hashes(2)
    storage.register_mem_pool_host(pool)
    assert storage.batch_exists(keys) == 0
    assert storage.batch_set_v1(keys, indices(0, 2)) == [False, False]
    assert storage.batch_get_v1(keys, indices(0, 2)) == [False, False]


CASES = {
    "layer_first": lambda address: in_place(address, "layer_first"),
    "page_first": lambda address: in_place(address, "page_first"), "flat": flat, "pools": pools, "away": away,
}

if __name__ == "__main__":
    CASES[sys.argv[2]](sys.argv[1])
    print("ok")
