"""tierd as an L2 adapter of LMCache's multiprocess server.

    lmcache server ... --l2-adapter '{"type": "plugin", "module_path": "tierd_client.integrations.lmcache",
      "class_name": "TierdL2Adapter", "adapter_params": {"address": "unix:///run/tierd/tierd.sock"}}'

Importing this package imports LMCache.
"""

from __future__ import annotations

from tierd_client.integrations.lmcache.adapter import TierdL2Adapter

__all__ = ["TierdL2Adapter"]
