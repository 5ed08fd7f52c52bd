"""`tierd stats --shadow`: what is derived of the figures, and what a person reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tierd.console.shadow import print_shadow, with_seconds
from tierd_client.shadow import ShadowEstimate, ShadowNamespace, ShadowSize, ShadowStats

GIB = 1 << 30
ALL = ShadowSize(
    64 * GIB, 13_107, 13_107, 1.0, ShadowEstimate(600, 0), ShadowEstimate(500, 0), ShadowEstimate(250, 0))
SAMPLE = ShadowSize(
    1024 * GIB, 209_715, 52_428, 1 / 16, ShadowEstimate(900, 10), ShadowEstimate(800, 20), ShadowEstimate(400, 30))
NAMESPACE = ShadowNamespace(
    3, "chat", "llama", "lru", 16, 5 << 20, 40, 1_000, 100, 2_000.0, 60.4, (ALL, SAMPLE))
STATS = ShadowStats((NAMESPACE,), 0)


def lines_of(found: ShadowStats, rate: float | None, capsys: pytest.CaptureFixture[str]) -> list[str]:
    print_shadow(found, rate)
    return capsys.readouterr().out.splitlines()


def test_seconds_are_saved_tokens_by_the_rate() -> None:
    """Programs are told rates of all that was asked for, tokens of what the engine had not itself, and seconds."""
    small, large = with_seconds(STATS, None)["namespaces"][0]["sizes"]
    assert (small["block_hit_rate"], small["prefix_hit_rate"]) == (0.6, 0.5)
    assert (small["saved_tokens"], small["saved_prefill_s"]) == (4_000, 2.0)
    assert (large["saved"], large["saved_prefill_s"]) == ({"blocks": 400, "error": 30}, 3.2)


def test_the_rate_that_is_given_counts() -> None:
    """A rate from the command line stands for the engine's own; without either there are no seconds."""
    given = with_seconds(STATS, 500.0)["namespaces"][0]
    assert (given["prefill_tokens_per_s"], given["sizes"][0]["saved_prefill_s"]) == (500.0, 8.0)
    unknown = with_seconds(ShadowStats((replace(NAMESPACE, prefill_tokens_per_s=0.0),), 0), None)
    assert unknown["namespaces"][0]["sizes"][0]["saved_prefill_s"] is None


def test_the_table_tells_samples_from_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """What was counted stands alone, what was sampled beside the error that it may have."""
    *_, small, large, _ = lines_of(STATS, None, capsys)
    assert small.split() == ["64.00", "GiB", "all", "100", "%", "50.0", "%", "60.0", "%", "4,000", "2.0"]
    assert large.split() == [
        "1.00", "TiB", "1/16", "25", "%", "80.0", "±", "2.0", "%", "90.0", "±", "1.0", "%", "6,400", "±", "480",
        "3.2", "±", "0.2",
    ]


def test_the_head_says_of_what_it_speaks(capsys: pytest.CaptureFixture[str]) -> None:
    """Namespace, requests, blocks, what the engine had itself, rate and policy are above the table."""
    first, second, *_ = lines_of(STATS, None, capsys)
    assert first == "namespace 3, chat: 40 requests in 60 s, 1000 blocks of 16 tokens, 5.00 MiB each"
    assert second == "of these 10.0 % were in the engine's own cache; prefill 2,000 tokens/s; policy lru"


def test_without_a_rate_it_says_which_option_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Where nobody has measured prefill the seconds are left out, and the option is named."""
    lines = lines_of(ShadowStats((replace(NAMESPACE, prefill_tokens_per_s=0.0),), 0), None, capsys)
    assert "rate not known: --prefill-tokens-per-s" in lines[1]
    assert lines[-2].endswith("-")


def test_what_was_left_out_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Reports in no figure are counted below the tables; with none there is no such line."""
    assert "7 reports are in no figure" in lines_of(replace(STATS, left_out_calls_total=7), None, capsys)[-1]
    assert not any("no figure" in line for line in lines_of(STATS, None, capsys))


def test_a_daemon_that_was_told_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a report there is no table, but where to read how one comes about."""
    assert "docs/shadow.md" in "".join(lines_of(ShadowStats((), 0), None, capsys))


def test_nothing_asked_for_is_nothing_hit(capsys: pytest.CaptureFixture[str]) -> None:
    """A namespace of which only answers were reported divides by nothing."""
    none = ShadowEstimate(0, 0)
    empty = replace(ALL, block_hits=none, prefix_hits=none, saved=none)
    found = ShadowStats((replace(NAMESPACE, asked_blocks=0, served_blocks=0, sizes=(empty,)),), 0)
    assert with_seconds(found, None)["namespaces"][0]["sizes"][0]["prefix_hit_rate"] == 0.0
    assert "0.0 %" in lines_of(found, None, capsys)[-2]
