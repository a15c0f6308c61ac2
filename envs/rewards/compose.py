"""Composes an episode's reward bundle from its parts and their weights.

A `PartSource` gives the parts of one `Component` of the reward. The first available of these
decides if the task was done:

1. the task's rubric,
2. parts of the component ``task`` (evaluators of a benchmark),
3. ``visual`` and ``semantic`` parts (a page built after a reference),
4. the page's own verdict.

All other parts are *beside* it: they change the score, but neither ``passed`` nor ``binary``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Protocol

from envs.rewards.bundle import score, total
from envs.rewards.evidence import GradingEvidence
from envs.types import PartRole, RewardBundle, RewardPart, WebTask


class Component(StrEnum):
    """Built-in component of a reward.

    Its weight is `rewards.<name>` of the configuration; with weight 0 its sources are not asked.
    Other components have their weights in `rewards.extra` (`envs.rewards.functions`).
    """

    TASK = "task"
    """Success of the task: its rubric, a benchmark's evaluators, or the page's verdict."""
    VISUAL = "visual"
    """Visual similarity to a reference page (Design2Code)."""
    SEMANTIC = "semantic"
    """DOM similarity to a reference page."""
    PERFORMANCE = "performance"
    """Performance of the pages (ChromiumRL's quality)."""
    FORMAT = "format"
    """Share of turns in the first, strict form."""
    LENGTH = "length"
    """Penalty for steps."""
    ACTION_ERRORS = "action_errors"
    """Penalty for actions that were not carried out."""


WEIGHTS: Mapping[str, float] = MappingProxyType({Component.TASK: 1.0, Component.VISUAL: 1.0, Component.SEMANTIC: 1.0})
"""Default weights of components; those without a weight are not asked."""

MEAN = (PartRole.SCORED, PartRole.SHAPING)
"""Roles of the parts in the weighted mean."""


class PartSource(Protocol):
    """Source of reward parts. One object grades many episodes, several at once."""

    @property
    def component(self) -> str:
        """Component of its parts: a `Component`, or another name that has a weight."""
        ...

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return the parts of an ended episode; empty if it has none.

        The browser of the episode has been given back. The weights of the parts are relative:
        together they have the weight of the component. A part that cannot be known has the value
        ``None``; if the episode must then not be graded at all, the part is ``required``. Work of
        more than a few milliseconds of CPU belongs in a thread.

        Raises:
            JudgeError, SiteError, BrowserError: The component is not available, with the error's
                message. Any other exception ends the run.
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

    A component's available parts together have its weight; a component without any is left out of
    the mean. Without other parts, the bundle of a rubric or of a page stays as it is.

    Args:
        available: Parts of the sources by component; those without a weight are left out.
        weights: Weights of the components; a missing one is 0.
        rubric: Bundle of the task's rubric; ``None`` if the task has none.
        page: Verdict of the page, used where nothing else decides if the task was done.
    """
    # Built-in components in their order, then the others in the order of their sources. The order
    # does not depend on which source answered first.
    names: list[str] = [*Component, *(name for name in available if name not in set(Component))]
    weighted = [name for name in names if available.get(name) and weights.get(name, 0.0) > 0]
    available = {component: available[component] for component in weighted}
    success, decided_by = _success(available, weights, rubric, page)
    beside = [
        part
        for component, parts in available.items()
        if component not in decided_by
        for part in _share(map(_shaping, parts), weights[component])
    ]
    if not beside:
        return success
    done = _share(success.parts, weights.get(Component.TASK, 1.0)) if decided_by <= {Component.TASK} else success.parts
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
    """Return the bundle that decides if the task was done, and the components in it."""
    if rubric is not None:
        return rubric, set()
    if Component.TASK in available:
        return score(available[Component.TASK], threshold=None), {Component.TASK}
    components = [component for component in (Component.VISUAL, Component.SEMANTIC) if component in available]
    if components:
        parts = [part for component in components for part in _share(available[component], weights[component])]
        return score(parts, threshold=None), set(components)
    return score([] if page is None else [page]), set()


def _shaping(part: RewardPart) -> RewardPart:
    return part.model_copy(update={"role": PartRole.SHAPING}) if part.role is PartRole.SCORED else part


def _share(parts: Iterable[RewardPart], weight: float) -> tuple[RewardPart, ...]:
    """Return the parts with weights scaled to the weight of their component.

    The weights of the available parts in the mean (or of all parts in it, if none is available) sum
    to ``weight``. The weight of a penalty is multiplied by ``weight``.
    """
    parts = tuple(parts)
    inside = [part for part in parts if part.role in MEAN]
    known = [part.weight for part in inside if part.value is not None] or [part.weight for part in inside]
    scale = weight / math.fsum(known) if known else weight
    factors = {PartRole.SCORED: scale, PartRole.SHAPING: scale, PartRole.PENALTY: weight, PartRole.GATE: 1.0}
    return tuple(part.model_copy(update={"weight": part.weight * factors[part.role]}) for part in parts)
