"""Configuration of the sampler."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from envs.ends import Bucket
from envs.tasks.index import TaskIndex
from envs.tasks.samplers.base import Sampler
from envs.tasks.samplers.curriculum import CurriculumSampler
from envs.tasks.samplers.success import SuccessSampler
from envs.tasks.samplers.walks import NoRepeatSampler, RatioSampler, SequentialSampler, UniformSampler
from envs.types.record import Record

ENDLESS = 2**40
"""Passes of a sampler that never ends."""


class SamplerName(StrEnum):
    """Names of the samplers."""

    SUCCESS = "success"
    CURRICULUM = "curriculum"
    UNIFORM = "uniform"
    RATIO = "ratio"
    SEQUENTIAL = "sequential"
    NO_REPEAT = "no_repeat"


_OWN: dict[str, SamplerName] = {
    "by": SamplerName.CURRICULUM,
    "floor": SamplerName.CURRICULUM,
    "avoidance": SamplerName.CURRICULUM,
    "balance": SamplerName.UNIFORM,
    "weights": SamplerName.RATIO,
    "limit": SamplerName.SEQUENTIAL,
}
"""Keys that belong to one sampler."""


class SamplerConfig(Record):
    """Choice of the sampler that draws the tasks of a run, with its own parameters."""

    model_config = ConfigDict(json_schema_extra={"short": "a name alone"})

    name: SamplerName = Field(examples=["curriculum"], description="Name of the sampler.")
    by: Literal["kind", "task"] = Field("kind", description="curriculum: unit of the running success.")
    floor: float = Field(0.05, gt=0, le=1, description="curriculum: lowest priority; the highest is 1.")
    avoidance: float = Field(
        0.5,
        ge=0,
        le=1,
        description="curriculum: priority lost while all groups have equal rewards.",
    )
    balance: Literal["set", "equal"] = Field("set", description="uniform: the set's mix of sites, or equal numbers.")
    weights: dict[Bucket, float] = Field({}, description="ratio: weight of each difficulty bucket.")
    limit: int = Field(0, ge=0, description="sequential: number of first tasks; 0: all.")

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, value: object) -> object:
        """Accept a single word as the name."""
        return {"name": value} if isinstance(value, str) else value

    @field_validator("weights", mode="before")
    @classmethod
    def _as_written(cls, weights: object) -> object:
        """Convert a bucket such as ``1:``, which YAML reads as a number."""
        return {str(bucket): weight for bucket, weight in weights.items()} if isinstance(weights, dict) else weights

    @model_validator(mode="after")
    def _fits(self) -> Self:
        foreign = [
            key
            for key, name in _OWN.items()
            if name is not self.name
            and getattr(self, key) != type(self).model_fields[key].default  # a run's config.json has all
        ]
        if foreign:
            names = ", ".join(f"{key} ({_OWN[key]})" for key in sorted(foreign))
            raise ValueError(f"the sampler {self.name} has no {names}; leave it out, or name the other sampler")
        if self.name is SamplerName.RATIO and not any(weight > 0 for weight in self.weights.values()):
            raise ValueError("the sampler ratio needs weights, for example {1: 2, 2-3: 1, 4-6: 1}")
        return self


def make_sampler(
    config: SamplerConfig | None, index: TaskIndex, seed: int, *, memory: float, exploration: float
) -> Sampler:
    """Make the sampler of a configuration; by default the one by the success of kinds.

    Args:
        memory: Decay of running successes, for the samplers that keep them.
        exploration: Weight of kinds that are always or never solved, for `SuccessSampler`.

    Raises:
        TaskError: it does not fit the tasks (a bucket with a weight and no task, say).
    """
    config = config or SamplerConfig(name=SamplerName.SUCCESS)
    match config.name:
        case SamplerName.SUCCESS:
            return SuccessSampler(index, seed, memory=memory, exploration=exploration)
        case SamplerName.CURRICULUM:
            return CurriculumSampler(
                index,
                seed,
                by=config.by,
                memory=memory,
                floor=config.floor,
                avoidance=config.avoidance,
                repeat=True,
            )
        case SamplerName.UNIFORM:
            return UniformSampler(index, seed, balance=config.balance)
        case SamplerName.RATIO:
            return RatioSampler(index, config.weights, seed)
        case SamplerName.SEQUENTIAL:
            return SequentialSampler(index, limit=config.limit or None, passes=ENDLESS)
        case SamplerName.NO_REPEAT:
            return NoRepeatSampler(index, seed)
