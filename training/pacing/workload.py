"""Input of the simulator: a workload's distributions, the machine, and how the run is paced."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from training.pacing.concurrency import Bounds


@dataclass(frozen=True, slots=True)
class Distribution:
    """A constant, a lognormal of a given mean, or equally likely measured values."""

    mean: float
    sigma: float = 0.0
    """Standard deviation of the logarithm; 0 is a constant."""
    values: tuple[float, ...] = ()
    """Measured values; where there are any, ``mean`` and ``sigma`` are not used."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Distribution:
        """Return the empirical distribution of at least one value."""
        return cls(sum(values) / len(values), values=tuple(values))

    def draw(self, source: random.Random) -> float:
        if self.values:
            return source.choice(self.values)
        if self.sigma == 0:
            return self.mean
        return source.lognormvariate(math.log(self.mean) - self.sigma**2 / 2, self.sigma)


@dataclass(frozen=True, slots=True)
class Workload:
    """Durations and sizes of episodes, grading and updates.

    Seconds are those of an unloaded machine.
    """

    group_size: int = 8
    """Episodes of a group (K)."""
    success_steps: Distribution = Distribution(5.1, 0.4)
    """Steps of an episode that passes; 5.1 and 12.5 are AsyncWebRL's."""
    failure_steps: Distribution = Distribution(12.5, 0.4)
    """Steps of an episode that fails."""
    reset_seconds: Distribution = Distribution(1.0)
    """Time to reset an episode's site and load its page."""
    browser_seconds: Distribution = Distribution(2.0, 0.5)
    """Time of an action and its screenshot."""
    generation_seconds: Distribution = Distribution(1.0, 1.0)
    """Time of a turn of the policy."""
    judge_seconds: Distribution = Distribution(0.0)
    """Time to grade an episode."""
    update_seconds: Distribution = Distribution(10.0)
    """Part of an update that does not depend on its size."""
    update_step_seconds: float = 0.0
    """Additional seconds of an update for each step of the batch."""
    publish_seconds: float = 0.0
    """Seconds from the end of an update until all engines serve its version."""
    pause_seconds: float = 0.0
    """Part of these seconds in which no engine generates."""
    abstain: float = 0.0
    """Share of episodes without a reward (failures of browsers, sites or judge)."""
    success: tuple[float, float] = (1.0, 1.0)
    """Beta distribution (alpha, beta) of a task's success probability; (1, 1) is uniform."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Resources of the simulated machine."""

    browsers: int
    """Number of browsers: episodes that can run at once."""
    engine_turns: float
    """Turns that all engines together generate at once at full speed; more of them share it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pacing of the simulated run. Staleness 0 is the synchronous loop."""

    batch: int
    """Groups of a batch (B)."""
    staleness: int = 0
    """Largest number of versions between admission and consumption (eta)."""
    depth: int | None = None
    """Versions ahead for which groups are admitted, at most eta. By default half of eta, rounded
    up, as in a run: a smaller depth keeps groups fresher."""
    running: int = 10**6
    """Largest number of groups under way (R_max)."""
    groups_per_task: int = 1
    """Groups of one task; they become ready, and make room for others, when all of them have
    ended."""
    barrier: Literal["none", "episode", "step"] = "none"
    """``episode``: browsers are lent all at once, when all episodes have ended; ``step``: these
    episodes also step together. WebGym's baseline."""
    over_sampling: int = 0
    """Episodes started beyond the group's size (over-sampling); the group takes the first that are
    valid."""
    surplus: int = 0
    """Groups started beyond a batch and cancelled when it is full, as slime does; synchronous
    only."""
    concurrency: Bounds | None = None
    """Adaptive concurrency in episodes; ``None``: as many as there are browsers."""
    measure_seconds: float = 10.0
    """Seconds between two measurements for the adaptive concurrency."""

    def __post_init__(self) -> None:
        if self.surplus and self.staleness:
            raise ValueError("a surplus of groups is for the synchronous loop: staleness must be 0")
        if self.depth is not None and not 0 <= self.depth <= self.staleness:
            raise ValueError("depth is between 0 and staleness")
