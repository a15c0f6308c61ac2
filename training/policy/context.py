"""Which rounds of an episode a policy sees: its prompt as a conversation. Pure; pictures are named, not held.

``present``: the page as it is, with the last actions as a line. ``window``: the last rounds as pictures and turns, older steps as one line
each (WebGym's context). ``append``: rounds are only added, and dropped in blocks, so that a prompt begins with the one before it and a
server's prefix cache has most of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from envs.types import ContextMessage, Step
from training.policy.prompt import one_line

ContextPolicy = Literal["present", "window", "append"]

THOUGHT = re.compile(r"<think>.*?(?:</think>\s*|\Z)|\A(?:(?!<think>).)*?</think>\s*", re.DOTALL)
"""A thought, also one whose opening is in the prompt (thinking templates) or that was cut before its end."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation."""

    role: Literal["user", "assistant"]
    text: str
    pictures: tuple[str, ...] = ()
    """Names of the blobs, which come before the text."""
    ids: tuple[int, ...] = ()
    """Of an assistant's turn: its sampled ids, which go into the prompt as they are; empty: the text is encoded."""

    def record(self) -> ContextMessage:
        """As a step records it."""
        return ContextMessage(role=self.role, text=self.text, pictures=self.pictures)


def make_conversation(
    context: ContextPolicy, rounds: int, steps: Sequence[Step], text: str, screenshot: str, dropped: int = 0
) -> tuple[Message, ...]:
    """The messages of a prompt, the present one last.

    Args:
        context: The policy.
        rounds: Of ``window`` and ``append``: how many rounds are shown at most besides the present.
        steps: Of the episode so far.
        text: Of the present page.
        screenshot: Name of the present picture's blob.
        dropped: Rounds less than that, for want of tokens.
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
        said = step.prompt if context == "append" else _seen(step)
        if step is shown[0]:
            older = _older(steps[:first], step.screenshot)
            task = "" if context == "append" else f"Task: {one_line(step.observation.instruction)}"
            said = "\n".join(part for part in (older, task, said) if part)
        messages.append(Message("user", said, (step.screenshot,)))
        messages.append(_turn(step))
    return (*messages, present)


def first_round(context: ContextPolicy, rounds: int, steps: int, dropped: int = 0) -> int:
    """Index of the oldest step that is shown as a round.

    ``append`` drops half of its rounds at once when it has more than ``rounds``, so it begins at the same step for as long as possible.
    """
    if context == "present":
        return steps
    surplus = max(0, steps - rounds) + dropped
    if context == "append":
        block = max(1, rounds // 2)
        surplus = -(-surplus // block) * block
    return min(steps, surplus)


def without_thought(text: str) -> str:
    """A response as later prompts show it."""
    return THOUGHT.sub("", text).strip()


def _turn(step: Step) -> Message:
    shown = without_thought(step.response)
    # The sampled ids as they are, so that nothing is encoded twice: another split into tokens would be another prompt.
    return Message("assistant", shown, ids=step.response_ids if shown == step.response.strip() else ())


def _seen(step: Step) -> str:
    return f"Error: {one_line(step.observation.error)}" if step.observation.error else ""


def _older(steps: Sequence[Step], after: str) -> str:
    """One line for each step: where, what, and what came of it.

    Args:
        after: Screenshot after the last of them.
    """
    pictures = [*(step.screenshot for step in steps), after]
    lines = []
    for number, step in enumerate(steps):
        title = f" on [{one_line(step.observation.title)}]" if step.observation.title else ""
        changed = "page unchanged" if pictures[number] == pictures[number + 1] else "page changed"
        effect = f"not carried out ({step.error})" if step.error else changed
        lines.append(f"Step {step.index + 1}{title}: {one_line(without_thought(step.response))} -> {effect}")
    return "\n".join(lines)
