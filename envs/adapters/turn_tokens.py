"""Tokens after a sampled turn, for adapters that keep sampled ids as they are.

What closes a turn is read from two conversations that differ in the turn alone: they are equal from
there on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

ASK = {"role": "user", "content": "."}
TURN = (ASK, {"role": "assistant", "content": "0"})
"""The conversation before the next message, with any turn."""


def closing_place(encode: Callable[[list[dict[str, Any]]], Sequence[Any]]) -> int:
    """Return the number of elements of `TURN` before what closes the turn.

    Args:
        encode: Encodes messages as elements: ids, and what stands between texts.
    """
    zero, one = (encode([ASK, {"role": "assistant", "content": text}, ASK]) for text in "01")
    same = takewhile(lambda pair: pair[0] == pair[1], zip(reversed(zero), reversed(one), strict=False))
    return len(zero) - sum(1 for _ in same)


def not_sampled(ids: Sequence[int], rest: Sequence[Any]) -> Sequence[Any]:
    """Return the elements after a turn without those that the sampled ids end with already."""
    sizes = range(min(len(ids), len(rest)), -1, -1)
    return rest[next(size for size in sizes if [*ids][len(ids) - size :] == [*rest[:size]]) :]
