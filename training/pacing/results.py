"""Results of a simulated run: sums, and the rates and shares made of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from training.pacing.staleness import staleness_histogram
from training.pacing.workload import Machine

FULL = 0.9
"""Share of the time in use from which a resource counts as the bottleneck. The rest goes to tails
that no setting removes."""


@dataclass(slots=True)
class Totals:
    """Sums from the start of a run until one moment."""

    seconds: float = 0.0
    steps: int = 0
    ended: int = 0
    """Episodes that were played to their end."""
    consumed: int = 0
    """Episodes that were trained on."""
    drops: Counter[str] = field(default_factory=Counter)
    """Episodes that were started and not trained on, by reason."""
    lags: Counter[int] = field(default_factory=Counter)
    """Episodes trained on, by staleness."""
    browsers: float = 0.0
    """Total seconds for which browsers were leased."""
    engine: float = 0.0
    """Seconds of generation, as they would be on an unloaded engine."""
    trainer: float = 0.0
    """Seconds of updates."""


@dataclass(frozen=True, slots=True)
class Result:
    """A simulated run after its warm-up."""

    episodes_per_hour: float
    """Episodes trained on per hour."""
    collected_per_hour: float
    """Episodes played to their end per hour."""
    steps_per_second: float
    period: float
    """Mean seconds from one version to the next."""
    update: float
    """Mean seconds of an update."""
    browser_idle: float
    """Share of time that a browser is not in use."""
    engine_idle: float
    """Share of the engines' speed that is not used."""
    trainer_idle: float
    """Share of time without an update."""
    staleness_mean: float
    staleness_max: int
    staleness_histogram: dict[int, int]
    """Episodes by staleness."""
    drops: dict[str, int]
    """Episodes that were started and not trained on, by reason."""
    binds: str
    """Bottleneck: engine, trainer or browsers; else ``pacing``: waits that come from
    B, eta, R_max or barriers."""

    @property
    def collection(self) -> float:
        """Mean seconds per version without an update.

        In the synchronous loop this is the time of a rollout.
        """
        return self.period - self.update


def result_of(start: Totals, end: Totals, machine: Machine, versions: int) -> Result:
    """Return the result of the part of a run between two moments.

    Args:
        versions: Number of versions published between them.
    """
    seconds = end.seconds - start.seconds
    lags = end.lags - start.lags
    used = {
        "engine": (end.engine - start.engine) / seconds / machine.engine_turns,
        "trainer": (end.trainer - start.trainer) / seconds,
        "browsers": (end.browsers - start.browsers) / seconds / machine.browsers,
    }
    return Result(
        episodes_per_hour=(end.consumed - start.consumed) / seconds * 3600,
        collected_per_hour=(end.ended - start.ended) / seconds * 3600,
        steps_per_second=(end.steps - start.steps) / seconds,
        period=seconds / versions,
        update=(end.trainer - start.trainer) / versions,
        browser_idle=max(0.0, 1 - used["browsers"]),
        engine_idle=1 - used["engine"],
        trainer_idle=1 - used["trainer"],
        staleness_mean=sum(lag * count for lag, count in lags.items()) / max(1, lags.total()),
        staleness_max=max(lags, default=0),
        staleness_histogram=staleness_histogram(lags.elements()),
        drops=dict(end.drops - start.drops),
        binds=next((name for name, share in used.items() if share >= FULL), "pacing"),
    )
