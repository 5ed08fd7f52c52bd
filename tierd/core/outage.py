"""Whether the spill tier is up, and for how long nothing could be stored there."""

from __future__ import annotations


class Outage:
    """Of one spill tier. Times are wall time, seconds.

    A server that answers probes and takes nothing (read-only, or it cannot save its data) goes up and down by
    turns, or is up all the time and refuses: it is failing since the first of it, until a store succeeds.
    """

    def __init__(self, grace_s: float) -> None:
        """`grace_s`: how long victims that cannot be stored are kept. A time up of as much ends the trouble,
        too."""
        self.up = True
        self._grace_s = grace_s
        self._failing_since: float | None = None
        self._back_at = 0.0

    def is_too_long(self, now_s: float) -> bool:
        """Whether nothing could be stored for longer than victims are kept."""
        return self._failing_since is not None and now_s - self._failing_since >= self._grace_s

    def change(self, up: bool, now_s: float) -> None:
        """The tier goes up or down, or stays what it is."""
        if up and not self.up:
            self._back_at = now_s
        if self.up and not up and (self._failing_since is None or now_s - self._back_at >= self._grace_s):
            self._failing_since = now_s
        self.up = up

    def store_failed(self, now_s: float) -> None:
        if self._failing_since is None:
            self._failing_since = now_s

    def store_succeeded(self) -> None:
        self._failing_since = None
