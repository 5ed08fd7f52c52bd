"""What one run measured, kept as a file so that peers can be measured one at a time."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from peer_figures import Figure, Verdict, Work, verdicts
from peer_subjects import BY_NAME, LIMIT, OURS, Subject


@dataclass(frozen=True, slots=True)
class Result:
    """A peer beside tierd and memcpy, in one run on one machine; or why there is none (`error`)."""

    peer: str
    machine: dict[str, Any]
    wall_s: float
    versions: dict[str, str] = field(default_factory=dict)
    figures: dict[str, list[Figure]] = field(default_factory=dict)
    error: str = ""

    @property
    def subject(self) -> Subject:
        return BY_NAME[self.peer]

    @property
    def theirs(self) -> dict[Work, Figure]:
        return _by_work(self.figures.get(self.peer, []))

    @property
    def ours(self) -> dict[Work, Figure]:
        return _by_work(self.figures.get(OURS.name, []))

    @property
    def limit(self) -> dict[Work, Figure]:
        return _by_work(self.figures.get(LIMIT.name, []))

    @property
    def verdicts(self) -> dict[Work, Verdict]:
        return verdicts(self.ours, self.theirs)

    def keep(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.peer}.json").write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def kept(cls, folder: Path, peer: str) -> Self | None:
        """None where this peer was never measured."""
        path = folder / f"{peer}.json"
        if not path.exists():
            return None
        said = json.loads(path.read_text())
        said["figures"] = {
            name: [Figure(**one | {"work": Work(**one["work"])}) for one in figures]
            for name, figures in said["figures"].items()
        }
        return cls(**said)


def _by_work(figures: list[Figure]) -> dict[Work, Figure]:
    """Where a store knows no queued puts, its put stands for them."""
    by_work = {figure.work: figure for figure in figures}
    for one in figures:
        if one.work.verb == "put":
            by_work.setdefault(replace(one.work, verb="queue"), one)
    return by_work
