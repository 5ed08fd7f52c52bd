"""Counts and times every call that the server takes."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tierd.app.measures import Measures
from tierd.rpc.around import Around

UNTIMED = ("Session", "Watch", "ServerReflectionInfo")
"""Streams that last as long as their clients like."""
_NAMES = {code.value[0]: code.name for code in grpc.StatusCode}


class Measured(Around):
    """By the name of the method alone: no two services have one of the same name."""

    def __init__(self, measures: Measures) -> None:
        super().__init__()
        self._measures = measures

    @asynccontextmanager
    async def around(self, method: str, context: Any) -> AsyncIterator[None]:
        rpc, began, cut_short = method.rpartition("/")[2], time.monotonic(), True
        self._measures.rpcs_in_flight += 1
        try:
            yield
            cut_short = False
        finally:
            self._measures.rpcs_in_flight -= 1
            code = _code(context, cut_short)
            self._measures.called(rpc, code, time.monotonic() - began, timed=rpc not in UNTIMED)


def _code(context: Any, cut_short: bool) -> str:
    """The status that the handler set; none means OK, or for one that was cancelled CANCELLED."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return str(code.name)
    known = _NAMES.get(code, "OK")
    return "CANCELLED" if known == "OK" and cut_short else known
