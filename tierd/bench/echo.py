"""gRPC's own floor: a server with the daemon's settings whose method named N answers any request with N bytes.

`python -m tierd.bench.echo ADDRESS` serves until it is stopped.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import grpc
import uvloop

from tierd.rpc.server import OPTIONS


class _Echo(grpc.GenericRpcHandler):  # type: ignore[misc]
    def service(self, details: Any) -> Any:
        reply = bytes(int(details.method.rpartition("/")[2]))

        async def answer(_request: bytes, _context: Any) -> bytes:
            return reply

        return grpc.unary_unary_rpc_method_handler(answer)


async def serve(address: str) -> None:
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_Echo(),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(sys.argv[1]))
