"""Policies of other packages: found by entry point, imported when they are named, refused with the reason."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tierd.core.policy import registry
from tierd.plugins import GROUP, offer_policies
from tierd.testing.policy_contract import refused_field

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "my_policy"
BROKEN = {
    "no_module": "nowhere_at_all:make", "no_function": "broken_policies:nothing", "raises": "raising_policies:make",
    "no_callable": "broken_policies:number", "no_policy": "broken_policies:Empty", "lru": "broken_policies:Empty",
    "bad_index": "broken_policies:Odd",
}


def install(folder: Path, name: str, points: dict[str, str]) -> None:
    """What an installer leaves of a package: its metadata."""
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"{point} = {value}" for point, value in points.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines]) + "\n")


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose policies are all wrong."""
    install(tmp_path, "broken", BROKEN)
    (tmp_path / "raising_policies.py").write_text("raise OSError('no device')\n")
    (tmp_path / "broken_policies.py").write_text(
        "number = 3\n\nclass Empty:\n    def __init__(self, parameters): pass\n\n"
        "class Odd(Empty):\n    name = rule = spec = common = ranks = terms = 1\n    index = 'heaps'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_offered", {})
    offer_policies()


def refusal(spec: str) -> str:
    with pytest.raises(registry.InvalidInput) as caught:
        registry.parse(spec)
    assert caught.value.field == "policy"
    return str(caught.value)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("no_module", "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("no_function", "AttributeError"), ("raises", "OSError: no device"), ("no_callable", "no function"),
        ("no_policy", "it has no name, rule, index, common, spec, ranks, terms"),
        ("bad_index", "it has no heaps (its index)"),
    ],
)
@pytest.mark.usefixtures("broken")
def test_what_is_no_policy_is_refused_with_the_reason(spec: str, reason: str) -> None:
    """A policy that cannot be loaded, or is none, is refused by its name, and says why and whose it is."""
    message = refusal(spec)
    assert reason in message
    assert spec in message


@pytest.mark.usefixtures("broken")
def test_a_broken_package_harms_nobody_else() -> None:
    """Policies of tierd's own are what they were, also one whose name the package wants; unknown names list all."""
    assert refused_field("lru") == refused_field("lrfu(ranking=composite)") == ""
    assert "lru" in refusal("no_such_policy")
    assert "raises" in refusal("no_such_policy")


def test_the_example_passes_the_contract_and_is_short(tmp_path: Path) -> None:
    """The policy written from docs/policies/writing.md has fewer than 60 lines, is found by name, and passes."""
    assert len((EXAMPLE / "my_policy.py").read_text().splitlines()) < 60
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(tmp_path, "my_policy", project["entry-points"][GROUP])
    paths = [str(tmp_path), str(EXAMPLE), *sys.path]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={EXAMPLE}", str(EXAMPLE)]
    run = subprocess.run(
        command, env={"PYTHONPATH": ":".join(filter(None, paths))}, cwd=tmp_path, capture_output=True, text=True,
        timeout=240, check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "skipped" not in run.stdout
