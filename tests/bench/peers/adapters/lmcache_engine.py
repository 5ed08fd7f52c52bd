"""LMCache's multiprocess server in the mode in which the engine copies (`engine_driven`), in and out of the
server's memory, which it shares."""

from __future__ import annotations

from lmcache.v1.multiprocess.transfer_context import EngineDrivenTransferContext
from lmcache_server import LMCacheServer


class LMCacheEngine(LMCacheServer):
    context_type = EngineDrivenTransferContext


ADAPTER = LMCacheEngine
