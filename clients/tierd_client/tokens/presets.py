"""Policies by name, with the parameters of the documents that they come from."""

from __future__ import annotations

from typing import Any

from tierd_client.errors import InvalidArgument
from tierd_client.tokens.h2o import H2O
from tierd_client.tokens.policy import TokenPolicy
from tierd_client.tokens.random import Random
from tierd_client.tokens.scissorhands import Scissorhands
from tierd_client.tokens.snapkv import SnapKV
from tierd_client.tokens.streaming import SlidingWindow, StreamingLLM
from tierd_client.tokens.strided import Strided
from tierd_client.tokens.tova import Tova

POLICIES: dict[str, type[TokenPolicy]] = {
    kind.name: kind
    for kind in (H2O, SnapKV, Tova, Scissorhands, StreamingLLM, SlidingWindow, Strided, Random)
}

PRESETS: dict[str, dict[str, int]] = {
    "guide": {"budget": 1024, "recent": 512},
    "registry": {"budget": 512, "recent": 32},
}
"""`guide`: `max_budget` 1024 and `recent_ratio` 0.5 of the H2O guide. `registry`: the defaults of the SnapKV page's
registry of policies."""


def policy_of(name: str, preset: str = "registry", **parameters: Any) -> TokenPolicy:
    """A policy by name, with a preset's budget and window where it has them, and `parameters` before these.

    Raises InvalidArgument for an unknown name or parameter, and as the policy does.
    """
    for parameter, value, known in (("name", name, POLICIES), ("preset", preset, PRESETS)):
        if value not in known:
            raise InvalidArgument(f"{parameter}: {value!r} is none of {', '.join(known)}")
    kind = POLICIES[name]
    allowed = kind.__dataclass_fields__
    unknown = [parameter for parameter in parameters if parameter not in allowed]
    if unknown:
        raise InvalidArgument(f"{unknown[0]}: {name} has no such parameter, but {', '.join(allowed)}")
    presets = {key: value for key, value in PRESETS[preset].items() if key in allowed}
    return kind(**(presets | parameters))
