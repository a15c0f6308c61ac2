"""Pages as token ids of a TRL trainer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from envs.adapters.turn_tokens import TURN, closing_place, not_sampled
from envs.prompts import StepRenderer
from envs.prompts.step_renderer import ShownStep


class ChatTokens:
    """Writes pages as token ids of the trainer's chat template."""

    def __init__(self, trainer: Any, shown: StepRenderer) -> None:
        processing = trainer.processing_class
        self._tokenizer = getattr(processing, "tokenizer", processing)
        self._settings = trainer.chat_template_kwargs
        self._shown = shown
        self.end: int = self._tokenizer.eos_token_id
        self._closing = closing_place(self._ids)

    def first(self, step: ShownStep) -> list[int]:
        """Return the ids of the first prompt."""
        return self._ids([*self._shown.system_messages(), self._shown.user_message(step)])

    def following(self, ids: Sequence[int], step: ShownStep) -> list[int]:
        """Return the ids between a turn and the next: its end unless it has one, and the page."""
        return [*not_sampled(ids, self._ids([*TURN, self._shown.user_message(step)])[self._closing :])]

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of a turn."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def _ids(self, messages: list[dict[str, Any]]) -> list[int]:
        ids: list[int] = self._tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, tokenize=True, return_dict=False, **self._settings
        )
        return ids
