"""tierd as a KV connector of vLLM's own interface, whose loads may be synchronous, and may fail.

    vllm serve MODEL --kv-transfer-config '{"kv_connector": "TierdConnector", "kv_role": "kv_both",
      "kv_connector_module_path": "tierd_client.integrations.vllm.connector",
      "kv_load_failure_policy": "recompute", "kv_connector_extra_config": {"load_async": true,
      "tierd": {"address": "unix:///run/tierd/tierd.sock"}}}'

It shares its blocks with engines that use the OffloadingSpec, which is the recommended way.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tierd_client.errors import InvalidArgument
from tierd_client.integrations.options import Options
from tierd_client.integrations.vllm.connector_scheduler import ConnectorScheduler
from tierd_client.integrations.vllm.connector_steps import Done, Step, TierdStats
from tierd_client.integrations.vllm.connector_worker import ConnectorWorker
from tierd_client.integrations.vllm.geometry import check_named
from tierd_client.integrations.vllm.versions import (
    KVConnectorBase_V1,
    KVConnectorRole,
    canonical_caches,
    offloading_config,
    say_version,
)


class TierdConnector(KVConnectorBase_V1):
    """Named in the KV transfer configuration. vLLM makes one in the scheduler and one in each worker."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        say_version()
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self._options = Options.of(extra.get("tierd", {}))
        check_named(vllm_config, self._options)
        self._load_async = bool(extra.get("load_async", True))
        self._config = offloading_config(vllm_config, kv_cache_config)
        if len(self._config.groups) != 1:
            raise InvalidArgument(f"TierdConnector: {len(self._config.groups)} KV cache groups are not served; "
                                  "the OffloadingSpec serves several")
        self._scheduler: Any = None
        self._worker: Any = None
        if role == KVConnectorRole.SCHEDULER:
            self._scheduler = ConnectorScheduler(self._config, self._options, load_async=self._load_async)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: what is not stored is computed again."""
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        return "LBHNC"

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> TierdStats:
        return TierdStats(data=data or {})

    def shutdown(self) -> None:
        for side in (self._worker, self._scheduler):
            if side is not None:
                side.close()

    # --- in a worker ----------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        caches = canonical_caches(self._vllm_config, self._kv_cache_config, self._config, kv_caches)
        self._worker = ConnectorWorker(
            self._config, self._options, load_async=self._load_async, kv_caches=caches)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._worker.load(self._step())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads of a step are whole before it begins."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Blocks are stored whole, after the step."""

    def wait_for_save(self) -> None:
        self._worker.store(self._step())

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self._worker.loaded_requests() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed: set[int] = self._worker.unfilled_pages()
        return failed

    def build_connector_worker_meta(self) -> Done | None:
        done: Done | None = self._worker.done()
        return done

    def get_kv_connector_stats(self) -> TierdStats | None:
        stats: TierdStats | None = (self._worker or self._scheduler).stats()
        return stats

    # --- in the scheduler -----------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        matched: tuple[int | None, bool] = self._scheduler.matched(request, num_computed_tokens)
        return matched

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.allocated(request, blocks.get_block_ids()[0], num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Step:
        step: Step = self._scheduler.step(scheduler_output)
        return step

    def update_connector_output(self, connector_output: Any) -> None:
        done = connector_output.kv_connector_worker_meta
        if isinstance(done, Done):
            self._scheduler.done(done)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.on_request_finished(request)
        return False, None

    def take_events(self) -> Iterable[Any]:
        events: list[Any] = self._scheduler.take_events()
        return events

    def reset_cache(self) -> bool:
        self._scheduler.reset()
        return True

    def _step(self) -> Step:
        step = self._get_connector_metadata()
        assert isinstance(step, Step)
        return step
