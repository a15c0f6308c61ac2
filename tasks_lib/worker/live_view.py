"""Answers of a worker to a monitor that asks for one of its running episodes.

The functions run on the worker (``Client.run``), between the messages of its event loop.
"""

from __future__ import annotations

from typing import Any

from envs.actions import format_action
from envs.types import Invalid, Step
from tasks_lib.worker.rollout_worker import RolloutWorker

MAX_TEXT = 2001
"""Characters of a text that are sent: one more than the page shows, by which it sees that there are
more."""


def view_episode(slot: int) -> dict[str, Any] | None:
    """Return the running episode of a slot as JSON values; ``None`` if it plays nothing."""
    viewed = RolloutWorker.of_this_process().view(slot)
    if viewed is None:
        return None
    status, played = viewed
    return {
        **status.state().model_dump(mode="json"),
        "instruction": played.instruction[:MAX_TEXT],
        "prompt_tokens": len(played.steps[-1].prompt_ids) if played.steps else None,
        "steps": [_step(step) for step in played.steps],
        "screenshot": bool(played.screenshot),
    }


def view_screenshot(slot: int) -> bytes | None:
    """Return the JPEG of the page that a slot's episode saw last; ``None`` if there is none."""
    viewed = RolloutWorker.of_this_process().view(slot)
    return viewed[1].screenshot or None if viewed is not None else None


def _step(step: Step) -> dict[str, Any]:
    action = step.action
    return {
        "action": (step.response if isinstance(action, Invalid) else format_action(action))[:MAX_TEXT],
        "effect": step.settled,
        "error": str(step.error)[:MAX_TEXT] if step.error is not None else None,
        "seconds": step.seconds.model_dump(),
        "version": step.policy_version,
    }
