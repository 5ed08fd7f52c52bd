"""Counts and times every call that the server takes."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc

from tierd.app.measures import Measures

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
UNTIMED = ("Session", "Watch", "ServerReflectionInfo")
"""Streams that last as long as their clients like."""


class Measured(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Wraps each method once, so that a call costs no more than the wrapper."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = self._wrapped.get(details.method)
        if handler is None:
            handler = await continuation(details)
            if handler is not None:  # else the method is unknown, and grpc says so
                handler = self._wrapped[details.method] = self._wrap(handler, details.method.rpartition("/")[2])
        return handler

    def _wrap(self, handler: Any, rpc: str) -> Any:
        kind = next(kind for kind in KINDS if getattr(handler, kind) is not None)
        return handler._replace(**{kind: self._timed(getattr(handler, kind), rpc)})

    def _timed(self, call: Callable[..., Any], rpc: str) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(call):

            async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
                with self._timing(rpc, context):
                    async for part in call(request, context):
                        yield part

            return stream

        async def whole(request: Any, context: Any) -> Any:
            with self._timing(rpc, context):
                return await call(request, context)

        return whole

    @contextmanager
    def _timing(self, rpc: str, context: Any) -> Iterator[None]:
        began, cut_short = time.monotonic(), True
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
    known = next((one.name for one in grpc.StatusCode if one.value[0] == code), "OK")
    return "CANCELLED" if known == "OK" and cut_short else known
