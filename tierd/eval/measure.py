"""What is measured of a text: how surprised each cache is by what follows, whether it finds a needle, its speed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tierd.eval.rows import RowsCache

WARM_STEPS = 2


def surprise(model: Any, caches: Sequence[Any], prompt: Tensor, answer: Tensor) -> Tensor:
    """Negative log-likelihood of the answer's tokens after the first, in nats, float32 [caches, tokens - 1].

    `prompt`, `answer`: [tokens]. The prompt is attended to in full and cut to the budgets, then the answer is fed
    token by token. Its first token follows the whole prompt under all of them, and is not counted.
    """
    told = [_step(logits, token) for logits, token in _fed(model, caches, prompt, answer)]
    return torch.stack([each for each, _ in told], 1)


def found(model: Any, caches: Sequence[Any], prompt: Tensor, question: Tensor, needle: Tensor) -> list[bool]:
    """Whether each cache's likeliest tokens after the question are the needle's. The question comes after the
    prompt was cut, so that a policy cannot know what it will be asked."""
    asked = torch.cat((question, needle))
    told = [_step(logits, token) for logits, token in _fed(model, caches, prompt, asked)][-len(needle) :]
    return torch.stack([right for _, right in told], 1).all(1).tolist()


def tokens_per_s(model: Any, cache: Any, prompt: Tensor, answer: Tensor) -> float:
    """Decoded by this cache alone, after two tokens to warm up."""
    model(prompt[None], cache=cache, logits_to_keep=1)
    for token in answer[:WARM_STEPS]:
        model(token.reshape(1, 1), cache=cache)
    began = time.perf_counter()
    for token in answer[WARM_STEPS:]:
        model(token.reshape(1, 1), cache=cache)
    return (len(answer) - WARM_STEPS) / (time.perf_counter() - began)


def _fed(model: Any, caches: Sequence[Any], prompt: Tensor, answer: Tensor) -> Any:
    """Logits [caches, vocabulary] after each token of the answer but the last, with the token that follows."""
    rows = RowsCache(caches)
    model(prompt[None], cache=rows, logits_to_keep=1)
    for token, following in itertools.pairwise(answer):
        yield model(token.expand(len(caches), 1), cache=rows).logits[:, -1].float(), following


def _step(logits: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
    """Surprise by a token, and whether it was the likeliest, of each row."""
    return -logits.log_softmax(-1)[:, token], logits.argmax(-1) == token
