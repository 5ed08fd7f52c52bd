"""How many bytes a second may go to and from the spill store: a bucket that fills at that rate."""

from __future__ import annotations


class Allowance:
    """Holds at most one second's worth. What must go is taken anyway and leaves a debt; what can be left out waits
    for the bucket to have something in it. So loads go before stores, and a block may be larger than a second."""

    def __init__(self, bytes_per_s: float) -> None:
        """0: no limit."""
        self._rate = bytes_per_s
        self._level = bytes_per_s
        self._told_s: float | None = None

    def tell(self, now_s: float) -> None:
        """The time; one that goes back stands still."""
        told_s = now_s if self._told_s is None else self._told_s
        self._told_s = max(now_s, told_s)
        self._level = min(self._rate, self._level + (self._told_s - told_s) * self._rate)

    def take(self, size: int) -> None:
        """So many bytes go."""
        if self._rate:
            self._level -= size

    @property
    def spare(self) -> bool:
        """Whether there is something left for what can be left out."""
        return not self._rate or self._level > 0
