"""Linters over the files that cannot be built where the check runs: images, compose, Kubernetes, systemd, shell."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from deployments import DOCKER, MANIFESTS, ROOT, UNIT, program

SHELL_SCRIPTS = [ROOT / ".ci/run", *(path for path in ROOT.rglob("*.sh") if ".venv" not in path.parts)]


def lint(name: str, *arguments: object) -> None:
    """Runs a linter; fails with what it says."""
    found = program(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_dockerfile() -> None:
    """hadolint has nothing to say about the Dockerfile."""
    lint("hadolint", DOCKER / "Dockerfile")


def test_yaml() -> None:
    """yamllint has nothing to say about any YAML file."""
    lint("yamllint", "--strict", "--config-file", ROOT / ".yamllint.yaml", DOCKER, ROOT / ".yamllint.yaml")


def test_compose() -> None:
    """The compose file follows the compose specification."""
    lint("check-jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / "compose.yaml")


@pytest.mark.parametrize("version", ["1.29", "1.37"])
def test_kubernetes(version: str) -> None:
    """The manifests hold no field that Kubernetes does not know, in the oldest release named and in a new one."""
    lint("kubernetes-validate", "--strict", "--kubernetes-version", version, *MANIFESTS)


def test_shell() -> None:
    """shellcheck has nothing to say about any script."""
    lint("shellcheck", *SHELL_SCRIPTS)


def test_systemd(tmp_path: Path) -> None:
    """systemd understands each line of the unit."""
    unit = tmp_path / "tierd.service"
    unit.write_text(UNIT.replace("/opt/tierd/bin/tierd", "/bin/true"))
    lint("systemd-analyze", "verify", unit)
