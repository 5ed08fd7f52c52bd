"""The L2 adapter: objects of LMCache as blocks, in tasks on threads. What no daemon answers for is not there."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from math import prod
from typing import Any, NamedTuple

import numpy as np
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface

from tierd_client.format import U8Array
from tierd_client.identity import Identities, plain_ids
from tierd_client.integrations.calls import CONNECT_S, attempt
from tierd_client.integrations.link import Link, log
from tierd_client.integrations.options import Options
from tierd_client.integrations.tasks import Finished, Locks
from tierd_client.layout import Layout
from tierd_client.lease import Lease
from tierd_client.namespace import Namespace
from tierd_client.outcomes import AcquireOutcome, PutOutcome

ENGINE = "lmcache"
THREADS = 4
LAYOUTS_MAX = 4096
STORED = (PutOutcome.STORED, PutOutcome.EXISTS)


class TierdL2Adapter(L2AdapterInterface):
    """Made by LMCache's factory; `params`: options of `tierd_client.integrations.options`. Thread-safe.

    An object is one block, in the namespace of its model, rank, group and salt. Locked objects are leased:
    they stay where they are until LMCache unlocks them.
    """

    def __init__(self, params: dict[str, Any], **_: Any) -> None:
        super().__init__()
        self._options = Options.of(params)
        self._link = Link(self._options, ENGINE, [])
        self._link.wait_up(CONNECT_S)
        self._layout = lru_cache(LAYOUTS_MAX)(partial(layout_of, self._options))
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tierd-l2")
        self._numbers = itertools.count(1)
        self._stores, self._lookups, self._loads = Finished(), Finished(), Finished()
        self._locks = Locks()

    def get_store_event_fd(self) -> int:
        return self._stores.event_fd

    def get_lookup_and_lock_event_fd(self) -> int:
        return self._lookups.event_fd

    def get_load_event_fd(self) -> int:
        return self._loads.event_fd

    def submit_store_task(self, keys: list[Any], objects: list[Any]) -> int:
        nothing = L2StoreResult(False, 0)
        return self._submit(self._stores, lambda: self._store(keys, objects), nothing)

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        return self._stores.all()

    def submit_lookup_and_lock_task(self, keys: list[Any], group_layout_descs: dict[int, Any]) -> int:
        return self._submit(self._lookups, lambda: self._lock(keys, group_layout_descs), Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        return self._lookups.one(task_id)

    def submit_unlock(self, keys: list[Any]) -> None:
        for lease in self._locks.unlocked(keys):
            self._threads.submit(lease.release)

    def submit_load_task(self, keys: list[Any], objects: list[Any]) -> int:
        return self._submit(self._loads, lambda: self._load(keys, objects), Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Any:
        return self._loads.one(task_id)

    def report_status(self) -> dict[str, Any]:
        return {
            "is_healthy": self._link.is_up, "type": "TierdL2Adapter", "address": self._options.address,
            "locked_key_count": len(self._locks),
        }

    def close(self) -> None:
        """Ends tasks, leases and the connection; idempotent."""
        self._threads.shutdown(wait=True)
        for lease in self._locks.all():
            lease.release()
        self._link.close()
        for finished in (self._stores, self._lookups, self._loads):
            finished.close()

    def _submit(self, finished: Finished, work: Callable[[], Any], failed: Any) -> int:
        number = next(self._numbers)

        def run() -> None:
            result = failed
            try:
                result = work()
            except Exception:
                log.exception("a task of LMCache failed")
            finished.add(number, result)

        self._threads.submit(run)
        return number

    def _store(self, keys: Sequence[Any], objects: Sequence[Any]) -> L2StoreResult:
        forms = [_form_of(one) for one in objects]
        stored: list[int] = []
        for layout, places in self._by_layout(keys, forms):
            put = partial(_put, ids=_ids(layout, keys, places), blocks=[_bytes_of(objects[at]) for at in places])
            outcomes: list[PutOutcome] = attempt(self._link, layout, put, [])
            stored += [at for at, outcome in zip(places, outcomes, strict=False) if outcome in STORED]
        sizes = [forms[at].object_bytes for at in stored]
        self._notify_keys_stored([keys[at] for at in stored], sizes)
        return L2StoreResult(len(stored) == len(keys), sum(sizes))

    def _lock(self, keys: Sequence[Any], descs: dict[int, Any]) -> Bitmap:
        found = Bitmap(len(keys))
        known = [at for at, key in enumerate(keys) if key.object_group_id in descs]
        forms = {group: _form_described(desc) for group, desc in descs.items()}
        wanted = [forms[keys[at].object_group_id] for at in known]
        for layout, within in self._by_layout([keys[at] for at in known], wanted):
            places = [known[at] for at in within]
            acquire = partial(_acquire, ids=_ids(layout, keys, places), wait_s=self._options.promote_s)
            lease: Lease | None = attempt(self._link, layout, acquire, None)
            if lease is not None:
                outcomes = zip(places, lease.outcomes, strict=True)
                leased = [at for at, outcome in outcomes if outcome is AcquireOutcome.LEASED]
                self._locks.add(lease, [keys[at] for at in leased])
                found.batched_set(leased)
        return found

    def _load(self, keys: Sequence[Any], objects: Sequence[Any]) -> Bitmap:
        loaded = Bitmap(len(keys))
        for layout, places in self._by_layout(keys, [_form_of(one) for one in objects]):
            get = partial(
                _get_into, ids=_ids(layout, keys, places), blocks=[_bytes_of(objects[at]) for at in places],
                wait_s=self._options.promote_s)
            outcomes: list[AcquireOutcome] = attempt(self._link, layout, get, [])
            good = [at for at, one in zip(places, outcomes, strict=False) if one is AcquireOutcome.LEASED]
            loaded.batched_set(good)
            self._notify_keys_accessed([keys[at] for at in good])
        return loaded

    def _by_layout(self, keys: Sequence[Any], forms: Sequence[Form]) -> Iterable[tuple[Layout, list[int]]]:
        """Places of keys by the namespace that they belong to."""
        places: dict[Layout, list[int]] = defaultdict(list)
        for at, (key, form) in enumerate(zip(keys, forms, strict=True)):
            layout = self._layout(key.model_name, key.kv_rank, key.object_group_id, key.cache_salt, form)
            places[layout].append(at)
        return places.items()


class Form(NamedTuple):
    """What LMCache's key does not say of an object: engines of two dtypes name their objects alike."""

    object_bytes: int
    dtypes: str


def layout_of(options: Options, model: str, kv_rank: int, group: int, salt: str, form: Form) -> Layout:
    """The namespace of objects of one model, rank, group, salt and form; LMCache's hashes stand for the tokens."""
    return Layout.opaque(
        block_bytes=form.object_bytes, model=model, engine=ENGINE, revision=options.revision,
        kv_layout=f"rank {kv_rank:#x} group {group} {form.dtypes} {options.tenant}".strip(),
        tenant_salt=salt.encode())


def _ids(layout: Layout, keys: Sequence[Any], places: Iterable[int]) -> Identities:
    return plain_ids(layout, [keys[at].chunk_hash for at in places])


def _bytes_of(memory_object: Any) -> U8Array:
    return np.frombuffer(memory_object.byte_array, np.uint8)


def _form_of(memory_object: Any) -> Form:
    metadata = memory_object.metadata
    return Form(len(memory_object.byte_array), _named(metadata.dtypes or [metadata.dtype]))


def _form_described(desc: Any) -> Form:
    pairs = zip(desc.shapes, desc.dtypes, strict=True)
    return Form(sum(prod(shape) * dtype.itemsize for shape, dtype in pairs), _named(desc.dtypes))


def _named(dtypes: Iterable[Any]) -> str:
    return "+".join(str(dtype).removeprefix("torch.") for dtype in dtypes)


def _put(namespace: Namespace, ids: Identities, blocks: list[U8Array]) -> list[PutOutcome]:
    return namespace.put(ids, blocks)


def _acquire(namespace: Namespace, ids: Identities, wait_s: float) -> Lease:
    return namespace.acquire(ids, timeout_s=wait_s)


def _get_into(namespace: Namespace, ids: Identities, blocks: list[U8Array], wait_s: float) -> list[AcquireOutcome]:
    return namespace.get_into(ids, blocks, timeout_s=wait_s)
