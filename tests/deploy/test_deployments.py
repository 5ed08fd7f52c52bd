"""What the files of docker/ and their recipes say is true of the daemon: settings, paths, ports, sizes, times."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from deployments import (
    COMPOSE,
    DEPLOYMENTS,
    DOCKER,
    DOCKERFILE,
    MANIFESTS,
    ROOT,
    UNIT,
    Deployment,
    containers,
    daemon_of,
    documents,
    environ_of,
    image_environment,
    mounts_of,
    pod_of,
    size,
    tierd_environment,
)

from tierd.cli import COMMANDS
from tierd.config import ENV_PREFIX, NOT_SETTINGS
from tierd.console.doctor import PROCESS_BYTES
from tierd.doctor.checks import Severity, examine
from tierd.doctor.facts import Facts, MachineFacts, NodeFacts, SharedMemoryFacts, SpillFacts, StateFacts
from tierd.settings import Settings
from tierd.testing.serve import ServeProcess
from tierd.wiring import HTTP_DEFAULT, memory_plan

EXIT_WITHIN_S = 20
"""How long the daemon may take to stop."""
PLENTY_BYTES = 1 << 50
FILES = [path for path in DOCKER.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
RECIPES = sorted((ROOT / "docs/deploy").glob("*.md"))
each_deployment = pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda one: one.name)
each_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)


# --- settings -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [*FILES, *RECIPES], ids=lambda path: path.name)
def test_variables_are_settings(path: Path) -> None:
    """Each TIERD_ variable that a file names is one that something reads."""
    named = set(re.findall(rf"\b{ENV_PREFIX}[A-Z_]+\b", path.read_text()))
    assert not [
        name for name in named
        if not NOT_SETTINGS.fullmatch(name) and name.removeprefix(ENV_PREFIX).lower() not in Settings.model_fields
    ]


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.name)
def test_commands_and_flags_exist(path: Path) -> None:
    """Each `tierd` command that a recipe shows exists, with its flags."""
    shown = re.findall(r"\btierd ((?:serve|doctor|size|stats|verify|drain|config)\b[^\n`|]*)", path.read_text())
    for words in shown:
        command, *rest = words.split()
        assert command in COMMANDS
        flags = {word.split("=")[0] for word in rest if word.startswith("--")}
        if command in ("serve", "doctor") and flags:
            known = {f"--{name.replace('_', '-')}" for name in Settings.model_fields} | {"--config", "--json"}
            assert flags <= known


@each_deployment
def test_settings_are_accepted(deployment: Deployment) -> None:
    """The settings of each form are ones with which `tierd serve` starts, and their spill tier is a server."""
    assert "://" in deployment.settings.spill.get_secret_value()


@each_deployment
def test_the_doctor_finds_nothing(deployment: Deployment) -> None:
    """With the memory, shared memory and limits that the file gives, the doctor finds no error and no warning."""
    settings = deployment.settings
    shm_bytes = deployment.shm_bytes or PLENTY_BYTES
    server = NodeFacts("redis", product="Valkey", version=(8, 1), maxmemory_bytes=PLENTY_BYTES)
    if deployment.name == "compose":
        words = COMPOSE["services"]["valkey"]["command"]
        options = dict(zip(words[1::2], words[2::2], strict=True))
        server = replace(server, maxmemory_bytes=size(options["--maxmemory"].removesuffix("b")),
                         policy=options["--maxmemory-policy"])
    facts = Facts(
        settings=settings, process_bytes=PROCESS_BYTES,
        shm_bytes=sum(file.size for file in memory_plan(settings).files().values()),
        shm=SharedMemoryFacts(settings.shm_dir, total_bytes=shm_bytes, free_bytes=shm_bytes),
        machine=MachineFacts(PLENTY_BYTES, deployment.limit_bytes, deployment.descriptors, None, 1, "", "pause"),
        state=StateFacts(settings.state_dir, mode=0o700),
        spill=SpillFacts("redis", nodes=(server,), ping_ms=0.2, store_bytes_per_s=1e9, load_bytes_per_s=1e9),
    )
    findings = [one for one in examine(facts) if one.severity in (Severity.WARNING, Severity.ERROR)]
    assert not findings


@each_deployment
def test_a_stop_is_given_its_time(deployment: Deployment) -> None:
    """Nobody kills a daemon that is still stopping in order."""
    assert deployment.grace_s > EXIT_WITHIN_S


def test_probes_ask_what_is_answered() -> None:
    """Probes, health checks and recipes ask for paths that are routed, on the port that the daemon has."""
    routed = set(re.findall(r'Route\("(/[a-z]+)"', (ROOT / "tierd/web/routes.py").read_text()))
    port = HTTP_DEFAULT.rpartition(":")[2]
    for path in (DOCKER / "Dockerfile", *MANIFESTS, *RECIPES):
        text = path.read_text()
        assert set(re.findall(r"(?<![\w.])(/(?:healthz|readyz|metrics))\b", text)) <= routed
        assert set(re.findall(r"\b(?:9\d{3})\b", text)) <= {port}
    for manifest in MANIFESTS:
        daemon = daemon_of(pod_of(manifest))
        assert environ_of(daemon)["TIERD_HTTP_ADDRESS"] == f"0.0.0.0:{port}"
        assert {one["name"]: one["containerPort"] for one in daemon["ports"]} == {"http": int(port)}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert daemon[probe]["httpGet"]["port"] == "http"


def test_a_drain_leaves_time_to_stop() -> None:
    """What a pod does before it stops is a command, and leaves the daemon its time."""
    pod = pod_of(DOCKER / "kubernetes/sidecar.yaml")
    program, command, option, seconds = daemon_of(pod)["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, option) == ("tierd", "--timeout-s") and command in COMMANDS
    assert float(seconds) + EXIT_WITHIN_S < pod["terminationGracePeriodSeconds"]


# --- places ---------------------------------------------------------------------------------------------


def test_sources_of_the_image_exist() -> None:
    """Each path that the Dockerfile copies exists, and .dockerignore lets it through."""
    copied = [word for line in re.findall(r"^COPY (?!--from)(.*)$", DOCKERFILE, re.MULTILINE)
              for word in line.split()[:-1]]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    let_through = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    assert copied
    assert all((ROOT / name).exists() for name in copied)
    assert set(copied) == let_through


def test_the_image_can_be_made_of_its_sources(tmp_path: Path) -> None:
    """What the Dockerfile copies is enough to build both distributions."""
    left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
    for name in ("clients", "tierd"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=left_out)
    for line in re.findall(r"^COPY (.*) \./$", DOCKERFILE, re.MULTILINE):
        for name in line.split():
            shutil.copy(ROOT / name, tmp_path / name)
    made = tmp_path / "made"
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    done = subprocess.run(
        [*command, "--wheel-dir", str(made), "./clients", "."], cwd=tmp_path, capture_output=True, text=True,
        timeout=120, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {path.name.split("-")[0] for path in made.iterdir()} == {"tierd", "tierd_client"}


def test_python_of_the_image() -> None:
    """All stages have one version of Python, which the distribution allows."""
    versions = set(re.findall(r"^FROM python:(\d+\.\d+)", DOCKERFILE, re.MULTILINE))
    asked = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert len(versions) == 1
    assert tuple(map(int, versions.pop().split("."))) >= tuple(map(int, asked.removeprefix(">=").split(".")))


def test_entry_points_exist() -> None:
    """What the image, the unit and the compose file start is there."""
    assert json.loads(re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)[-1])[0] in COMMANDS
    started = re.findall(r"^Exec\w+=-?/opt/tierd/bin/tierd (\w+)", UNIT, re.MULTILINE)
    assert started == ["doctor", "serve"]
    assert set(started) <= set(COMMANDS)
    assert (DOCKER / COMPOSE["services"]["worker"]["volumes"][1].split(":")[0]).is_file()


@each_deployment
def test_state_lies_in_a_volume(deployment: Deployment) -> None:
    """Sockets and instance id are where the workers find them and where the next start does."""
    if deployment.name == "systemd":
        assert f"StateDirectory={deployment.settings.state_dir.name}" in UNIT
    else:
        assert any(deployment.settings.state_dir.is_relative_to(path) for path in deployment.mounts)


def test_workers_find_the_socket() -> None:
    """Each worker has the daemon's address, the volume that it lies in, and the daemon's user."""
    address = f"unix://{image_environment()['TIERD_STATE_DIR']}/tierd.sock"
    assert image_environment()["TIERD_ADDRESS"] == address
    assert COMPOSE["services"]["tierd"]["volumes"][0] in COMPOSE["services"]["worker"]["volumes"]
    pod = pod_of(DOCKER / "kubernetes/sidecar.yaml")
    worker, daemon = pod["containers"][0], daemon_of(pod)
    assert environ_of(worker)["TIERD_ADDRESS"] == address
    assert mounts_of(worker)["/run/tierd"] == mounts_of(daemon)["/run/tierd"]
    assert "runAsUser" not in worker["securityContext"]


@each_manifest
def test_pods_are_bounded_and_unprivileged(manifest: Path) -> None:
    """Every container has a memory limit, gives up all capabilities and runs as the image's user, but for one that
    only makes directories on the node."""
    pod = pod_of(manifest)
    user = int(re.findall(r"^USER (\d+):", DOCKERFILE, re.MULTILINE)[0])
    assert pod["securityContext"]["runAsUser"] == user
    for one in containers(pod):
        rights = one["securityContext"]
        assert one["resources"]["limits"]["memory"]
        assert rights["capabilities"]["drop"] == ["ALL"] and not rights["allowPrivilegeEscalation"]
        assert rights["readOnlyRootFilesystem"]
        if one["name"] == "directories":
            assert one["command"][0] == "install" and str(user) in one["command"]
        else:
            assert rights.get("runAsUser", user) == user and "add" not in rights["capabilities"]


@each_manifest
def test_volumes_are_used_and_there(manifest: Path) -> None:
    """Each mount has its volume, each volume its mount."""
    pod = pod_of(manifest)
    mounted = {name for one in containers(pod) for name in mounts_of(one).values()}
    assert mounted == {one["name"] for one in pod["volumes"]}


def test_disruption_budget_is_for_these_pods() -> None:
    """The budget selects the pods of the deployment."""
    deployment, budget = documents(DOCKER / "kubernetes/sidecar.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert budget["spec"]["selector"]["matchLabels"].items() <= labels.items()


# --- the example worker ---------------------------------------------------------------------------------


def test_the_example_worker(daemon: ServeProcess) -> None:
    """The worker of the compose file gets back what it stored, byte for byte: in the first round what prompts
    share, in the second all of it; and another one after a kill -9 of the daemon as well."""
    first, second = run_worker(daemon, rounds=2)
    assert 0 < first["taken"] < first["blocks"] and first["stored"] == first["blocks"] - first["taken"]
    assert second["taken"] == second["blocks"] and not second["stored"]
    daemon.restart()
    (third,) = run_worker(daemon, rounds=1)
    assert third["taken"] == third["blocks"]
    assert not first["wrong"] + second["wrong"] + third["wrong"]


def run_worker(daemon: ServeProcess, rounds: int) -> list[dict[str, int]]:
    environment = os.environ | {"TIERD_ADDRESS": daemon.address, "ROUNDS": str(rounds)}
    done = subprocess.run(
        [sys.executable, str(DOCKER / "worker.py")], env=environment, capture_output=True, text=True, timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_as_a_container_would(tmp_path: Path) -> None:
    """Under the image's settings, without a capability, in namespaces of its own and with the compose file's
    /dev/shm, the daemon gets healthy by the image's own check, serves a worker, and stops in order."""
    if not all(map(shutil.which, ("unshare", "setpriv", "mount", "ip"))):
        pytest.skip("unshare, setpriv, mount and ip are not all installed")
    volume = Path(tempfile.mkdtemp(prefix="tierd-deploy-"))
    state = volume / Path(image_environment()["TIERD_STATE_DIR"]).name
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
    environment |= tierd_environment(image_environment()) | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "TIERD_SPILL": "embedded",
        "TIERD_HOST_BYTES": "64MiB", "TIERD_STATE_DIR": str(state), "TIERD_ADDRESS": f"unix://{state}/tierd.sock",
    }
    code = json.loads(re.findall(r"HEALTHCHECK.*?CMD (\[.*?\])$", DOCKERFILE, re.MULTILINE | re.DOTALL)[0])[2]
    shm_bytes = size(COMPOSE["services"]["tierd"]["shm_size"])
    inside = ["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    arguments = [ROOT / "tests/deploy/as_container.sh", volume, shm_bytes, code, DOCKER / "worker.py"]
    done = subprocess.run(
        [*inside, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=90,
        check=False,
    )
    volume.rmdir()
    if done.returncode == 3 or "unshare failed" in done.stderr:
        pytest.skip("this user may not make namespaces")
    assert done.returncode == 0, done.stdout + done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    assert rounds[1]["taken"] == rounds[1]["blocks"] and not any(one["wrong"] for one in rounds)
    assert '"event": "stopped"' in done.stderr
