"""Asks torch and the kernel about CUDA. torch is imported only here, and only when hbm is to be on a GPU."""

from __future__ import annotations

import os
import re
from pathlib import Path

from tierd.doctor.facts import CudaFacts, Device

DRIVER = Path("proc/driver/nvidia/version")
ALLOCATOR_VARIABLES = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


def look_at_cuda(root: Path = Path("/")) -> CudaFacts:
    """Takes the seconds that torch takes to import; makes a context on each device that is there."""
    try:
        import torch
    except ImportError:
        return CudaFacts("", "", _driver(root), (), _expandable_segments())
    devices = tuple(_devices(torch)) if torch.cuda.is_available() else ()
    return CudaFacts(
        torch.__version__, torch.version.cuda or "", _driver(root), devices, _expandable_segments()
    )


def _devices(torch: object) -> list[Device]:
    cuda = torch.cuda  # type: ignore[attr-defined]
    found = []
    for number in range(cuda.device_count()):
        free, total = cuda.mem_get_info(number)
        found.append(Device(cuda.get_device_name(number), free, total))
    return found


def _driver(root: Path) -> str:
    """The version that the loaded kernel module tells."""
    try:
        found = re.search(r"Kernel Module.*?\s(\d+\.[\d.]+)", (root / DRIVER).read_text())
    except OSError:
        return ""
    return found[1] if found else "of unknown version"


def _expandable_segments() -> bool:
    return any("expandable_segments:true" in os.environ.get(name, "").lower() for name in ALLOCATOR_VARIABLES)
