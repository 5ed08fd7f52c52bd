"""What the files of docker/ say of one daemon each, whatever form they have, and what a machine would give it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tierd.config import load
from tierd.settings import Settings, parse_size

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
UNIT = (DOCKER / "systemd/tierd.service").read_text()
MANIFESTS = sorted((DOCKER / "kubernetes").glob("*.yaml"))
SPILL_URL = "redis://user:password@redis:6379/0"
"""Stands for what a secret holds."""


@dataclass(frozen=True)
class Deployment:
    """One daemon. `mounts`: volume by path in its container; `limit_bytes`: of memory, None for none."""

    name: str
    environ: Mapping[str, str]
    shm_bytes: int | None
    limit_bytes: int | None
    mounts: Mapping[str, str]
    grace_s: float
    descriptors: int

    @property
    def settings(self) -> Settings:
        return load({}, self.environ, DOCKER / "systemd/tierd.toml" if self.name == "systemd" else None)


def image_environment() -> dict[str, str]:
    """Variables that the image sets."""
    joined = DOCKERFILE.replace("\\\n", " ")
    lines = [line.removeprefix("ENV ") for line in joined.splitlines() if line.startswith("ENV ")]
    return dict(re.findall(r"(\w+)=(\S+)", " ".join(lines)))


def tierd_environment(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith("TIERD_")}


def documents(path: Path) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(path.read_text()) if one]


def pod_of(path: Path) -> dict[str, Any]:
    """The pod's specification of a manifest."""
    found: dict[str, Any] = documents(path)[0]["spec"]["template"]["spec"]
    return found


def containers(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", []), *pod["containers"]]


def daemon_of(pod: Mapping[str, Any]) -> dict[str, Any]:
    return next(one for one in containers(pod) if one["name"] == "tierd")


def environ_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {one["name"]: str(one.get("value", SPILL_URL)) for one in container.get("env", [])}


def mounts_of(container: Mapping[str, Any]) -> dict[str, str]:
    return {one["mountPath"]: one["name"] for one in container.get("volumeMounts", [])}


def size(text: object) -> int:
    """Bytes of a size as compose (3g, powers of 1024) and Kubernetes (3Gi) write it."""
    words = re.sub(r"(?i)(\d)([kmg])(i?b?)$", lambda found: f"{found[1]}{found[2].upper()}iB", str(text))
    return int(str(parse_size(words)))


def _compose() -> Deployment:
    service = COMPOSE["services"]["tierd"]
    mounts = {one.split(":")[1]: one.split(":")[0] for one in service["volumes"]}
    return Deployment(
        "compose", tierd_environment(image_environment() | service["environment"]), size(service["shm_size"]),
        size(service["mem_limit"]), mounts, float(service["stop_grace_period"].removesuffix("s")),
        service["ulimits"]["nofile"],
    )


def _manifest(path: Path) -> Deployment:
    pod = pod_of(path)
    daemon = daemon_of(pod)
    volumes = {one["name"]: one for one in pod["volumes"]}
    shm = volumes[mounts_of(daemon)["/dev/shm"]].get("emptyDir", {}).get("sizeLimit")
    return Deployment(
        path.stem, tierd_environment(image_environment() | environ_of(daemon)), size(shm) if shm else None,
        size(daemon["resources"]["limits"]["memory"]), mounts_of(daemon), pod["terminationGracePeriodSeconds"],
        1 << 20,
    )


def _systemd() -> Deployment:
    environ = dict(one.split("=", 1) for one in re.findall(r"^Environment=(.*)$", UNIT, re.MULTILINE)[0].split())
    grace = re.findall(r"^TimeoutStopSec=(\d+)$", UNIT, re.MULTILINE)[0]
    descriptors = int(re.findall(r"^LimitNOFILE=(\d+)$", UNIT, re.MULTILINE)[0])
    return Deployment("systemd", environ, None, None, {}, float(grace), descriptors)


DEPLOYMENTS = [_compose(), *map(_manifest, MANIFESTS), _systemd()]


def program(name: str) -> str | None:
    """A program of this environment or of the machine."""
    import shutil
    import sys

    beside = Path(sys.executable).parent / name
    return str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
