"""Scripted policies (oracles) for MiniWoB++ and generated tasks.

They prove that a task can be solved from what the policy sees, and give demonstrations for cloning.
An oracle is a pure function of the observation and of its own earlier actions; it never looks at
the page, the seed or the reward. When it finds no action it answers `Invalid` with the reason, like
a policy that fails to name an action. MiniWoB++'s oracles (`ORACLES`, one for each kind) derive the
actions from the instruction. The oracle of a generated task (`generated`) is made for that task and
knows its plan. No browser, model or I/O belongs here.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.bundled.generate.generate import solution_of
from envs.bundled.oracles.clicking import CLICKING
from envs.bundled.oracles.forms import FORMS
from envs.bundled.oracles.generated import follow, is_generated
from envs.bundled.oracles.mail import MAIL
from envs.bundled.oracles.parts import Oracle
from envs.bundled.oracles.pointing import POINTING
from envs.bundled.oracles.widgets import WIDGETS
from envs.types import Action, Observation, TaskError, WebTask
from envs.types.near import near

ORACLES: dict[str, Oracle] = {**CLICKING, **FORMS, **MAIL, **POINTING, **WIDGETS}
"""Oracles by kind."""

__all__ = ["ORACLES", "Oracle", "follow", "is_generated", "oracle_action", "oracle_of"]


def oracle_of(task: WebTask) -> Oracle:
    """Return the oracle of a task.

    Raises:
        TaskError: its kind has no oracle, or it is a generated task without a known solution (a
            part of one, or of another version of its template).
    """
    if is_generated(task):
        return follow(solution_of(task))
    return _find_oracle(task.kind)


def oracle_action(kind: str, observation: Observation, history: Sequence[Action] = ()) -> Action:
    """Return the next action of the oracle of ``kind``.

    Args:
        kind: Name of the page, e.g. ``click-button``.
        observation: The current observation.
        history: Its earlier actions of this episode, oldest first.

    Raises:
        TaskError: the kind has no oracle.
    """
    return _find_oracle(kind)(observation, history)


def _find_oracle(kind: str) -> Oracle:
    if kind not in ORACLES:
        raise TaskError(f"no oracle for {kind!r}; {near(kind, ORACLES)}there are {', '.join(sorted(ORACLES))}")
    return ORACLES[kind]
