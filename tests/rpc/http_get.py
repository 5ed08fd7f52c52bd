"""A GET against an ASGI application, without a socket."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any


@dataclass
class Answer:
    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


async def get(application: Any, path: str) -> Answer:
    """What the application answers to GET `path`."""
    answer = Answer(0, b"")

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
        else:
            answer.body += message.get("body", b"")

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http",
        "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "headers": [],
        "client": ("test", 1), "server": ("test", 80),
    }
    await application(scope, receive, send)
    return answer
