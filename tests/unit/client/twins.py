"""Both twins of the client under one suite: the asyncio one behind a face that blocks.

What it gives back is the asyncio object's own answer; each call is run to its end on one event loop and in one
context, as if one task made them all.
"""

from __future__ import annotations

import asyncio
import inspect
from types import TracebackType
from typing import Any, Self

from tierd_client import AsyncClient, AsyncLease, AsyncNamespace, AsyncSequence, Client
from tierd_client.admin import AsyncAdmin
from tierd_client.routine import Opening

TWINS = ("sync", "async")


def client_of(twin: str, target: str, **options: Any) -> Any:
    """A Client, or an AsyncClient that looks like one."""
    if twin == "sync":
        return Client(target, **options)
    runner = asyncio.Runner()
    client = _Faced(runner, AsyncClient(target, **options))
    try:
        client.connect()
    except BaseException:
        runner.close()
        raise
    return client


class _Faced:
    """An object of the asyncio client, whose awaitable methods block."""

    def __init__(self, runner: asyncio.Runner, inner: Any) -> None:
        self._runner = runner
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._inner, name)
        if callable(value) and not isinstance(value, type):
            return lambda *args, **kwargs: self._answer(value(*args, **kwargs))
        return self._faced(value)

    def __len__(self) -> int:
        return len(self._inner)

    def __enter__(self) -> Self:
        self._await(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self._await(self._inner.__aexit__(kind, error, trace))
        if isinstance(self._inner, AsyncClient):
            self._runner.close()

    def _answer(self, value: Any) -> Any:
        if inspect.isasyncgen(value):
            return iter(self._await(_listed(value)))
        return self._faced(self._await(value) if inspect.isawaitable(value) else value)

    def _await(self, awaitable: Any) -> Any:
        async def awaited() -> Any:
            return await awaitable

        return self._runner.run(awaited())

    def _faced(self, value: Any) -> Any:
        faced = AsyncNamespace | AsyncLease | AsyncSequence | AsyncAdmin | Opening
        return _Faced(self._runner, value) if isinstance(value, faced) else value


async def _listed(values: Any) -> list[Any]:
    return [value async for value in values]
