"""Tables on a terminal: words that clients chose are shown, never obeyed."""

from __future__ import annotations

import pytest

from tierd.console.answers import print_table


@pytest.mark.parametrize(("name", "shown"), [
    ("two\nlines", r"two\nlines"), ("\x1b[2J\x1b]0;title\x07", r"\x1b[2J\x1b]0;title\x07"), ("[/red]", "[/red]"),
    ("[bold]x", "[bold]x"), ("right\u202eleft", r"right\u202eleft"), ("Grüße 模型", "Grüße 模型"),
])
def test_names_are_shown_as_they_are(name: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A name keeps to its cell: what would break the line, steer the terminal or be markup is shown as text."""
    print_table(["name", "blocks"], [(name, 1)])
    heading, row, *more = capsys.readouterr().out.splitlines()
    assert heading.split() == ["name", "blocks"] and row.rsplit(maxsplit=1) == [shown, "1"] and not more
