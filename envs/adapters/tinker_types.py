"""Types of ``tinker_cookbook.rl.types``; where that cannot be imported, equal ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tinker

from envs.types import StopReason

try:
    from tinker_cookbook.rl import types as cookbook
except ImportError:
    cookbook = None

MASKED = "parse_error_masked"
"""Metric of a turn that the cookbook's ``trajectory_to_data`` leaves out of the loss."""

STOP_WORDS = {
    StopReason.DONE: "completed",
    StopReason.ANSWER: "completed",
    StopReason.TERMINATED: "completed",
    StopReason.SUBMITTED: "completed",
    StopReason.HORIZON: "max_turns",
    StopReason.INVALID_ACTION: "parse_error",
}
"""The cookbook's words for reasons that it knows; the others go by their own names."""


@dataclass
class TinkerStep:
    """The fields of the cookbook's ``StepResult``."""

    reward: float
    episode_done: bool
    next_observation: tinker.ModelInput
    next_stop_condition: list[str] | list[int]
    metrics: dict[str, float | int] = field(default_factory=dict)
    logs: dict[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True)
class TinkerNoPrompt:
    """The fields of its ``InitialObservationOverflow``: an episode that ended before its first
    turn."""

    reward: float
    metrics: dict[str, float | int] = field(default_factory=dict)
    logs: dict[str, str | int | float] = field(default_factory=dict)


EnvBase: Any = object
GroupBase: Any = object
DatasetBase: Any = object
BuilderBase: Any = object
Step: Any = TinkerStep
NoPrompt: Any = TinkerNoPrompt
configured: Any = dataclass(frozen=True, kw_only=True)
"""Decorator of a data set's builder."""

HAS_COOKBOOK = cookbook is not None

if HAS_COOKBOOK:
    import chz

    EnvBase, GroupBase, DatasetBase = cookbook.Env, cookbook.EnvGroupBuilder, cookbook.RLDataset
    BuilderBase, configured = cookbook.RLDatasetBuilder, chz.chz
    Step, NoPrompt = cookbook.StepResult, cookbook.InitialObservationOverflow


def ending(stop: StopReason, abstained: str | None) -> dict[str, Any]:
    """Return the metrics and logs of an episode's last turn."""
    metrics = {f"stop/{STOP_WORDS.get(stop, stop)}": 1.0, "abstained": float(abstained is not None)}
    if abstained is None:
        return {"metrics": metrics, "logs": {"stop": str(stop)}}
    return {"metrics": {**metrics, MASKED: 1.0}, "logs": {"stop": str(stop), "abstained": abstained}}
