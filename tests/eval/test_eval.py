"""`tierd eval`: rows of one batch answer as caches on their own, and the figures are what they say."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hf_models import llama, prompt, tokenizer
from typer.testing import CliRunner

from tierd.cli import app
from tierd.eval.measure import found, surprise
from tierd.eval.methods import FULL, METHODS
from tierd.eval.study import Cell, Plan, interval, student_t
from tierd_client.integrations.transformers import use_attention

NOWHERE = "unix:///nowhere/tierd.sock"
BUDGET = 64


@pytest.fixture(scope="module")
def model() -> Iterator[Any]:
    with torch.no_grad():
        chosen = llama(7)
        use_attention(chosen)
        yield chosen


def _alone(model: Any, cache: Any, ids: Any, answer: Any) -> torch.Tensor:
    """Surprise by a cache that is fed in a batch of its own, by transformers alone."""
    model(ids[None], cache=cache)
    nats = []
    for token, following in itertools.pairwise(answer):
        logits = model(token.reshape(1, 1), cache=cache).logits[0, -1]
        nats.append(torch.nn.functional.cross_entropy(logits, following))
    return torch.stack(nats)


def test_rows_of_a_batch_answer_as_caches_alone(model: Any) -> None:
    """Every method's surprise in the common batch is that of the method alone, token by token."""
    ids, answer = prompt(300, seed=20)[0], prompt(12, seed=21)[0]
    made = [make(model, BUDGET, NOWHERE) for make in METHODS.values()]
    together = surprise(model, made, ids, answer)
    for row, make in zip(together, METHODS.values(), strict=True):
        assert row.sub(_alone(model, make(model, BUDGET, NOWHERE), ids, answer)).abs().max() < 1e-3


def test_the_whole_cache_is_the_model(model: Any) -> None:
    """Without a budget the surprise is that of one forward pass over everything."""
    ids, answer = prompt(100, seed=22)[0], prompt(12, seed=23)[0]
    got = surprise(model, [METHODS[FULL](model, BUDGET, NOWHERE)], ids, answer)[0]
    logits = model(torch.cat((ids, answer))[None]).logits[0, 100:-1]
    assert got.sub(torch.nn.functional.cross_entropy(logits, answer[1:], reduction="none")).abs().max() < 1e-3


def test_a_needle_is_found_when_its_tokens_are_the_likeliest(model: Any) -> None:
    """What the model itself says next is found by the whole cache, another token is not."""
    ids, question = prompt(100, seed=24)[0], prompt(4, seed=25)[0]
    said = model.generate(torch.cat((ids, question))[None], max_new_tokens=3, do_sample=False)[0, 104:]
    whole = [METHODS[FULL](model, BUDGET, NOWHERE) for _ in range(2)]
    assert found(model, whole[:1], ids, question, said) == [True]
    assert found(model, whole[1:], ids, question, (said + 1) % 512) == [False]


@pytest.mark.parametrize(("freedom", "known"), [(3, 3.1824), (5, 2.5706), (9, 2.2622), (30, 2.0423)])
def test_quantiles_are_those_of_the_table(freedom: int, known: float) -> None:
    """Student's t at 95 % agrees with the printed table to one percent."""
    assert student_t(freedom) == pytest.approx(known, rel=0.01)


def test_intervals_cover_the_mean() -> None:
    """Of four samples: their mean, and t times the deviation of the mean; one sample has no interval."""
    samples = [1.0, 2.0, 4.0, 5.0]
    assert interval(samples) == (3.0, pytest.approx(student_t(3) * statistics.stdev(samples) / 2))
    assert math.isnan(interval([1.0])[1])
    cell = Cell("h2o", 10, nats=[math.log(8.0), math.log(2.0)])
    assert cell.perplexity()[0] == pytest.approx(4.0)


def test_the_whole_cache_is_one_row() -> None:
    """It has no budget, so it stands once, first, before each method at each budget."""
    plan = Plan((FULL, "h2o", "tova"), (10, 50), 1, 0, 1000, 20, 1)
    assert plan.cells() == [(FULL, 100), ("h2o", 10), ("h2o", 50), ("tova", 10), ("tova", 50)]
    assert plan.tokens(10) == 100


def test_the_command_from_model_to_table(tmp_path: Any) -> None:
    """A directory of a model and a text give JSON, Markdown and a plot with a row for each method and budget."""
    directory, text = tmp_path / "model", tmp_path / "text"
    llama(3).save_pretrained(directory)
    tokenizer().save_pretrained(directory)
    text.write_text(" ".join(str(number % 97) for number in range(4000)))
    told = CliRunner().invoke(app, [
        "eval", "--model", str(directory), "--dataset", str(text), "--methods", "streaming,offload",
        "--budgets", "30,50", "--texts", "2", "--needles", "1", "--prompt-tokens", "200", "--answer-tokens", "20",
        "--threads", "1", "--markdown", str(tmp_path / "table.md"), "--plot", str(tmp_path / "plot.svg"), "--json",
    ])
    assert told.exit_code == 0, told.output
    rows = json.loads(told.stdout)["rows"]
    assert [(row["method"], row["budget_percent"]) for row in rows] == [
        (FULL, 100), ("streaming", 30), ("streaming", 50), ("offload", 30), ("offload", 50)]
    assert all(row["perplexity_low"] < row["perplexity"] < row["perplexity_high"] for row in rows)
    assert rows[0]["saved_percent"] == 0 < rows[2]["saved_percent"] < rows[1]["saved_percent"]
    assert (tmp_path / "table.md").read_text().count("\n| ") == 7
    assert (tmp_path / "plot.svg").read_text().count("<polyline") == 2


@pytest.mark.parametrize(("arguments", "named"), [
    (["--methods", "h20"], "methods: 'h20'"), (["--budgets", "0,50"], "budgets: 0,50"),
    (["--budgets", "ten"], "budgets: 'ten'"), (["--model", "/nowhere"], "model: /nowhere"),
    (["--dtype", "int4"], "dtype: 'int4'"),
])
def test_bad_arguments_are_named(arguments: list[str], named: str) -> None:
    """Each is refused before anything is started, with its name."""
    told = CliRunner().invoke(app, ["eval", *arguments])
    assert told.exit_code != 0
    assert named in str(told.exception)
