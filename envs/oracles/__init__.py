"""Scripted policies (oracles) for MiniWoB++ and generated tasks.

Scripted policies for MiniWoB++ and for generated tasks: proof that a task can be solved from what the policy sees, and
demonstrations for cloning.

An oracle is a pure function of the observation and of its own earlier actions; it never looks at the page, the seed or
the reward. When it does not know what to do it answers `Invalid` with the reason, like a policy that fails to name an
action. MiniWoB++'s (`ORACLES`) work out from the instruction what to do, one for each kind; that of generated tasks
(`generated`) is made for a task and knows its plan. No browser, no model and no I/O belongs here.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.oracles.clicking import CLICKING
from envs.oracles.forms import FORMS
from envs.oracles.generated import follow, is_generated
from envs.oracles.mail import MAIL
from envs.oracles.parts import Oracle
from envs.oracles.pointing import POINTING
from envs.oracles.widgets import WIDGETS
from envs.tasks.generate.generate import solution_of
from envs.types import Action, Observation, TaskError, WebTask
from envs.types.near import near

ORACLES: dict[str, Oracle] = {**CLICKING, **FORMS, **MAIL, **POINTING, **WIDGETS}
"""Kinds that have an oracle."""

__all__ = ["ORACLES", "Oracle", "follow", "is_generated", "oracle_action", "oracle_of"]


def oracle_of(task: WebTask) -> Oracle:
    """The oracle of a task.

    Raises:
        TaskError: it has none: its kind has not, or it is a generated task whose solution is not known (a part of one, or of another
            version of its template).
    """
    if is_generated(task):
        return follow(solution_of(task))
    return _of_kind(task.kind)


def oracle_action(kind: str, observation: Observation, history: Sequence[Action] = ()) -> Action:
    """What the oracle of ``kind`` does next.

    Args:
        kind: Name of the page, e.g. ``click-button``.
        observation: What is to be seen now.
        history: Its earlier actions of this episode, oldest first.

    Raises:
        TaskError: the kind has no oracle.
    """
    return _of_kind(kind)(observation, history)


def _of_kind(kind: str) -> Oracle:
    if kind not in ORACLES:
        raise TaskError(f"no oracle for {kind!r}; {near(kind, ORACLES)}there are {', '.join(sorted(ORACLES))}")
    return ORACLES[kind]
