"""Facts of a machine on which nothing is wrong, to spoil one thing at a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tierd.doctor.checks import Finding, Severity, examine
from tierd.doctor.facts import (
    CudaFacts,
    Device,
    Facts,
    MachineFacts,
    NodeFacts,
    SharedMemoryFacts,
    SpillFacts,
    StateFacts,
)
from tierd.settings import Settings

GIB = 1 << 30
URL = "redis://cache:6379/0"
NODE = NodeFacts("cache:6379", product="Valkey", version=(8, 1, 0), maxmemory_bytes=16 * GIB, skew_s=0.001)
SPILL = SpillFacts(URL, nodes=(NODE,), ping_ms=0.2, store_bytes_per_s=1e9, load_bytes_per_s=1e9)
CUDA = CudaFacts("2.13.0", "13.0", "580.65", (Device("H200", 100 * GIB, 139 * GIB),), expandable_segments=False)


def healthy(**changed: Any) -> Facts:
    """Facts without a finding above `ok`. A change of a part is `part__field=value`, of all of it `part=value`."""
    path = Path("/run/tierd")
    facts = Facts(
        settings=Settings(state_dir=path, spill=URL, host_bytes=8 * GIB, spill_bytes_max=8 * GIB),
        shm_bytes=9 * GIB, process_bytes=GIB,
        shm=SharedMemoryFacts(Path("/dev/shm"), huge="advise", total_bytes=32 * GIB, free_bytes=32 * GIB),
        machine=MachineFacts(64 * GIB, 32 * GIB, 65_536, None, 1, "default", "systemd"),
        state=StateFacts(path, mode=0o700), spill=SPILL,
    )
    for name, value in changed.items():
        part, _, field = name.partition("__")
        if field and part == "settings":
            facts = replace(facts, settings=facts.settings.model_copy(update={field: value}))
        else:
            facts = replace(facts, **{part: replace(getattr(facts, part), **{field: value}) if field else value})
    return facts


def found(facts: Facts) -> list[Finding]:
    """Findings above `ok`."""
    return [one for one in examine(facts) if one.severity is not Severity.OK]
