"""A deadline: the moment by which a call must be over, handed down to everything that it waits for."""

from __future__ import annotations

import time

from tierd_client.arguments import seconds


class Deadline:
    """So many seconds from now; never below zero."""

    __slots__ = ("_end",)

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + max(0.0, seconds)

    @classmethod
    def of(cls, timeout_s: float, name: str = "timeout_s") -> Deadline:
        """That of a caller. InvalidArgument when it is not from 0 to 600 s."""
        return cls(seconds(timeout_s, name))

    def left_s(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def socket_s(self) -> float:
        """What is left for a socket, where 0 would mean not to wait at all."""
        return self.left_s() or 0.001

    def left_ms(self) -> int:
        return int(self.left_s() * 1000)

    def passed(self) -> bool:
        return time.monotonic() >= self._end
