"""Moves of a solution plan: follow, push, fill, choose, tick, answer.

For example: follow the link "Kitchen", write "3" into "Quantity", push "Add to basket". Moves name
things by their visible labels, which are also what a policy sees. So a plan is a pure value that a
real browser (`perform`) or an HTML parser (`text_browser`) can carry out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Follow:
    """Click the link with this label."""

    label: str


@dataclass(frozen=True, slots=True)
class Push:
    """Click the button with this label."""

    label: str


@dataclass(frozen=True, slots=True)
class Fill:
    """Replace the content of a field."""

    label: str
    text: str


@dataclass(frozen=True, slots=True)
class Choose:
    """Choose an option of a drop-down list."""

    label: str
    option: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Turn a checkbox on or off."""

    label: str
    on: bool = True


@dataclass(frozen=True, slots=True)
class Say:
    """Give the answer, which ends the episode."""

    text: str


Move = Follow | Push | Fill | Choose | Tick | Say
Plan = tuple[Move, ...]
"""A solution: moves in order, from the task's start page."""
