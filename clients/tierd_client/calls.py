"""RPCs as a routine makes them: one with one answer, one with a stream of them, and grpc's errors in our words."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Generator
from concurrent.futures import Executor
from typing import Any

import grpc

from tierd_client.errors import TierdClientError, Unavailable, error_of_status
from tierd_client.routine import Step


class Call(Step[Any]):
    """One RPC with one answer; raises an error of this library.

    It is cancelled with the task that waits for it, unless there is `unheard`: then it runs on, and `unheard` is
    called if it fails, `late` with its answer if it does not.
    """

    def __init__(
        self, stub: Any, request: Any, timeout_s: float, unheard: Callable[[], None] | None = None,
        late: Callable[[Any], None] | None = None,
    ) -> None:
        self._stub = stub
        self._request = request
        self._timeout_s = timeout_s
        self._unheard = unheard
        self._late = late

    def block(self) -> Any:
        with translating():
            return self._stub(self._request, timeout=self._timeout_s)

    async def wait(self, threads: Executor) -> Any:  # noqa: ARG002 - an RPC needs no thread of ours
        loop = asyncio.get_running_loop()
        answered = asyncio.Event()

        def wake(_: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(answered.set)

        with translating():
            call = self._stub.future(self._request, timeout=self._timeout_s)
            call.add_done_callback(wake)
            try:
                await answered.wait()
            except BaseException:
                self._leave(call)
                raise
            return call.result()

    def _leave(self, call: Any) -> None:
        """Nobody waits for it any more."""
        if self._unheard is None:
            call.cancel()
            return
        unheard, late = self._unheard, self._late

        def answered(call: Any) -> None:
            if call.code() is not grpc.StatusCode.OK:
                unheard()
            elif late is not None:
                late(call.result())

        call.add_done_callback(answered)


class Stream:
    """The answers of an RPC that answers with a stream. Errors as of a Call; `cancel` from any thread."""

    def __init__(self, stub: Any, request: Any, timeout_s: float) -> None:
        with translating():
            self._answers = stub(request, timeout=timeout_s)

    def __iter__(self) -> Generator[Any, None, None]:
        with translating():
            yield from self._answers

    def cancel(self) -> None:
        self._answers.cancel()


@contextlib.contextmanager
def translating() -> Generator[None, None, None]:
    """Errors of grpc as those of this library."""
    try:
        yield
    except grpc.RpcError as error:
        raise translated(error) from error
    except (grpc.FutureCancelledError, ValueError) as error:  # a channel that another thread closed
        if isinstance(error, TierdClientError):
            raise
        raise Unavailable(str(error) or "cancelled") from error


def translated(error: grpc.RpcError) -> TierdClientError:
    """The error of this library for one of grpc."""
    code, details = getattr(error, "code", None), getattr(error, "details", None)
    status = code() if callable(code) else None
    text = details() if callable(details) else str(error)
    return error_of_status(status.name if status is not None else "UNKNOWN", text or "")
