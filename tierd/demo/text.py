"""The prompts of the demo: conversations over real text that share one system prefix.

    |-- prefix: the same for all --|-- document: one each --|-- question of round 2 or of round 3 --|

Prefix and document end on block boundaries, so that all their blocks can be re-used. The text is the
reference of the Python language that comes with every interpreter (`pydoc_data.topics`); where a distribution
left it out, the GPL on the machine.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tierd.core.errors import TierdError

PREFIX_TOKENS = 128
DOCUMENT_TOKENS = 128
QUESTION_TOKENS = 40
"""2.5 blocks, so that a prompt ends inside a block as prompts do."""

GPL = Path("/usr/share/common-licenses/GPL-3")
_PREFIX_TOPIC = "execmodel"
_PAGE_CHARACTERS = 2000
_HEADING_CHARACTERS = "*=-~^"

Encode = Callable[[str], list[int]]


class NoText(TierdError):
    """The machine has no text to make so many prompts of."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One document under the shared prefix, and two questions. All are token ids."""

    name: str
    context: tuple[int, ...]
    questions: tuple[tuple[int, ...], tuple[int, ...]]

    def first(self) -> list[int]:
        return list(self.context)

    def follow_up(self, number: int) -> list[int]:
        """The context and question 0 or 1."""
        return list(self.context + self.questions[number])


def encode_bytes(text: str) -> list[int]:
    """Token ids for models without a vocabulary: bytes, 1 to 256 (0 is padding)."""
    return [byte + 1 for byte in text.encode()]


def conversations(encode: Encode, count: int, pages: dict[str, str] | None = None) -> list[Conversation]:
    """`count` of them, always the same ones. Raises NoText."""
    pages = real_pages() if pages is None else pages
    prefix, documents = _choose(encode, pages)
    chosen = [
        Conversation(name, tuple(prefix + tokens[:DOCUMENT_TOKENS]), _questions(tokens))
        for (name, tokens), _ in zip(documents, range(count), strict=False)
    ]
    if len(chosen) < count:
        raise NoText(f"{len(chosen)} pages of text are long enough, {count} are needed")
    return chosen


def _choose(encode: Encode, pages: dict[str, str]) -> tuple[list[int], Iterator[tuple[str, list[int]]]]:
    names = sorted(pages)
    first = _PREFIX_TOPIC if _PREFIX_TOPIC in pages else names[0]
    prefix = encode(pages[first])[:PREFIX_TOKENS]
    if len(prefix) < PREFIX_TOKENS:
        raise NoText(f"page {first!r} has {len(prefix)} tokens, {PREFIX_TOKENS} are needed")
    return prefix, _documents(encode, pages, [name for name in names if name != first])


def _documents(encode: Encode, pages: dict[str, str], names: list[str]) -> Iterator[tuple[str, list[int]]]:
    """Pages that are long enough and begin unlike any other."""
    seen: set[tuple[int, ...]] = set()
    need = DOCUMENT_TOKENS + 2 * QUESTION_TOKENS
    for name in names:
        tokens = encode(pages[name][: 8 * need])[:need]
        beginning = tuple(tokens[:DOCUMENT_TOKENS])
        if len(tokens) == need and beginning not in seen:
            seen.add(beginning)
            yield name, tokens


def _questions(tokens: list[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    middle = DOCUMENT_TOKENS + QUESTION_TOKENS
    return tuple(tokens[DOCUMENT_TOKENS:middle]), tuple(tokens[middle:])


def real_pages() -> dict[str, str]:
    """Text by name. Raises NoText."""
    try:
        topics: dict[str, str] = importlib.import_module("pydoc_data.topics").topics
        return {name: _prose(text) for name, text in topics.items()}
    except ImportError:
        pass
    try:
        text = GPL.read_text()
    except OSError as error:
        raise NoText(f"neither pydoc_data.topics nor {GPL} is there: {error}") from error
    starts = range(0, len(text), _PAGE_CHARACTERS)
    return {f"GPL-3:{start}": text[start : start + _PAGE_CHARACTERS] for start in starts}


def _prose(text: str) -> str:
    """Without the ruled lines under headings."""
    lines = text.splitlines()
    return "\n".join(line for line in lines if not line or line.strip(_HEADING_CHARACTERS))
