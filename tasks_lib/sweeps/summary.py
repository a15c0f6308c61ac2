"""Summary of a sweep: ``sweep.json``, means over seeds, best arms, tables.

Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from envs.types import Record
from tasks_lib.folder.metrics import describe_success
from tasks_lib.folder.metrics_lines import Success
from tasks_lib.sweeps.arms import SEED, describe_values

PAGES = ("tasks.file", "tasks.kinds")
"""Keys that decide on which pages an arm is measured, besides its split."""

TUNED = (
    "a setting that is chosen by held-out success is tuned on the held-out pages, and its figure is too good: choose with "
    "base.evaluation.split=validation, then measure the chosen one on held_out"
)


class ArmState(StrEnum):
    """Progress of an arm."""

    WAITING = "waiting"
    """It is to be started or resumed."""
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    """It was under way when the sweep was stopped."""
    FINISHED = "finished"
    FAILED = "failed"
    DROPPED = "dropped"
    """It was removed from the sweep. Its run is kept, and not compared with the others."""


class ArmRecord(Record):
    """One arm."""

    run_id: str
    values: dict[str, Any]
    """Values that distinguish it, by dotted key."""
    split: str
    """Split of the page seeds in its evaluations."""
    state: ArmState = ArmState.WAITING
    error: str | None = None
    """Cause of its failure, in a line."""
    success_before: Success | None = None
    success_after: Success | None = None
    minutes: float | None = None
    report: str | None = None
    """Path of its page, relative to the sweep's folder."""

    @property
    def pages(self) -> str:
        """Pages it is measured on, in words: ``held_out``, and the tasks where arms have different
        ones.

        Only arms with the same pages are compared.
        """
        tasks = {key: value for key, value in self.values.items() if key in PAGES}
        return f"{self.split}, {describe_values(tasks)}" if tasks else self.split

    @property
    def mean(self) -> float | None:
        """Success of its last version. ``None`` unless it is finished and an episode has a
        reward."""
        success = self.success_after
        return success.mean if self.state is ArmState.FINISHED and success is not None and success.n else None


class Setting(Record):
    """Finished arms that differ only in their seeds."""

    values: dict[str, Any]
    """Values of the arms, without the seed."""
    split: str
    n: int
    """Number of seeds."""
    mean: float
    """Mean over the seeds of the last version's success."""
    min: float
    max: float


class SweepSummary(Record):
    """Content of ``sweep.json``."""

    run_id: str
    deployment: str
    """Deployment that runs the arms; empty for subflows."""
    keys: tuple[str, ...]
    """Keys in which arms differ."""
    arms: tuple[ArmRecord, ...]
    settings: tuple[Setting, ...] = ()
    """Settings by mean, the highest first; empty where the seed is not among the keys."""
    best: dict[str, str] = Field(default_factory=dict)
    """Finished arm with the highest success, by the measured pages (`ArmRecord.pages`). In a tie,
    the first (`leaders`)."""

    @property
    def tuned(self) -> bool:
        """True if a choice between these arms would tune on held-out pages.

        Their settings differ, not only their seeds. A measured arm that was dropped counts:
        dropping it was a choice.
        """
        held_out = any(self.record(run_id).split == "held_out" for run_id in self.best.values())
        arms = [arm for arm in self.arms if arm.state is not ArmState.DROPPED or arm.success_after is not None]
        return held_out and len({describe_values(without_seed(arm.values)) for arm in arms}) > 1

    @property
    def compared(self) -> tuple[ArmRecord, ...]:
        """The arms that are in the sweep now."""
        return tuple(arm for arm in self.arms if arm.state is not ArmState.DROPPED)

    def record(self, run_id: str) -> ArmRecord:
        """Return the arm of that name."""
        return next(arm for arm in self.arms if arm.run_id == run_id)

    def leaders(self, pages: str) -> list[ArmRecord]:
        """Return all arms with the highest success on these pages: more than one is a tie."""
        top = self.record(self.best[pages]).mean
        return [arm for arm in self.compared if arm.pages == pages and arm.mean is not None and arm.mean == top]

    def within_interval(self, pages: str) -> list[ArmRecord]:
        """Return arms with lower success that lies inside the 95 % interval of the best.

        The measurement cannot distinguish them from the best.
        """
        first = self.leaders(pages)[0]
        low = first.success_after.low if first.success_after is not None else None
        return [
            arm
            for arm in self.compared
            if arm.pages == pages
            and arm.mean is not None
            and first.mean is not None
            and low is not None
            and low <= arm.mean < first.mean
        ]

    def verdict(self, pages: str) -> str:
        """Return ``best on held_out: a``, or ``tie on held_out: a, b``."""
        names = [arm.run_id for arm in self.leaders(pages)]
        return f"{'tie' if len(names) > 1 else 'best'} on {pages}: {', '.join(names)}"

    def caution(self, pages: str) -> str:
        """Return ``within its interval: c``; empty if no other arm is."""
        names = [arm.run_id for arm in self.within_interval(pages)]
        return f"within its interval: {', '.join(names)}" if names else ""


def summarise(run_id: str, deployment: str, arms: Iterable[ArmRecord]) -> SweepSummary:
    """Return the summary of these arms, in their order."""
    records = tuple(arms)
    keys = sorted({key for arm in records for key in arm.values}, key=lambda key: (key == SEED, key))
    return SweepSummary(
        run_id=run_id,
        deployment=deployment,
        keys=tuple(keys),
        arms=records,
        settings=tuple(over_seeds(records)) if SEED in keys else (),
        best=best(records),
    )


def over_seeds(arms: Sequence[ArmRecord]) -> list[Setting]:
    """Return mean, minimum and maximum success over the seeds of each setting, the highest mean
    first.

    Settings with different splits are kept apart. ``n`` counts the arms that have a measurement;
    the others are left out.
    """
    groups: dict[str, list[ArmRecord]] = {}
    for arm in arms:
        if arm.mean is not None:
            groups.setdefault(f"{arm.split}: {describe_values(without_seed(arm.values))}", []).append(arm)
    settings = []
    for members in groups.values():
        means = [arm.mean for arm in members if arm.mean is not None]
        settings.append(
            Setting(
                values=without_seed(members[0].values),
                split=members[0].split,
                n=len(means),
                mean=sum(means) / len(means),
                min=min(means),
                max=max(means),
            )
        )
    return sorted(settings, key=lambda setting: -setting.mean)


def best(arms: Sequence[ArmRecord]) -> dict[str, str]:
    """Return the first finished arm with the highest success, by `ArmRecord.pages`.

    Measurements on different pages are not compared.
    """
    leaders: dict[str, ArmRecord] = {}
    for arm in arms:
        known = leaders.get(arm.pages)
        if arm.mean is not None and (known is None or known.mean is None or arm.mean > known.mean):
            leaders[arm.pages] = arm
    return {pages: arm.run_id for pages, arm in leaders.items()}


def without_seed(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a setting."""
    return {key: value for key, value in values.items() if key != SEED}


def table_rows(summary: SweepSummary) -> list[dict[str, Any]]:
    """Return a row for each arm, for Prefect's table."""
    return [
        {
            "arm": arm.run_id,
            **{key: str(arm.values[key]) if key in arm.values else "" for key in summary.keys},
            "state": str(arm.state),
            "before": _interval(arm.success_before),
            "after": _interval(arm.success_after),
            "minutes": round(arm.minutes, 1) if arm.minutes is not None else "",
            "error": arm.error or "",
        }
        for arm in summary.arms
    ]


def lines(summary: SweepSummary) -> list[str]:
    """Return a line for each arm, each setting with several seeds, and the best arm."""
    width = max(len(arm.run_id) for arm in summary.arms)
    texts = [f"{arm.run_id:{width}s}  {_outcome(arm)}" for arm in summary.arms]
    for setting in summary.settings:
        if setting.n > 1:
            texts.append(
                f"{describe_values(setting.values)}: {setting.mean:.3f} over {setting.n} seeds, "
                f"{setting.min:.3f} to {setting.max:.3f} ({setting.split})"
            )
    for pages, run_id in summary.best.items():
        caution = summary.caution(pages)
        texts.append(
            f"{summary.verdict(pages)}, {_interval(summary.record(run_id).success_after)}{f'; {caution}' if caution else ''}"
        )
    if summary.tuned:
        texts.append(TUNED)
    return texts


def _outcome(arm: ArmRecord) -> str:
    if arm.state is not ArmState.FINISHED:
        return f"{arm.state}{f': {arm.error}' if arm.error else ''}"
    minutes = f", {arm.minutes:.1f} min" if arm.minutes is not None else ""
    return f"{_interval(arm.success_before)} -> {_interval(arm.success_after)}{minutes}"


def _interval(success: Success | None) -> str:
    return describe_success(success.model_dump(), 2) if success is not None else ""
