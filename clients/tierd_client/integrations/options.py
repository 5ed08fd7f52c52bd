"""What an engine's configuration says of tierd, checked and named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from tierd_client.arguments import address, text, whole
from tierd_client.errors import InvalidArgument
from tierd_client.places import default_address

TIMEOUT_MS_MAX = 600_000


@dataclass(frozen=True, slots=True)
class Options:
    """How an engine uses its daemon. Times in milliseconds, 1 to 600,000.

    `address`: of the daemon on this host; $TIERD_ADDRESS, else that of a daemon of this user. `token`: where it
    wants one. `revision`: of the model, where its directory does not tell. `tenant`: keeps this engine's blocks
    apart. `answer_ms`: within it the daemon answers, or counts as away until it answers again. `promote_ms`: how
    long a request may wait for blocks that come up from the spill tier; what is not there by then is computed.
    `shadow`: nothing is stored or found, requests are only reported, and `tierd stats --shadow` says what would
    have been saved.
    """

    address: str = ""
    token: str = ""
    revision: str = ""
    tenant: str = ""
    answer_ms: int = 100
    promote_ms: int = 2_000
    shadow: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "address", address(self.address or default_address(), "address"))
        for name in ("token", "revision", "tenant"):
            text(getattr(self, name), name)
        for name in ("answer_ms", "promote_ms"):
            whole(getattr(self, name), name, 1, TIMEOUT_MS_MAX)
        if not isinstance(self.shadow, bool):
            raise InvalidArgument(f"shadow: {self.shadow!r} is neither true nor false")

    @classmethod
    def of(cls, given: object) -> Options:
        """Of a mapping in an engine's configuration. InvalidArgument names what is no option, or out of range."""
        if not isinstance(given, Mapping):
            raise InvalidArgument(f"tierd: {given!r} is no mapping of options")
        known = [one.name for one in fields(cls)]
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            raise InvalidArgument(f"tierd.{unknown[0]}: is none of {', '.join(known)}")
        chosen: dict[str, Any] = dict(given)
        try:
            return cls(**chosen)
        except InvalidArgument as error:
            raise InvalidArgument(f"tierd.{error}") from error

    @property
    def answer_s(self) -> float:
        return self.answer_ms / 1000

    @property
    def promote_s(self) -> float:
        return self.promote_ms / 1000
