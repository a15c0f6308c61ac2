"""Prompts of an episode as tokens for Tinker: sampled ids go into later prompts unchanged.

A prompt is the one before it, the ids that were sampled on it, and the next page. So a trajectory
is one datum, whatever the chat template would make of the turns' text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import tinker

from envs.adapters.turn_tokens import TURN, closing_place, not_sampled
from envs.prompts.step_renderer import ShownStep, StepRenderer
from envs.types import ConfigError


class MessageRenderer(Protocol):
    """The part of ``tinker_cookbook.renderers.Renderer`` that prompts are made with.

    Any object with these names will do.
    """

    tokenizer: Any
    """Its ``decode(ids)`` returns the text of ids."""

    def build_generation_prompt(self, messages: list[Any]) -> tinker.ModelInput:
        """Return the tokens of messages and of the assistant's opened turn.

        Args:
            messages: Dictionaries with ``role`` and ``content``: a text, or parts
                ``{"type": "text", "text": …}`` and ``{"type": "image", "image": data_url}``.
        """

    def get_stop_sequences(self) -> list[str] | list[int]:
        """Return the texts or ids that end a turn."""


class EpisodePrompts:
    """The prompts of one episode, which grow by the sampled ids and the next page."""

    def __init__(self, renderer: MessageRenderer, shown: StepRenderer) -> None:
        self.stop = renderer.get_stop_sequences()
        self._renderer, self._shown = renderer, shown
        self._chunks: list[Any] = []
        self._closing = -1

    def first(self, step: ShownStep) -> tinker.ModelInput:
        """Return the prompt of the first page."""
        messages = [*self._shown.system_messages(), self._message(step)]
        self._chunks = self._render(messages, step.screenshot)
        return tinker.ModelInput(chunks=list(self._chunks))

    def following(self, ids: Sequence[int], step: ShownStep) -> tinker.ModelInput:
        """Return the next prompt.

        Args:
            ids: Ids that were sampled on the last prompt, with or without the end of the turn.
            step: Page after the turn's action.
        """
        if self._closing < 0:
            self._closing = closing_place(
                lambda messages: _flat(self._renderer.build_generation_prompt(messages).chunks)
            )
        rest = _flat(self._render([*TURN, self._message(step)], step.screenshot))[self._closing :]
        self._chunks += _chunks([*ids, *not_sampled(ids, rest)])
        return tinker.ModelInput(chunks=list(self._chunks))

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of sampled ids, without the stop sequence."""
        kept = list(ids)
        while kept and kept[-1] in self.stop:
            kept.pop()
        text = str(self._renderer.tokenizer.decode(kept))
        for stop in self.stop:
            text = text.partition(stop)[0] if isinstance(stop, str) else text
        return text

    def _message(self, step: ShownStep) -> dict[str, Any]:
        """Return the page as a message with image parts as Tinker's renderers take them."""
        if step.pictures:  # an image chunk is the screenshot here
            raise ConfigError(
                f"the task's instruction has {len(step.pictures)} pictures, which these prompts do not show"
            )
        message = self._shown.user_message(step)
        if not isinstance(message["content"], str):
            parts = [
                {"type": "image", "image": part["image_url"]["url"]} if part["type"] == "image_url" else part
                for part in message["content"]
            ]
            message = {**message, "content": parts}
        return message

    def _render(self, messages: list[dict[str, Any]], screenshot: bytes) -> list[Any]:
        """Return the chunks of messages with at most one image, which is the screenshot's bytes.

        Renderers decode an image and compress it anew; the policy is shown the recorded picture.
        """
        chunks = self._renderer.build_generation_prompt(messages).chunks
        return [
            chunk.model_copy(update={"data": screenshot, "format": "jpeg"})
            if isinstance(chunk, tinker.types.ImageChunk)
            else chunk
            for chunk in chunks
        ]


def _flat(chunks: Sequence[Any]) -> list[Any]:
    """Return token ids, and chunks that are no text as they are."""
    return [
        element
        for chunk in chunks
        for element in (chunk.tokens if isinstance(chunk, tinker.EncodedTextChunk) else [chunk])
    ]


def _chunks(elements: Sequence[Any]) -> list[Any]:
    """Return elements as chunks: the inverse of `_flat`, with no empty chunk."""
    chunks: list[Any] = []
    ids: list[int] = []
    for element in [*elements, None]:
        if isinstance(element, int):
            ids.append(element)
            continue
        if ids:
            chunks.append(tinker.EncodedTextChunk(tokens=ids))
            ids = []
        if element is not None:
            chunks.append(element)
    return chunks
