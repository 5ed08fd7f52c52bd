"""Files that a command was asked to write: text, and pictures, which are SVG or PNG by the file's ending."""

from __future__ import annotations

from pathlib import Path

from tierd.core.errors import InvalidInput
from tierd.sim.png import as_png, check_drawable


def write(file: Path | None, content: str | bytes) -> None:
    """Writes a file that was asked for. InvalidInput names it when it cannot be written."""
    if file is None:
        return
    try:
        file.write_bytes(content.encode() if isinstance(content, str) else content)
    except OSError as error:
        raise InvalidInput(str(file), f"cannot be written: {error.strerror}") from error


def check_picture(file: Path | None) -> None:
    """InvalidInput for a picture that could not be drawn: to be asked before the work of a long replay."""
    if file is None:
        return
    if file.suffix not in (".svg", ".png"):
        raise InvalidInput("--plot", f"{file} ends neither in .svg nor in .png")
    if file.suffix == ".png":
        check_drawable("--plot")


def draw(file: Path | None, document: str) -> None:
    """Writes a picture, given as SVG, that was asked for."""
    if file is not None:
        write(file, as_png(document) if file.suffix == ".png" else document)
