"""The storage backend: pages of SGLang's host pools by their hashes. What the daemon does not answer is a miss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolTransferResult,
)

from tierd_client.errors import InvalidArgument
from tierd_client.format import BoolArray
from tierd_client.integrations.calls import CONNECT_S, attempt
from tierd_client.integrations.link import Link
from tierd_client.integrations.options import Options
from tierd_client.integrations.sglang.pools import KV, Pool, pool_of, run_of
from tierd_client.outcomes import AcquireOutcome, PutOutcome

OPTIONS = "tierd"
"""Their key in SGLang's extra configuration."""

STORED = (PutOutcome.STORED, PutOutcome.EXISTS)


class TierdHiCache(HiCacheStorage):
    """Made by SGLang's factory; one for each rank. Options of `tierd_client.integrations.options` under "tierd".

    With `interface_v1` pages are copied straight between SGLang's memory and the daemon's; without it they are
    given flat. A page that finds no room is not stored, and said so.
    """

    def __init__(self, storage_config: HiCacheStorageConfig, kwargs: dict[str, Any] | None = None) -> None:
        extra = storage_config.extra_config or {}
        self._config = storage_config
        self._options = Options.of(extra.get(OPTIONS, {}))
        self._in_place = bool(extra.get("interface_v1", 0))
        self._pools: dict[str, Pool] = {}
        self._link = Link(self._options, "sglang", [])
        self._link.wait_up(CONNECT_S)

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        super().register_mem_pool_host(mem_pool_host)
        self._pools[KV] = self._pool(KV, mem_pool_host, self._in_place)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        self._pools[name] = self._pool(name, host_pool, self._in_place and name == KV)

    # --- pages given flat -----------------------------------------------------------------------------

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        return self.batch_get([key], [target_location])[0]

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        return self.batch_set([key], [value])

    def exists(self, key: str) -> bool:
        return self.batch_exists([key]) == 1

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        read = self._read_flat(self._kv(), keys, None, target_locations)
        return [place if one else None for place, one in zip(target_locations, read, strict=True)]

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None,
    ) -> bool:
        return all(self._store_flat(self._kv(), keys, None, values))

    def batch_exists(self, keys: list[str], extra_info: Any = None) -> int:
        found = self._found(self._kv(), keys, extra_info)
        return len(keys) if found.all() else int(found.argmin())

    # --- pages in place -------------------------------------------------------------------------------

    def batch_get_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._get_pages(self._kv(), keys, host_indices, extra_info)

    def batch_set_v1(self, keys: list[str], host_indices: Any, extra_info: Any = None) -> list[bool]:
        return self._set_pages(self._kv(), keys, host_indices, extra_info)

    # --- several pools --------------------------------------------------------------------------------

    def batch_exists_v2(
        self, keys: list[str], pool_transfers: Any = None, extra_info: Any = None,
    ) -> PoolTransferResult:
        whole = self.batch_exists(keys, extra_info)
        hits = {KV: whole} if whole else {}
        good = np.arange(len(keys) + 1) <= whole
        for transfer in pool_transfers or []:
            found = self._found(self._pools[str(transfer.name)], keys, extra_info)
            allowed = _restorable(found, transfer) & (np.arange(len(keys) + 1) <= whole)
            hits[str(transfer.name)] = int(np.flatnonzero(allowed)[-1])
            good &= allowed
        lengths = [int(length) for length in np.flatnonzero(good) if length]
        return PoolTransferResult(lengths[-1] if lengths else 0, {k: v for k, v in hits.items() if v}, lengths)

    def batch_get_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._get_pool(transfer, extra_info) for transfer in transfers}

    def batch_set_v2(self, transfers: Any, extra_info: Any = None) -> dict[str, list[bool]]:
        return {transfer.name: self._set_pool(transfer, extra_info) for transfer in transfers}

    def close(self) -> None:
        """Gives the daemon up; SGLang calls it when the backend is detached."""
        self._link.close()

    def _pool(self, name: str, host_pool: Any, in_place: bool) -> Pool:
        return pool_of(self._config, name, host_pool, in_place=in_place, revision=self._options.revision,
                       tenant=self._options.tenant)

    def _kv(self) -> Pool:
        if KV not in self._pools:
            raise InvalidArgument("host pool: none is registered, so that the size of a page is not known")
        return self._pools[KV]

    def _found(self, pool: Pool, keys: Sequence[str], extra_info: Any) -> BoolArray:
        """Which pages are in some tier."""
        nowhere = np.zeros(len(keys), bool)
        ids = run_of(keys, extra_info).identities(pool.layout)
        return attempt(self._link, pool.layout, lambda namespace: namespace.lookup(ids).tier_bits != 0, nowhere)

    def _get_pool(self, transfer: Any, extra_info: Any) -> list[bool]:
        pool, host_pool, keys = self._of(transfer)
        if pool.pages is not None:
            return self._get_pages(pool, keys, transfer.host_indices, extra_info)
        numbers = pool.numbers(transfer.host_indices, len(keys))
        if numbers is None:
            return [False] * len(keys)
        pages = [host_pool.get_dummy_flat_data_page() for _ in keys]
        read = self._read_flat(pool, keys, extra_info, pages)
        for page, number, one in zip(pages, numbers.tolist(), read, strict=True):
            if one:
                host_pool.set_from_flat_data_page(number * pool.page_tokens, page)
        return read

    def _set_pool(self, transfer: Any, extra_info: Any) -> list[bool]:
        pool, host_pool, keys = self._of(transfer)
        if pool.pages is not None:
            return self._set_pages(pool, keys, transfer.host_indices, extra_info)
        numbers = pool.numbers(transfer.host_indices, len(keys))
        if numbers is None:
            return [False] * len(keys)
        pages = [host_pool.get_data_page(number * pool.page_tokens, flat=True) for number in numbers.tolist()]
        return self._store_flat(pool, keys, extra_info, pages)

    def _get_pages(self, pool: Pool, keys: list[str], host_indices: Any, extra_info: Any) -> list[bool]:
        """Straight into SGLang's memory."""
        pages, numbers = pool.pages, pool.numbers(host_indices, len(keys))
        if numbers is None or pages is None:
            return [False] * len(keys)
        ids, wait_s = run_of(keys, extra_info).identities(pool.layout), self._options.promote_s
        outcomes: list[AcquireOutcome] = attempt(
            self._link, pool.layout,
            lambda namespace: namespace.get_pages(ids, pages, numbers, timeout_s=wait_s), [])
        return [outcome is AcquireOutcome.LEASED for outcome in outcomes] or [False] * len(keys)

    def _set_pages(self, pool: Pool, keys: list[str], host_indices: Any, extra_info: Any) -> list[bool]:
        """Straight out of SGLang's memory."""
        pages, numbers = pool.pages, pool.numbers(host_indices, len(keys))
        if numbers is None or pages is None:
            return [False] * len(keys)
        ids = run_of(keys, extra_info).identities(pool.layout)
        outcomes: list[PutOutcome] = attempt(
            self._link, pool.layout, lambda namespace: namespace.put_pages(ids, pages, numbers), [])
        return [outcome in STORED for outcome in outcomes] or [False] * len(keys)

    def _of(self, transfer: Any) -> tuple[Pool, Any, list[str]]:
        name = str(transfer.name)
        return self._pools[name], self.registered_pools[transfer.name], list(transfer.keys or [])

    def _read_flat(self, pool: Pool, keys: Sequence[str], extra_info: Any, places: Any) -> list[bool]:
        ids = run_of(keys, extra_info).identities(pool.layout)
        views = [_bytes_of(place) for place in places]
        outcomes: list[AcquireOutcome] = attempt(
            self._link, pool.layout,
            lambda namespace: namespace.get_into(ids, views, timeout_s=self._options.promote_s), [])
        return [outcome is AcquireOutcome.LEASED for outcome in outcomes] or [False] * len(keys)

    def _store_flat(self, pool: Pool, keys: Sequence[str], extra_info: Any, values: Any) -> list[bool]:
        ids = run_of(keys, extra_info).identities(pool.layout)
        views = [_bytes_of(value.contiguous()) for value in values]
        outcomes: list[PutOutcome] = attempt(
            self._link, pool.layout, lambda namespace: namespace.put(ids, views), [])
        return [outcome in STORED for outcome in outcomes] or [False] * len(keys)


def _restorable(found: BoolArray, transfer: Any) -> BoolArray:
    """Of each length of a prefix, from 0 on, whether a pool has what it needs of it."""
    count = len(found)
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        needed = np.arange(count + 1)
    elif transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
        needed = np.minimum(np.arange(count + 1), max(1, len(transfer.keys or ())))
    else:
        raise InvalidArgument(f"hit_policy: {transfer.hit_policy} is not served")
    present = np.concatenate([[0], np.cumsum(found)])
    return np.array([present[n] - present[n - need] == need for n, need in enumerate(needed)])


def _bytes_of(tensor: Any) -> Any:
    import torch

    return tensor.view(-1).view(torch.uint8).numpy()
