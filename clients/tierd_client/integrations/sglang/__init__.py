"""tierd as the storage of SGLang's hierarchical cache, loaded by its `dynamic` factory.

    --enable-hierarchical-cache --hicache-storage-backend dynamic --hicache-storage-backend-extra-config
    '{"backend_name": "tierd", "module_path": "tierd_client.integrations.sglang", "class_name": "TierdHiCache",
      "interface_v1": 1, "tierd": {"address": "unix:///run/tierd/tierd.sock"}}'

Importing this package imports SGLang.
"""

from __future__ import annotations

from tierd_client.integrations.sglang.storage import TierdHiCache

__all__ = ["TierdHiCache"]
