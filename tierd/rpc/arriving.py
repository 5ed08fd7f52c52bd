"""The request of a call must come: one that is begun and never sent would keep its place among the calls that there
can be at once, before anybody has looked at its token.

gRPC reads the request of a call with one before it calls anything, without a deadline. Here such a method is served
as one that takes a stream, of which the first message is its request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NoReturn

import grpc

from tierd.app.streams import STREAM_IDLE_S
from tierd.rpc.around import Wrapping


class Arriving(Wrapping):
    """The innermost interceptor: what happens around a call happens before its request is read."""

    def __init__(self, within_s: float = STREAM_IDLE_S) -> None:
        """A call whose request does not come within `within_s` is RESOURCE_EXHAUSTED."""
        super().__init__()
        self._within_s = within_s

    def wrap(self, handler: Any, method: str) -> Any:
        del method
        if handler.request_streaming:
            return handler
        call = handler.unary_stream or handler.unary_unary

        async def arrived(requests: AsyncIterator[Any], context: Any) -> Any:
            return await call(await self._request(requests, context), context)

        kind = "stream_stream" if handler.response_streaming else "stream_unary"
        return handler._replace(request_streaming=True, unary_unary=None, unary_stream=None, **{kind: arrived})

    async def _request(self, requests: AsyncIterator[Any], context: Any) -> Any:
        try:
            async with asyncio.timeout(self._within_s):
                request = await anext(requests, None)
        except TimeoutError:
            await _end(context, "RESOURCE_EXHAUSTED", f"no request came for {self._within_s:g} s")
        if request is None:
            await _end(context, "INVALID_ARGUMENT", "request: missing")
        return request


async def _end(context: Any, code: str, details: str) -> NoReturn:
    await context.abort(grpc.StatusCode[code], details)
    raise AssertionError("abort raises")
