"""Builds a policy's prompt as a conversation of an episode's rounds.

Pure; images are named, not held. ``present``: the present page, with the last actions as a line.
``window``: the last rounds as images and turns, older steps as one line each (WebGym's context).
``append``: rounds are only added, and dropped in blocks. So a prompt begins with the one before it,
and a server's prefix cache has most of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from envs.prompts import one_line
from envs.types import ContextMessage, Step

ContextPolicy = Literal["present", "window", "append"]

THOUGHT = re.compile(r"<think>.*?(?:</think>\s*|\Z)|\A(?:(?!<think>).)*?</think>\s*", re.DOTALL)
"""Pattern of a thought, also of one that was opened in the prompt (thinking templates) or cut
before its end."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    text: str
    pictures: tuple[str, ...] = ()
    """Names of the images' blobs; the images come before the text."""
    ids: tuple[int, ...] = ()
    """Sampled ids of an assistant's turn, which go into the prompt unchanged; empty: the text is
    encoded."""

    def record(self) -> ContextMessage:
        """Return the message as a step records it."""
        return ContextMessage(role=self.role, text=self.text, pictures=self.pictures)


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One turn of a conversation, with images anywhere in its text."""

    role: Literal["user", "assistant"]
    parts: tuple[str | None, ...]
    """Texts, and ``None`` in the place of each image."""
    ids: tuple[int, ...] = ()
    """Sampled ids, as in `Message`."""


def make_conversation(
    context: ContextPolicy, rounds: int, steps: Sequence[Step], text: str, screenshot: str, dropped: int = 0
) -> tuple[Message, ...]:
    """Return the messages of a prompt, the present one last.

    Args:
        context: The context policy.
        rounds: Largest number of rounds shown besides the present, for ``window`` and ``append``.
        steps: Steps of the episode so far.
        text: Text of the present page.
        screenshot: Name of the present screenshot's blob.
        dropped: Number of further rounds to drop, for want of tokens.
    """
    present = Message("user", text, (screenshot,))
    first = first_round(context, rounds, len(steps), dropped)
    shown = steps[first:]
    if context == "present" or not steps:
        return (present,)
    if not shown:
        return (Message("user", f"{_older(steps, screenshot)}\n{text}", (screenshot,)),)
    messages: list[Message] = []
    for step in shown:
        user_text = step.prompt if context == "append" else _error_line(step)
        if step is shown[0]:
            older = _older(steps[:first], step.screenshot)
            task = "" if context == "append" else f"Task: {one_line(step.observation.instruction)}"
            user_text = "\n".join(part for part in (older, task, user_text) if part)
        messages.append(Message("user", user_text, (step.screenshot,)))
        messages.append(_turn(step))
    return (*messages, present)


def first_round(context: ContextPolicy, rounds: int, steps: int, dropped: int = 0) -> int:
    """Return the index of the oldest step that is shown as a round.

    ``append`` drops half of its rounds at once when it has more than ``rounds``, so that it begins
    at the same step for as long as possible.
    """
    if context == "present":
        return steps
    surplus = max(0, steps - rounds) + dropped
    if context == "append":
        block = max(1, rounds // 2)
        surplus = -(-surplus // block) * block
    return min(steps, surplus)


def without_thought(text: str) -> str:
    """Return a response without its thoughts, as later prompts show it."""
    return THOUGHT.sub("", text).strip()


def _turn(step: Step) -> Message:
    shown = without_thought(step.response)
    # The sampled ids themselves: encoding the text again could split it into other tokens, and so
    # make another prompt.
    return Message("assistant", shown, ids=step.response_ids if shown == step.response.strip() else ())


def _error_line(step: Step) -> str:
    return f"Error: {one_line(step.observation.error)}" if step.observation.error else ""


def _older(steps: Sequence[Step], after: str) -> str:
    """Return a line for each step: page title, response and effect.

    Args:
        after: Name of the screenshot after the last of the steps.
    """
    pictures = [*(step.screenshot for step in steps), after]
    lines = []
    for number, step in enumerate(steps):
        title = f" on [{one_line(step.observation.title)}]" if step.observation.title else ""
        changed = "page unchanged" if pictures[number] == pictures[number + 1] else "page changed"
        effect = f"not carried out ({step.error})" if step.error else changed
        lines.append(f"Step {step.index + 1}{title}: {one_line(without_thought(step.response))} -> {effect}")
    return "\n".join(lines)
