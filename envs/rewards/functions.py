"""Rewards that are plain functions: ``def polite(episode: Episode) -> float``.

A function may replace the reward of the task (`open_env(reward=…)`, ``rewards.function``), or add a
component with a weight (``rewards.extra``). It is named by an entry point of the group
``rollwright.rewards`` or as ``module:function``, so that every worker finds it. A class with a
method ``parts`` is used as a `PartSource`.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import numbers
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from envs.rewards.compose import Component, PartSource
from envs.rewards.evidence import GradingEvidence
from envs.types import ConfigError, Observation, PartRole, RewardPart, Step, WebTask
from envs.types.extensions import Extensions

REWARDS: Extensions[Any] = Extensions("reward", "rollwright.rewards", {})
"""Functions and part sources by name."""


@dataclass(frozen=True, slots=True)
class Episode:
    """An ended episode, as a reward function sees it."""

    task: WebTask
    evidence: GradingEvidence
    """Records of the episode."""

    @property
    def steps(self) -> tuple[Step, ...]:
        """Steps in order, each with the page that was seen, the action and its error."""
        return self.evidence.steps

    @property
    def final(self) -> Observation | None:
        """The page after the last action."""
        return self.evidence.final

    @property
    def answer(self) -> str:
        """The policy's answer; empty if the episode ended without one."""
        return self.evidence.answer

    @property
    def requests(self) -> tuple[dict[str, Any], ...] | None:
        """Requests as entries of an HTTP archive; ``None`` where they were not recorded
        (``rollout.record_network``, ``make_pool(record_network=True)``)."""
        return self.evidence.requests

    @property
    def page_facts(self) -> Mapping[str, float | bool | str]:
        """Facts that the page declares (MiniWoB: raw_reward, done, reason)."""
        return self.evidence.page_facts


Value = float | None
RewardFunction = Callable[[Episode], Value] | Callable[[Episode], Awaitable[Value]]
"""Function that returns a number within [-1, 1], or ``None`` when it cannot be known.

A plain function runs in a thread, so it may block.
"""


class FunctionSource:
    """Part source that calls a reward function.

    A value from 0 to 1 makes one part, a value below 0 also a penalty.
    """

    def __init__(self, function: RewardFunction, component: str = Component.TASK, name: str = "") -> None:
        self.component = component
        self._function = function
        self._name = name or getattr(function, "__qualname__", "").replace("<lambda>", "reward") or "reward"

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Call the function; return parts that together are worth its value.

        Raises:
            ConfigError: The function failed, or gave no number within [-1, 1].
        """
        episode = Episode(task, evidence)
        try:
            value: Any = self._function
            is_async = any(map(inspect.iscoroutinefunction, (value, type(value).__call__)))
            value = await (value(episode) if is_async else asyncio.to_thread(value, episode))
        except Exception as error:
            raise ConfigError(
                f"the reward function {self._name} failed on an episode of {task.task_id}: "
                f"{type(error).__name__}: {error}"
            ) from error
        return self._parts(value, task)

    def _parts(self, value: object, task: WebTask) -> Sequence[RewardPart]:
        if value is None:
            return (RewardPart(name=self._name, value=None, weight=1.0, evidence="the function gave no value"),)
        number = float(value) if isinstance(value, numbers.Real) else math.nan
        if not -1 <= number <= 1:  # nan is not, either
            raise ConfigError(
                f"the reward function {self._name} gave {value!r} for an episode of {task.task_id}; expected a number "
                f"within [-1, 1], or None when it cannot be known"
            )
        seen = f"the function gave {number:g}"
        scored = RewardPart(name=self._name, value=max(number, 0.0), weight=1.0, evidence=seen)
        if number >= 0:
            return (scored,)
        return (scored, RewardPart(name=self._name, value=number, weight=1.0, evidence=seen, role=PartRole.PENALTY))


class NamedSource:
    """Part source under the component name that the configuration gives a weight."""

    def __init__(self, source: PartSource, component: str) -> None:
        self.component = component
        self._source = source

    async def parts(self, task: WebTask, evidence: GradingEvidence) -> Sequence[RewardPart]:
        """Return the parts of the source."""
        return await self._source.parts(task, evidence)


def reward_source(name: str, component: str = "") -> PartSource:
    """Return the source of parts that a configuration names.

    Args:
        name: Name of an entry point, or ``module:function``.
        component: Component of its parts; the name itself if not given.

    Raises:
        ConfigError: There is no such source, or it cannot be imported in this process.
    """
    extension = REWARDS.find(name)
    if inspect.isclass(extension):
        extension = extension()
    if hasattr(extension, "parts"):
        return NamedSource(extension, component or name)
    if not callable(extension):
        raise ConfigError(
            f"reward {name!r} is {extension!r}; expected a function of an episode, or a class with parts()"
        )
    return FunctionSource(extension, component or name, name)


def extra_sources(names: Mapping[str, float]) -> list[PartSource]:
    """Return the sources of added components, without those of weight 0.

    Args:
        names: Weights by the name of the source, as for `reward_source`.

    Raises:
        ConfigError: A source cannot be found or imported, as for `reward_source`.
    """
    return [reward_source(name) for name, weight in names.items() if weight > 0]
