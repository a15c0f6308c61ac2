"""Model turns made by hand and a renderer without a model, for tests that play episodes without a
policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tasks_lib.worker.actors import EncodedSituation, Turn
from training.policy.context import Message
from training.policy.rendered import RenderedPrompt


def make_turn(
    situation: Any, response: str, *, prompt: str = "", prompt_ids: Sequence[int] = (), screenshot: str = "0" * 64
) -> Turn:
    """A turn that says ``response``, of one token."""
    ids = tuple(prompt_ids)
    asked = EncodedSituation(situation, prompt, RenderedPrompt(ids, ids, ()), (), screenshot)
    return Turn(asked, response, (1,), (-0.1,), 0)


class Letters:
    """Stands for the renderer: a token is a letter, and a picture ``picture_tokens``."""

    def __init__(self, picture_tokens: int = 0, fitted: tuple[int, int] | None = None) -> None:
        self.context_tokens = 100_000
        self._picture_tokens, self._fitted = picture_tokens, fitted

    def encode_conversation(
        self, messages: Sequence[Message], sizes: Sequence[tuple[int, int]], system: str = "", tools: str = ""
    ) -> RenderedPrompt:
        letters = [ord(letter) for message in messages for letter in message.text]
        ids = (*letters, *[0] * self._picture_tokens * len(sizes))
        return RenderedPrompt(ids, ids, ())

    def fitting_size(self, size: tuple[int, int], pixels: int) -> tuple[int, int]:
        return self._fitted if self._fitted and size[0] * size[1] > pixels else size
