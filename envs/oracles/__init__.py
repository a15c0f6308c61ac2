"""Scripted policies for MiniWoB++: proof that a task can be solved from what the policy sees, and demonstrations for
cloning.

An oracle is a pure function of the observation and of its own earlier actions; it never looks at the page, the seed or
the reward. When it does not know what to do it answers `Invalid` with the reason, like a policy that fails to name an
action. No browser, no model and no I/O belongs here.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.oracles.clicking import CLICKING
from envs.oracles.forms import FORMS
from envs.oracles.mail import MAIL
from envs.oracles.parts import Oracle
from envs.oracles.pointing import POINTING
from envs.oracles.widgets import WIDGETS
from envs.types import Action, Observation, TaskError

ORACLES: dict[str, Oracle] = {**CLICKING, **FORMS, **MAIL, **POINTING, **WIDGETS}
"""Kinds that have an oracle."""

__all__ = ["ORACLES", "Oracle", "oracle_action"]


def oracle_action(kind: str, observation: Observation, history: Sequence[Action] = ()) -> Action:
    """What the oracle of ``kind`` does next.

    Args:
        kind: Name of the page, e.g. ``click-button``.
        observation: What is to be seen now.
        history: Its earlier actions of this episode, oldest first.

    Raises:
        TaskError: the kind has no oracle.
    """
    oracle = ORACLES.get(kind)
    if oracle is None:
        raise TaskError(f"no oracle for {kind!r}; there are {', '.join(sorted(ORACLES))}")
    return oracle(observation, history)
