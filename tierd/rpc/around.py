"""Something that happens around every call of the server: each method is wrapped once, when it is first called."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import grpc

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class Wrapping(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The wrapped methods are kept, so that a call costs what the wrapper does and no more."""

    def __init__(self) -> None:
        self._wrapped: dict[str, Any] = {}

    @abstractmethod
    def wrap(self, handler: Any, method: str) -> Any:
        """The handler that serves in place of this one. `method`: such as /tierd.v1.Blocks/Get."""

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], details: Any) -> Any:
        handler = self._wrapped.get(details.method)
        if handler is None:
            handler = await continuation(details)
            if handler is not None:  # else the method is unknown, and grpc says so
                handler = self._wrapped[details.method] = self.wrap(handler, details.method)
        return handler


class Around(Wrapping):
    """What is done before and after each call."""

    @abstractmethod
    def around(self, method: str, context: Any) -> AbstractAsyncContextManager[None]:
        """Entered before the call's handler, left after it."""

    def wrap(self, handler: Any, method: str) -> Any:
        kind = next(kind for kind in KINDS if getattr(handler, kind) is not None)
        return handler._replace(**{kind: self._surrounded(getattr(handler, kind), method)})

    def _surrounded(self, call: Callable[..., Any], method: str) -> Callable[..., Any]:
        async def whole(request: Any, context: Any) -> Any:
            async with self.around(method, context):
                return await call(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self.around(method, context):
                async for part in call(request, context):
                    yield part

        return stream if inspect.isasyncgenfunction(call) else whole
