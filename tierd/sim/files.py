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


def check_place(file: Path | None) -> None:
    """InvalidInput for a file that could not be written: to be asked before the work of a long replay."""
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        raise InvalidInput(str(file), "is a directory" if file.is_dir() else f"{file.parent} is no directory")


def check_picture(file: Path | None) -> None:
    """The same of a picture, which must be of a kind that can be drawn here."""
    check_place(file)
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
