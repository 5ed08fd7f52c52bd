"""The namespaces of an instance: number <-> canonical layout, fingerprint and name.

A number stands in every record and envelope for a layout, so it is on disk before it is used, and it is
never given to another layout. A name stands for one layout, a layout may have several names. Blocks of
replicated groups belong to the layout of TP rank 0, its home, which is registered with any other rank's.

A switch of weights binds a name to the same layout of another epoch. The namespace that is left without a name is
retired: its blocks are cleared (app/sweep.py), and its number is free again at the next start. The file is JSON:
{"namespaces": [{"number", "names", "canonical", "retired"}]}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tierd.core.errors import InvalidInput, LimitReached, NotFound, Refused
from tierd_client.hits import HitRule
from tierd_client.layout import SCHEMA_VERSION, Layout, decode_canonical, differing_field

NUMBER_MAX = 65535
"""Numbers are 16 bits in the record; 0 is none."""

NAMES_MAX = 64
"""Names of one layout."""


@dataclass(frozen=True, slots=True)
class Namespace:
    """A registered layout and its names, oldest first. `retired`: its weights were switched away from."""

    number: int
    layout: Layout
    names: tuple[str, ...] = ()
    retired: bool = False

    @property
    def fingerprint(self) -> bytes:
        return self.layout.fingerprint

    def block_bytes(self) -> list[int]:
        """Bytes of a block, per group."""
        return [group.block_bytes for group in self.layout.groups]


@dataclass(frozen=True, slots=True)
class LayoutFilter:
    """Fields that a layout must have, None for any. `weights_epoch_below`: an upper bound that is left out."""

    model: str | None = None
    revision: str | None = None
    weights_epoch: int | None = None
    weights_epoch_below: int | None = None
    tenant: str | None = None

    def takes(self, layout: Layout) -> bool:
        equal = all(
            wanted is None or getattr(layout, field) == wanted
            for field in ("model", "revision", "weights_epoch", "tenant")
            for wanted in [getattr(self, field)]
        )
        return equal and (self.weights_epoch_below is None or layout.weights_epoch < self.weights_epoch_below)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the blocks of one group belong: the `namespace` in their records, their rule and size."""

    namespace: int
    rule: HitRule
    block_bytes: int


class Namespaces:
    """The registry, kept in one file. `register` blocks for the disk; lookups are safe from any thread."""

    def __init__(self, path: Path) -> None:
        """Reads the file, if there is one. InvalidInput when it is not what this module wrote."""
        self._path = path
        self._by_number: dict[int, Namespace] = {}
        self._by_fingerprint: dict[bytes, Namespace] = {}
        self._by_name: dict[str, Namespace] = {}
        self._places: dict[tuple[int, int], Place] = {}
        for namespace in _read(path):
            self._enter(namespace)

    def __len__(self) -> int:
        return len(self._by_number)

    def register(
        self, canonical: bytes, fingerprint: bytes, name: str = "", schema_version: int = SCHEMA_VERSION
    ) -> Namespace:
        """The namespace of a layout, made when it is new; idempotent. On disk when it returns.

        Refused for another schema version, or when the name is bound to another layout, naming the field
        that differs; InvalidInput for a malformed layout or a fingerprint that is not its own.
        """
        layout = _decode(canonical, fingerprint, schema_version)
        self._check_name(name, layout)
        self._save(self._with_home(layout, name))
        return self._by_fingerprint[layout.fingerprint]

    def switch(self, name: str, weights_epoch: int) -> tuple[Namespace, Namespace]:
        """Binds a name to its layout with weights of another epoch; the namespace of before, and that of now.
        Idempotent. On disk when it returns.

        NotFound for a name that stands for nothing, InvalidInput for an epoch that cannot be.
        """
        before = self._by_name.get(name)
        if before is None:
            raise NotFound(f"name {name!r} is bound to no namespace")
        try:
            layout = before.layout.replace(weights_epoch=weights_epoch)
        except ValueError as error:
            raise InvalidInput("weights_epoch", str(error)) from error
        if layout == before.layout:
            return before, before
        self._save([*self._without_name(before, name), *self._with_home(layout, name)])
        return before, self._by_fingerprint[layout.fingerprint]

    def retired(self) -> frozenset[int]:
        """Numbers of the namespaces whose blocks nobody wants any more."""
        return frozenset(one.number for one in tuple(self._by_number.values()) if one.retired)

    def forget_retired(self, in_use: Collection[int]) -> None:
        """Frees the numbers of retired namespaces but for those in use. Only for a daemon's start: a client may
        use the number that it was told until then."""
        for number in self.retired().difference(in_use):
            gone = self._by_number.pop(number)
            del self._by_fingerprint[gone.fingerprint]

    def _without_name(self, namespace: Namespace, name: str) -> list[Namespace]:
        """A namespace with a name less. With the last one it is retired, and so is its home if that has none."""
        names = tuple(one for one in namespace.names if one != name)
        left = [replace(namespace, names=names, retired=not names)]
        home = self._by_fingerprint.get(namespace.layout.home.fingerprint)
        if home is not None and home is not namespace and not names and not home.names:
            left.append(replace(home, retired=True))
        return left

    def _with_home(self, layout: Layout, name: str) -> list[Namespace]:
        """The namespace of a layout with a name more, and that of its home where they are two."""
        own = self._named(layout, name)
        if layout.home == layout or not any(group.replicated for group in layout.groups):
            return [own]
        return [own, self._named(layout.home, "", taken=own.number)]

    def _named(self, layout: Layout, name: str, taken: int = 0) -> Namespace:
        """The namespace of a layout with a name more. `taken`: a number that is being given already."""
        known = self._by_fingerprint.get(layout.fingerprint)
        if known is None:
            return Namespace(self._next_number(taken), layout, (name,) * bool(name))
        if not name or name in known.names:
            return replace(known, retired=False)
        if len(known.names) == NAMES_MAX:
            raise LimitReached(f"the layout has {NAMES_MAX} names already, the most it can have")
        return Namespace(known.number, layout, (*known.names, name))

    def _save(self, namespaces: list[Namespace]) -> None:
        """Puts namespaces on disk, then into the tables; those that are there as they are cost nothing."""
        new = {one.number: one for one in namespaces if self._by_number.get(one.number) != one}
        if not new:
            return
        _write(self._path, [*(self._by_number | new).values()])
        for namespace in new.values():
            self._enter(namespace)

    def all(self) -> list[Namespace]:
        """By number."""
        return [self._by_number[number] for number in sorted(self._by_number)]

    def matching(self, where: LayoutFilter) -> frozenset[int]:
        """Numbers of the namespaces whose layout the filter takes."""
        return frozenset(one.number for one in tuple(self._by_number.values()) if where.takes(one.layout))

    def get(self, number: int) -> Namespace:
        """NotFound for a number that was never given."""
        namespace = self._by_number.get(number)
        if namespace is None:
            raise NotFound(f"namespace {number} is not known: register it first")
        return namespace

    def fingerprint_of(self, number: int) -> bytes:
        return self.get(number).fingerprint

    def name_of(self, number: int) -> str:
        """The oldest name; empty where there is none."""
        namespace = self._by_number.get(number)
        return namespace.names[0] if namespace is not None and namespace.names else ""

    def place(self, number: int, group: int) -> Place:
        """Where blocks of a group belong. NotFound for the namespace, InvalidInput for the group."""
        place = self._places.get((number, group))
        if place is None:
            place = self._places[number, group] = self._find_place(self.get(number).layout, group)
        return place

    def _find_place(self, layout: Layout, group: int) -> Place:
        of = self._by_fingerprint[layout.fingerprint].number
        if group >= len(layout.groups):
            raise InvalidInput("group", f"{group}, but namespace {of} has {len(layout.groups)} group(s)")
        home = self._by_fingerprint.get(layout.group_fingerprint(group))
        if home is None:
            raise NotFound(f"namespace {of} was registered without that of its TP rank 0: register it first")
        return Place(home.number, layout.groups[group].hit_rule, layout.groups[group].block_bytes)

    def _check_name(self, name: str, layout: Layout) -> None:
        bound = self._by_name.get(name) if name else None
        if bound is not None and bound.fingerprint != layout.fingerprint:
            field = differing_field(bound.layout, layout)
            raise Refused(f"name {name!r} is bound to a layout that differs in {field}")

    def _next_number(self, taken: int) -> int:
        number = max(taken, *self._by_number, 0) + 1
        if number > NUMBER_MAX:
            free = (n for n in range(1, NUMBER_MAX + 1) if n not in self._by_number and n != taken)
            number = next(free, 0)
        if not number:
            raise LimitReached(f"all {NUMBER_MAX} namespaces are taken; a restart frees those that are retired")
        return number

    def _enter(self, namespace: Namespace) -> None:
        self._by_number[namespace.number] = namespace
        self._by_fingerprint[namespace.fingerprint] = namespace
        for name in namespace.names:
            self._by_name[name] = namespace


def _decode(canonical: bytes, fingerprint: bytes, schema_version: int) -> Layout:
    if schema_version != SCHEMA_VERSION:
        raise Refused(f"schema_version {schema_version} is not the daemon's, which is {SCHEMA_VERSION}")
    try:
        layout = decode_canonical(canonical)
    except ValueError as error:
        raise InvalidInput("canonical", str(error)) from error
    if fingerprint != layout.fingerprint:
        expected = layout.fingerprint.hex()
        raise InvalidInput("fingerprint", f"{fingerprint.hex()} is not that of canonical, {expected}")
    return layout


def _read(path: Path) -> list[Namespace]:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    try:
        return [_parse(row) for row in json.loads(text)["namespaces"]]
    except (ValueError, KeyError, TypeError) as error:
        problem = f"{path} cannot be read ({error}): restore it, or remove it together with the blocks"
        raise InvalidInput("namespaces", problem) from error


def _parse(row: dict[str, Any]) -> Namespace:
    layout = decode_canonical(bytes.fromhex(row["canonical"]))
    return Namespace(int(row["number"]), layout, tuple(map(str, row["names"])), bool(row.get("retired", False)))


def _write(path: Path, namespaces: list[Namespace]) -> None:
    rows = [
        {"number": n.number, "names": n.names, "canonical": n.layout.canonical().hex(), "retired": n.retired}
        for n in namespaces
    ]
    scratch = path.with_suffix(".new")
    with scratch.open("w") as file:
        json.dump({"namespaces": rows}, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
