"""Plays the actions of a stored trajectory again, and compares what is observed with what was.

An episode of a bundled site or of MiniWoB repeats exactly under the virtual clock; the first
difference then names what changed: the site, the browser, or our own code. Live pages differ
wherever they changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from envs.env import WebEnv
from envs.observation.compare import canonical_observation, first_difference
from envs.step_result import StepResult
from envs.types import Forget, Remember, Trajectory


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place at which a replayed observation is another one."""

    step: int
    """Number of actions before the observation; 0 for the first page."""
    field: str
    """Path of the field, as ``elements[3].value``."""
    recorded: Any
    replayed: Any

    def __str__(self) -> str:
        return f"after {self.step} actions, {self.field}: recorded {self.recorded!r}, replayed {self.replayed!r}"


@dataclass(frozen=True, slots=True)
class Replay:
    """Result of a replay."""

    steps: int
    """Number of actions that were carried out again."""
    difference: Difference | None
    """First difference; ``None`` if every observation is as recorded."""
    recorded_reward: float | None
    replayed_reward: float | None
    """Reward of the replayed episode; ``None`` if it abstained or did not end."""
    ended: bool
    """True if the replayed episode came to its end."""


async def replay(recorded: Trajectory, env: WebEnv) -> Replay:
    """Play a trajectory's actions again in an open environment of its task.

    It goes on after a difference, until the actions are used up or the episode is over.

    Args:
        env: Environment with the options of the recorded run, in ``async with``.

    Raises:
        BrowserError: The first page did not come up.
    """
    result = await env.reset(recorded.seed)
    difference = _difference(0, recorded, result)
    carried_out = 0
    for number, step in enumerate(recorded.steps, start=1):
        if result.done:
            difference = difference or Difference(number - 1, "done", False, True)
            break
        if not isinstance(step.action, Remember | Forget):  # the page was not touched
            result = await env.step(step.action)
        carried_out += 1
        difference = difference or _difference(number, recorded, result)
    return Replay(carried_out, difference, recorded.reward.score, result.reward if result.done else None, result.done)


def _difference(number: int, recorded: Trajectory, result: StepResult) -> Difference | None:
    """Compare the observation after ``number`` actions."""
    expected = recorded.steps[number].observation if number < len(recorded.steps) else recorded.final
    if expected is None:
        return None
    place = first_difference(canonical_observation(expected), canonical_observation(result.observation))
    return None if place is None else Difference(number, *place)
