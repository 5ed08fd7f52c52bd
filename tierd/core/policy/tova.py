"""TOVA over blocks: the least attention in the last report goes first.

Oren et al., "Transformers are Multi-State RNNs", 2024 (arXiv 2401.06104), lifted to blocks of all layers and heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from tierd.core.policy.attended import ByAttention
from tierd.core.policy.base import Attended, FloatArray, Parameters


@dataclass(frozen=True)
class Tova(ByAttention):
    name: ClassVar[str] = "tova"
    rule: ClassVar[str] = "-share in the last report"

    @classmethod
    def parse(cls, parameters: Parameters) -> Tova:
        return cls(parameters.common(alpha=0.5))

    def own_spec(self) -> list[str]:
        return []

    def worth(self, seen: Attended) -> FloatArray:
        return seen.latest
