"""Query heads that share a key: how their attention becomes that of the one head that is held (GQA, MQA).

Published code disagrees, and it changes what is evicted, so it is a parameter with a name:

| grouping | of the group's query heads | as in |
|---|---|---|
| `mean` | the mean | kvpress; TOVA over all heads of a layer |
| `sum` | the sum: the same choice as the mean | the H2O guide |
| `max` | the largest: what one head alone needs stays | KVCache-Factory, as an option |
| `first` | the first, the others are not looked at | llama-recipes' H2O |
| `squares` | the sum of squares: heads that are sure count for more | KV-Compress |
"""

from __future__ import annotations

from torch import Tensor

from tierd_client.errors import InvalidArgument

GROUPINGS = ("mean", "sum", "max", "first", "squares")


def group_heads(weights: Tensor, heads: int, grouping: str) -> Tensor:
    """Attention of query heads [batch, query heads, ...] as that of `heads` held ones [batch, heads, ...].

    Query heads of one group stand side by side, as in `repeat_kv` of transformers. Raises InvalidArgument where the
    query heads are no multiple of `heads`, or the grouping is unknown.
    """
    batch, queries = weights.shape[:2]
    if grouping not in GROUPINGS:
        raise InvalidArgument(f"grouping: {grouping!r} is none of {', '.join(GROUPINGS)}")
    if queries % heads:
        raise InvalidArgument(f"weights: {queries} query heads are no multiple of {heads} held ones")
    if queries == heads and grouping != "squares":
        return weights
    grouped = weights.reshape(batch, heads, queries // heads, *weights.shape[2:])
    if grouping == "mean":
        return grouped.mean(2)
    if grouping == "max":
        return grouped.amax(2)
    if grouping == "first":
        return grouped[:, :, 0]
    return (grouped if grouping == "sum" else grouped.square()).sum(2)
