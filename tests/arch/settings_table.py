"""Prints docs/settings.md, made of the settings themselves: `make docs`."""

from __future__ import annotations

import re
from typing import Any

from tierd.settings import Settings

HEAD = """# Settings of `tierd serve`

Made by `make docs` from `tierd/settings.py`. Each setting is a flag (`--host-bytes 8GiB`), a variable
(`TIERD_HOST_BYTES=8GiB`) and a key of the TOML file that `--config` or `TIERD_CONFIG` names
(`host_bytes = "8GiB"`); the first of them that is given wins. Sizes are bytes or a number with KiB, MiB, GiB, TiB,
kB, MB, GB, TB. Whatever is unknown or impossible stops the start, named with where it was given.

| setting | range | what, unit, default |
|---|---|---|
"""


def row(name: str, field: Any) -> str:
    return f"| `{name}` | {bounds(field)} | {field.description.replace('|', chr(92) + '|')} |"


def bounds(field: Any) -> str:
    """The range of a number, the choices of an enumeration."""
    limits = {key: getattr(one, key) for one in field.metadata for key in ("ge", "le") if hasattr(one, key)}
    if limits:
        return f"{number(limits.get('ge'))} to {number(limits.get('le'))}"
    choices = getattr(field.annotation, "__members__", None)
    return ", ".join(f"`{member.value}`" for member in choices.values()) if choices else ""


def number(value: float | None) -> str:
    """A bound in the largest unit that leaves it whole."""
    if value is None:
        return "any"
    if not isinstance(value, int) or value < 1 << 20 or value % (1 << 20):
        return f"{value:,}"
    power = min(4, max(n for n in range(5) if value % (1 << 10 * n) == 0))
    return f"{value >> 10 * power:,}{['', ' Ki', ' Mi', ' Gi', ' Ti'][power]}"


def document() -> str:
    rows = [row(name, field) for name, field in Settings.model_fields.items()]
    return HEAD + re.sub(r" +\n", "\n", "\n".join(rows)) + "\n"


if __name__ == "__main__":
    print(document(), end="")
