"""The result of a step of an environment, and what it takes as an action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from envs.types import Action, Observation, StopReason

AnyAction = Action | Mapping[str, Any] | str
"""An action; a dictionary such as ``{"type": "click", "element": 1}``; or a model's text, which is
parsed."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """Result of a reset or a step."""

    reward: float | None
    """0.0 until the end, then the episode's score within [-1, 1]; ``None`` if it abstained
    (``abstained`` says why)."""
    done: bool
    """The episode is over; go on with ``reset``."""
    observation: Observation
    """The page as a text policy sees it; ``observation.error`` has the reason why the last action
    was not carried out."""
    screenshot: bytes = field(repr=False)
    """JPEG of the viewport; empty where the site shows nothing at the end (MiniWoB)."""
    stop: StopReason | None = None
    """Reason why the episode is over; ``None`` before its end."""
    abstained: str | None = None
    """Reason why an ended episode has no reward: a browser that failed, a wall, a grader without an
    answer."""
    pictures: tuple[bytes, ...] = field(default=(), repr=False)
    """Pictures of the instruction (`WebTask.images`): JPEG, PNG or WebP files."""
