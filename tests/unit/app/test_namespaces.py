"""Namespaces: stable numbers, names bound to one layout, a file that is written before it is relied on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tierd.app import namespaces
from tierd.app.namespaces import Namespaces, Place
from tierd.core.errors import InvalidInput, LimitReached, NotFound, Refused
from tierd_client.hits import HitRule
from tierd_client.layout import Group, Layout, Part


def layout(model: str = "m", block_bytes: int = 4096) -> Layout:
    return Layout.opaque(block_bytes=block_bytes, model=model)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "namespaces.json"


def register(registry: Namespaces, of: Layout, name: str = "") -> int:
    return registry.register(of.canonical(), of.fingerprint, name).number


def test_numbers_are_stable_over_restarts(path: Path) -> None:
    """A layout has the same number, name and block size in the next daemon."""
    first = Namespaces(path)
    numbers = [register(first, layout(model), model) for model in "abc"]
    assert numbers == [1, 2, 3]
    again = Namespaces(path)
    assert [register(again, layout(model)) for model in "abc"] == numbers
    assert (again.name_of(2), again.place(2, 0).block_bytes, len(again)) == ("b", 4096, 3)
    assert again.fingerprint_of(3) == layout("c").fingerprint


def test_registering_twice_writes_nothing(path: Path) -> None:
    """A known layout is answered without touching the disk."""
    registry = Namespaces(path)
    register(registry, layout(), "name")
    path.unlink()
    assert register(registry, layout(), "name") == register(registry, layout()) == 1
    assert not path.exists()


def test_on_disk_before_it_is_used(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number whose file could not be written is not given, and the file of before is whole."""
    registry = Namespaces(path)
    register(registry, layout("a"))

    def broken(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(namespaces.os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        register(registry, layout("b"))
    monkeypatch.undo()
    with pytest.raises(NotFound):
        registry.get(2)
    assert len(Namespaces(path)) == 1
    assert register(registry, layout("b")) == 2


def test_a_name_is_bound_to_one_layout(path: Path) -> None:
    """Binding a name to a second layout is refused, naming the first field that differs."""
    registry = Namespaces(path)
    register(registry, layout("a"), "shared")
    with pytest.raises(Refused, match=r"'shared' is bound to a layout that differs in model"):
        register(registry, layout("b"), "shared")
    assert register(registry, layout("b")) == 2


def test_a_layout_may_have_several_names(path: Path) -> None:
    """A second name for a layout is added; listings show the oldest."""
    registry = Namespaces(path)
    register(registry, layout(), "one")
    assert register(registry, layout(), "two") == 1
    again = Namespaces(path)
    assert again.get(1).names == ("one", "two") and again.name_of(1) == "one"
    with pytest.raises(Refused, match="two"):
        register(again, layout("b"), "two")


def test_a_name_may_come_later(path: Path) -> None:
    """A layout registered without a name can be named later, and keeps its number."""
    registry = Namespaces(path)
    register(registry, layout())
    assert registry.name_of(1) == ""
    assert register(registry, layout(), "late") == 1
    assert Namespaces(path).name_of(1) == "late"


def test_wrong_fingerprint(path: Path) -> None:
    """A fingerprint that is not the hash of the canonical layout is malformed, and named."""
    with pytest.raises(InvalidInput) as caught:
        Namespaces(path).register(layout().canonical(), bytes(32))
    assert caught.value.field == "fingerprint"


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda c: b"", lambda c: c + b"x", lambda c: b"\xff" * 100])
def test_malformed_canonical(path: Path, damage) -> None:
    """Bytes that are no canonical layout are malformed, and nothing is registered."""
    registry = Namespaces(path)
    with pytest.raises(InvalidInput) as caught:
        registry.register(damage(layout().canonical()), layout().fingerprint)
    assert caught.value.field == "canonical" and len(registry) == 0


def test_other_schema_version(path: Path) -> None:
    """Another version of the encoding is refused naming both."""
    with pytest.raises(Refused, match="schema_version 2 is not the daemon's, which is 1"):
        Namespaces(path).register(layout().canonical(), layout().fingerprint, "", 2)


HYBRID = (
    Group("kv", 16, (Part("k", "uint8", (64,)),)),
    Group("swa", 16, (Part("k", "uint8", (32,)),), "window", 72),
    Group("state", 64, (Part("s", "uint8", (8,)),), "boundary", replicated=True),
)


def test_groups(path: Path) -> None:
    """Each group has its rule in blocks and its size; one that is not there is malformed and named."""
    registry = Namespaces(path)
    register(registry, Layout.of_groups(HYBRID))
    assert registry.place(1, 0) == Place(1, HitRule(16), 64)
    assert registry.place(1, 1) == Place(1, HitRule(16, tail=5), 32)
    assert registry.place(1, 2) == Place(1, HitRule(64, tail=1), 8)
    assert registry.get(1).block_bytes() == [64, 32, 8]
    with pytest.raises(InvalidInput, match=r"group: 3, but namespace 1 has 3 group"):
        registry.place(1, 3)
    with pytest.raises(NotFound, match="namespace 9"):
        registry.place(9, 0)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_replicated_groups_have_one_home(path: Path, order: tuple[int, ...]) -> None:
    """Blocks of a replicated group belong to TP rank 0's namespace whichever rank comes first; others to their
    own rank's. The next daemon knows it as well."""
    layouts = [Layout.of_groups(HYBRID, tp_rank=rank, tp_size=3) for rank in range(3)]
    first = Namespaces(path)
    numbers = {rank: register(first, layouts[rank]) for rank in order}
    for registry in (first, Namespaces(path)):
        assert len(registry) == 3
        for rank, number in numbers.items():
            assert [registry.place(number, group).namespace for group in range(3)] == [number, number, numbers[0]]
            assert registry.fingerprint_of(numbers[0]) == layouts[rank].group_fingerprint(2)


def test_layouts_without_replicated_groups_register_alone(path: Path) -> None:
    """A rank whose groups are all its own makes no other rank's namespace."""
    registry = Namespaces(path)
    register(registry, layout().replace(tp_rank=3, tp_size=8))
    assert len(registry) == 1


def test_numbers_run_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all numbers are given a new layout is refused by a named limit; known ones are served."""
    monkeypatch.setattr(namespaces, "NUMBER_MAX", 1)
    registry = Namespaces(path)
    register(registry, layout("a"))
    with pytest.raises(LimitReached, match="all 1 namespaces are taken"):
        register(registry, layout("b"))
    assert register(registry, layout("a")) == 1


def test_names_run_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The names of one layout are limited."""
    monkeypatch.setattr(namespaces, "NAMES_MAX", 1)
    registry = Namespaces(path)
    register(registry, layout(), "a")
    with pytest.raises(LimitReached, match="1 names"):
        register(registry, layout(), "b")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"namespaces": [{"number": 1}]}', '{"namespaces": [1]}'])
def test_a_damaged_file_stops_the_start(path: Path, text: str) -> None:
    """A file that cannot be read is an error that names it: with other numbers blocks would change meaning."""
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"namespaces.json"):
        Namespaces(path)


def test_the_file_is_json_for_people(path: Path) -> None:
    """The file lists numbers and names in plain JSON."""
    register(Namespaces(path), layout(), "llama")
    row = json.loads(path.read_text())["namespaces"][0]
    assert (row["number"], row["names"]) == (1, ["llama"])


# --- weights --------------------------------------------------------------------------------------------


def test_a_name_moves_to_other_weights(path: Path) -> None:
    """After a switch the name stands for the same layout of the new epoch, the old one is retired and refused
    under the name, naming the epoch; the next daemon knows it as well."""
    registry = Namespaces(path)
    old, new = layout(), layout().replace(weights_epoch=5)
    register(registry, old, "policy")
    before, now = registry.switch("policy", 5)
    assert (before.number, now.number, now.layout) == (1, 2, new)
    for known in (registry, Namespaces(path)):
        assert known.retired() == {1} and known.get(1).names == () and known.get(2).names == ("policy",)
        assert register(known, new, "policy") == 2
        with pytest.raises(Refused, match=r"'policy' is bound to a layout that differs in weights_epoch"):
            register(known, old, "policy")


def test_a_switch_is_idempotent_and_goes_back(path: Path) -> None:
    """A repeated switch changes nothing and touches no disk; one back to earlier weights finds their namespace."""
    registry = Namespaces(path)
    register(registry, layout(), "policy")
    registry.switch("policy", 5)
    path.unlink()
    assert [one.number for one in registry.switch("policy", 5)] == [2, 2]
    assert not path.exists()
    assert [one.number for one in registry.switch("policy", 0)] == [2, 1]
    assert registry.retired() == {2}


def test_who_registers_it_wants_it(path: Path) -> None:
    """A layout that is registered after its weights were switched away from is no longer retired, nor is one that
    keeps another name."""
    registry = Namespaces(path)
    register(registry, layout(), "policy")
    registry.switch("policy", 1)
    assert register(registry, layout()) == 1 and registry.retired() == frozenset()
    register(registry, layout(), "frozen")
    register(registry, layout(), "reference")
    registry.switch("frozen", 2)
    assert registry.retired() == frozenset() and registry.get(1).names == ("reference",)


def test_what_cannot_be_switched(path: Path) -> None:
    """A name that stands for nothing is not found, an epoch below 0 is malformed; nothing changes."""
    registry = Namespaces(path)
    register(registry, layout(), "policy")
    with pytest.raises(NotFound, match="'other' is bound to no namespace"):
        registry.switch("other", 1)
    with pytest.raises(InvalidInput, match="weights_epoch: -1") as caught:
        registry.switch("policy", -1)
    assert caught.value.field == "weights_epoch" and len(registry) == 1


def test_a_switch_that_cannot_be_written_did_not_happen(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name goes on standing for what it stood for, on disk and in memory."""
    registry = Namespaces(path)
    register(registry, layout(), "policy")

    def broken(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(namespaces.os, "fsync", broken)
    with pytest.raises(OSError, match="disk full"):
        registry.switch("policy", 1)
    monkeypatch.undo()
    for known in (registry, Namespaces(path)):
        assert register(known, layout(), "policy") == 1 and known.retired() == frozenset()


def test_the_home_of_retired_ranks_is_retired_unless_it_has_a_name(path: Path) -> None:
    """Replicated blocks go with the first rank that is switched, but those of a rank 0 that has a name with it."""
    ranks = [Layout.of_groups(HYBRID, tp_rank=rank, tp_size=2) for rank in (0, 1)]
    registry = Namespaces(path)
    one = register(registry, ranks[1], "rank 1")
    home = registry.place(one, 2).namespace
    registry.switch("rank 1", 1)
    assert registry.retired() == {one, home}
    assert register(registry, ranks[0], "rank 0") == home
    registry.switch("rank 1", 0)
    registry.switch("rank 1", 2)
    assert home not in registry.retired() and one in registry.retired()
    registry.switch("rank 0", 2)
    assert {one, home} <= registry.retired()


def test_a_start_frees_the_numbers_of_retired_namespaces(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of retired namespaces without a block are given again after a restart, no others, and not before."""
    monkeypatch.setattr(namespaces, "NUMBER_MAX", 4)
    registry = Namespaces(path)
    register(registry, layout(), "policy")
    for epoch in (1, 2, 3):
        registry.switch("policy", epoch)
    with pytest.raises(LimitReached, match="all 4 namespaces are taken; a restart frees"):
        registry.switch("policy", 4)
    again = Namespaces(path)
    again.forget_retired(in_use={2, 4})
    assert len(again) == 2 and again.get(4).names == ("policy",)
    assert again.switch("policy", 4)[1].number == 1
    assert Namespaces(path).retired() == {2, 4}
    assert again.switch("policy", 3)[1].number == 4
