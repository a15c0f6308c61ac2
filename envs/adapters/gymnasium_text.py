"""Gymnasium's space of texts, for pages and actions in any script."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
from gymnasium.error import CustomSpaceError
from gymnasium.vector.utils import create_shared_memory

MAX_TEXT = 1 << 20
"""Characters of a text. The budget of observations keeps pages far below it."""


class AnyText(gym.spaces.Text):
    """Any text, with any characters; `sample` gives actions that most pages can carry out."""

    def __init__(self, max_length: int = MAX_TEXT, seed: int | np.random.Generator | None = None) -> None:
        # The character set of all of Unicode takes a minute to build; this one only serves
        # `sample` with a mask.
        super().__init__(max_length, min_length=0, seed=seed)

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        if mask is not None or probability is not None:
            return str(super().sample(mask, probability))
        return f"click [{self.np_random.integers(1, 21)}]"[: self.max_length]

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AnyText) and self.max_length == other.max_length

    __hash__ = None  # type: ignore[assignment] # as of other spaces

    def __repr__(self) -> str:
        return f"AnyText({self.max_length})"


@create_shared_memory.register(AnyText)  # type: ignore[untyped-decorator]
def _refuse_shared_memory(space: AnyText, n: int = 1, ctx: Any = None) -> NoReturn:
    raise CustomSpaceError("shared memory loses texts: make the vector environment with shared_memory=False")
