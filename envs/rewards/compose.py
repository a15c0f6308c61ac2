"""Composes an episode's reward bundle from its parts and their weights.

A `PartSource` gives the parts of one `Component` of the reward. The first of these says whether the task was done: the task's rubric; parts of the
component ``task`` (evaluators of a benchmark); ``visual`` and ``semantic`` parts (a page built after a reference); the page's own word.
Everything else is *beside* it: it changes the score, and neither ``passed`` nor ``binary``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from envs.rewards.bundle import score, total
from envs.rewards.evidence import EpisodeEvidence
from envs.types import PartRole, RewardBundle, RewardPart, WebTask


class Component(StrEnum):
    """Built-in component of a reward.

    Its weight is `rewards.<name>` of the configuration; with weight 0 its sources are not asked.

    Other components have their weights in `rewards.extra` (`envs.rewards.functions`).
    """

    TASK = "task"
    """Success of the task: the rubric, the evaluators of a benchmark, or the page's own verdict."""
    VISUAL = "visual"
    """It looks like its reference (Design2Code)."""
    SEMANTIC = "semantic"
    """Its document is like its reference's (DOM similarity)."""
    PERFORMANCE = "performance"
    """Quality of the pages' run (ChromiumRL's quality)."""
    FORMAT = "format"
    """Share of turns in the first, strict form."""
    LENGTH = "length"
    """A penalty for steps."""
    ACTION_ERRORS = "action_errors"
    """A penalty for actions that could not be carried out."""


WEIGHTS: Mapping[str, float] = MappingProxyType({Component.TASK: 1.0, Component.VISUAL: 1.0, Component.SEMANTIC: 1.0})
"""Weights of components where nothing else is said; the others are not asked."""

MEAN = (PartRole.SCORED, PartRole.SHAPING)
"""Roles whose parts are in the weighted mean."""


class PartSource(Protocol):
    """A source of reward parts. One object grades many episodes, several at once."""

    @property
    def component(self) -> str:
        """Component of its parts: a `Component`, or another name that has a weight."""
        ...

    async def parts(self, task: WebTask, evidence: EpisodeEvidence) -> Sequence[RewardPart]:
        """The parts of an ended episode, from what it left behind; its browser has been given back. Empty if the task has nothing of the kind.

        Their weights are relative to each other: together they weigh what the configuration gives the component. A part that cannot be
        known has the value ``None``, and an episode that must then not be graded at all has it ``required``. Work of more than a few
        milliseconds of CPU belongs into a thread.

        Raises:
            JudgeError, SiteError, BrowserError: the component is not available, with the error's message. Any other exception ends the run.
        """
        ...


def compose(
    available: Mapping[str, Sequence[RewardPart]],
    weights: Mapping[str, float],
    *,
    rubric: RewardBundle | None = None,
    page: RewardPart | None = None,
) -> RewardBundle:
    """Put the parts of all sources together into the bundle of an episode.

    A component's available parts together have its weight; a component without any is left out of the mean. Without other parts,
    the bundle of a rubric or of a page stays as it is.

    Args:
        available: Parts of the sources by component; those without a weight are left out.
        weights: Weights of the components; 0 where one is missing.
        rubric: The bundle of the task's rubric.
        page: The page's own verdict, used where nothing else tells if the task was done.
    """
    # Built-in components in their order, then the others in that of their sources, whoever answered first.
    names: list[str] = [*Component, *(name for name in available if name not in set(Component))]
    weighed = [name for name in names if available.get(name) and weights.get(name, 0.0) > 0]
    available = {component: available[component] for component in weighed}
    success, by = _success(available, weights, rubric, page)
    beside = [
        part
        for component, parts in available.items()
        if component not in by
        for part in _share(map(_shaping, parts), weights[component])
    ]
    if not beside:
        return success
    done = _share(success.parts, weights.get(Component.TASK, 1.0)) if by <= {Component.TASK} else success.parts
    parts = (*done, *beside)
    changed: dict[str, object] = {"parts": parts}
    if success.score is not None:
        changed["score"] = total(parts)
    return success.model_copy(update=changed)


def _success(
    available: Mapping[str, Sequence[RewardPart]],
    weights: Mapping[str, float],
    rubric: RewardBundle | None,
    page: RewardPart | None,
) -> tuple[RewardBundle, set[str]]:
    """Return the bundle that tells if the task was done, and the components in it."""
    if rubric is not None:
        return rubric, set()
    if Component.TASK in available:
        return score(available[Component.TASK], threshold=None), {Component.TASK}
    looks = [component for component in (Component.VISUAL, Component.SEMANTIC) if component in available]
    if looks:
        parts = [part for component in looks for part in _share(available[component], weights[component])]
        return score(parts, threshold=None), set(looks)
    return score([] if page is None else [page]), set()


def _shaping(part: RewardPart) -> RewardPart:
    return part.model_copy(update={"role": PartRole.SHAPING}) if part.role is PartRole.SCORED else part


def _share(parts: Iterable[RewardPart], weight: float) -> tuple[RewardPart, ...]:
    """The parts with weights such that those in the mean that are available (or all of them, if none is) sum to ``weight``; a penalty's is
    multiplied by it."""
    parts = tuple(parts)
    inside = [part for part in parts if part.role in MEAN]
    known = [part.weight for part in inside if part.value is not None] or [part.weight for part in inside]
    scale = weight / math.fsum(known) if known else weight
    factors = {PartRole.SCORED: scale, PartRole.SHAPING: scale, PartRole.PENALTY: weight, PartRole.GATE: 1.0}
    return tuple(part.model_copy(update={"weight": part.weight * factors[part.role]}) for part in parts)
