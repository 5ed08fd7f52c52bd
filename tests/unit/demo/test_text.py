"""The prompts of the demo."""

from __future__ import annotations

import pytest

from tierd.demo.model import BLOCK_TOKENS
from tierd.demo.text import (
    DOCUMENT_TOKENS,
    PREFIX_TOKENS,
    QUESTION_TOKENS,
    NoText,
    conversations,
    encode_bytes,
    real_pages,
)


def pages(count: int, characters: int = 400) -> dict[str, str]:
    return {f"page-{i:02}": f"{i} " * (characters // 2) for i in range(count)}


def test_prompts_share_the_prefix_and_nothing_after_it() -> None:
    """All contexts begin with the same whole blocks and differ within the block after them."""
    made = conversations(encode_bytes, 10)
    assert len({one.context[:PREFIX_TOKENS] for one in made}) == 1
    assert len({one.context[PREFIX_TOKENS : PREFIX_TOKENS + BLOCK_TOKENS] for one in made}) >= 8
    assert len({one.context for one in made}) == 10
    assert PREFIX_TOKENS % BLOCK_TOKENS == DOCUMENT_TOKENS % BLOCK_TOKENS == 0


def test_follow_ups_extend_the_context() -> None:
    """Both follow-ups begin with the context and end with different questions."""
    one = conversations(encode_bytes, 1)[0]
    asked = [one.follow_up(0), one.follow_up(1)]
    assert asked[0] != asked[1]
    for prompt in asked:
        assert prompt[: len(one.context)] == one.first()
        assert len(prompt) == PREFIX_TOKENS + DOCUMENT_TOKENS + QUESTION_TOKENS


def test_prompts_are_the_same_every_time() -> None:
    """Two calls make the same prompts, so two workers agree on identities."""
    assert conversations(encode_bytes, 5) == conversations(encode_bytes, 5)


def test_pages_that_begin_alike_are_taken_once() -> None:
    """A page that repeats another one's beginning is no new document."""
    some = pages(4) | {"page-99": pages(4)["page-03"]}
    with pytest.raises(NoText, match="3 pages"):
        conversations(encode_bytes, 4, some)


def test_too_little_text_is_said() -> None:
    """Short pages are left out, and too few of them are an error with both numbers."""
    with pytest.raises(NoText, match=r"1 pages .* 2 are needed"):
        conversations(encode_bytes, 2, pages(2) | {"page-50": "short"})
    with pytest.raises(NoText, match="128 are needed"):
        conversations(encode_bytes, 1, {"only": "short"})


def test_bytes_are_tokens_above_the_padding() -> None:
    """The byte encoding keeps 0 free and is one token a byte."""
    assert encode_bytes("A\u00e9") == [66, 0xC3 + 1, 0xA9 + 1]


def test_the_machine_has_text() -> None:
    """The interpreter's own reference is prose without the ruled lines of its headings."""
    text = "\n".join(real_pages().values())
    assert len(text) > 30_000
    assert "\n*****" not in text
