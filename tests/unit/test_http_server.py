"""The HTTP server's connections: none outlives its time."""

from __future__ import annotations

import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tierd.web import server


def test_a_reader_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose client asks again and again and reads no answer ends soon after its life is over."""
    monkeypatch.setattr(server, "LIFE_S", 0.3)
    monkeypatch.setattr(server, "IDLE_S", 0.2)

    async def large(_: Request) -> Response:
        return Response(b"x" * (1 << 20))

    async def main() -> None:
        listener = server.bind("127.0.0.1:0")
        http = server.HttpServer(Starlette(routes=[Route("/", large)]), listener)
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect(listener.getsockname())
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
            async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                group.create_task(http.run())
                await until_connections(http, 1)
                await until_connections(http, 0)
                await http.stop(1.0)

    asyncio.run(main())


@pytest.mark.parametrize("head", [
    "POST / HTTP/1.1\r\nContent-Length: 9999", "GET / HTTP/1.1\r\nTransfer-Encoding: chunked",
])
def test_a_body_is_not_waited_for(head: str) -> None:
    """A request is answered without its body, and its connection ends at once, though the body goes on coming."""

    async def main() -> None:
        listener = server.bind("127.0.0.1:0")
        http = server.HttpServer(Starlette(), listener)
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            group.create_task(http.run())
            began = asyncio.get_running_loop().time()
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(f"{head}\r\nHost: x\r\n\r\n".encode())
            assert (await reader.read()).startswith(b"HTTP/1.1 404")
            assert asyncio.get_running_loop().time() - began < server.IDLE_S
            writer.close()
            await http.stop(1.0)

    asyncio.run(main())


async def until_connections(http: server.HttpServer, count: int) -> None:
    while len(http._server.server_state.connections) != count:
        await asyncio.sleep(0.01)
