"""Summary of a run: headline, success by kind, time, outcomes of episodes.

Pure functions.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.browser import SettleReason
from tasks_lib.folder.metrics import numbers, sum_by_name
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics, Success
from tasks_lib.report.charts import LineChart, Series, line_chart, number
from tasks_lib.report.data import KindChange, RunData

ORCHESTRATION_TARGET = 0.10
"""Target of this project: the largest share of wall clock for Prefect, Dask and the flow."""

PHASES = {
    "set_up": "Set-up: processes, models, tasks",
    "sample": "Sample tasks",
    "browser": "Rollout: browser",
    "generate": "Rollout: generate",
    "store": "Rollout: store",
    "idle": "Rollout: idle",
    "rollout": "Rollout: not split further",
    "reward": "Reward",
    "batch": "Build batch",
    "train": "Train",
    "publish": "Publish policy",
    "evaluate": "Evaluate",
    "orchestrate": "Orchestrate: Prefect, Dask, flow",
    "other": "Not measured",
}
"""Phases of a run's wall clock, in the order of the bar. The key is also the colour's class."""

HEALTH = {
    "train/entropy": ("Entropy", "mean over response tokens, nats"),
    "train/clip_fraction": ("Clip fraction", "tokens whose ratio was clipped"),
    "train/kl_behaviour": ("KL to behaviour", "policy against the one that sampled"),
    "train/grad_norm": ("Gradient norm", "before clipping"),
    "zero_variance": ("Zero-variance groups", "share of groups that teach nothing"),
    "train/ratio": ("Importance ratio", "mean over response tokens"),
    "train/dual_clip": ("Dual clip", "tokens whose loss was bounded, A below 0"),
    "train/dppo_masked": ("DPPO mask", "tokens that moved too far"),
    "train/behaviour_weight": ("Behaviour weight", "proximal against sampling policy, mean"),
    "train/ess": ("Effective sample size", "of the behaviour weights, share of their tokens"),
    "train/behaviour_masked": ("Masked tokens", "behaviour ratio out of range"),
    "train/behaviour_clamped": ("Clamped tokens", "behaviour ratio above its cap"),
    "train/loss": ("Loss", "policy objective"),
    "train/kl_by_images": ("KL", "to behaviour, rows with so many"),
    "steps_mean": ("Steps per episode", "mean"),
    "response_tokens_mean": ("Response length", "tokens per step, mean"),
    "seconds/total": ("Iteration time", "seconds of wall clock"),
    "mean_staleness": ("Staleness", "versions that a row's oldest token is old, mean"),
    "asynchronous/trainer_idle": ("Trainer waits", "seconds without a batch"),
    "asynchronous/workers_idle": ("Idle workers", "share of their wall clock"),
    "asynchronous/running": ("Groups under way", "when a version was published"),
    "idle/browsers": ("Idle browsers", "share of time that one is lent to no episode"),
    "idle/engines": ("Idle engines", "share of time without a turn under way"),
    "idle/trainer": ("Idle trainer", "share of time without a batch"),
    "queues/permit": ("Wait for a slot", "seconds, mean of episodes"),
    "queues/encode": ("Wait for the encoder", "seconds, mean of turns"),
    "queues/engine": ("Wait for the engine", "seconds, mean of turns"),
    "queues/reward": ("Wait for grading", "seconds, mean of episodes"),
    "queues/trainer": ("Wait for the trainer", "seconds, mean of groups"),
}
"""Title and meaning of each drawn measurement, by its path in an iteration's line."""


@dataclass(frozen=True, slots=True)
class Headline:
    """First and last held-out success, and the run's progress."""

    before: Success | EvaluationMetrics | None
    after: Success | EvaluationMetrics | None
    kinds: int
    seconds: float | None
    running: bool
    iterations: int
    trains: bool


@dataclass(frozen=True, slots=True)
class KindRow:
    """Held-out success of one kind in the first and the last evaluation, in [0, 1].

    ``None``: not evaluated, or unknown.
    """

    kind: str
    before: float | None
    after: float | None
    n: int
    reads: bool
    unknown: frozenset[str] = frozenset()
    """Sides (``before``, ``after``) that were evaluated without any reward."""


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """One phase of the wall clock."""

    key: str
    name: str
    seconds: float
    share: float
    start: float
    """Start of its piece of the bar, in [0, 1]."""


STATES = {
    "consumed": "in a batch that was trained on",
    "zero_variance": "all rewards of its group were equal",
    "failed_filter": "did not pass what the algorithm trains on",
    "stale": "too old to be trained on",
    "damaged": "its trajectory or a screenshot was lost",
    "abstained": "no usable reward: never trained on",
    "abandoned": "given up: its group had enough others",
    "in_flight": "not settled when last counted",
}
"""States of episodes (`training.records.states`) with their meanings, in the order of the table."""

SETTLED: dict[str, str] = {
    SettleReason.RESTED: "nothing was left to wait for",
    SettleReason.OPEN_REQUESTS: "requests made no progress and were left open",
    SettleReason.BACKGROUND: "workers or the browser's stores needed real time too",
    SettleReason.NO_CLOCK: "the page's clock was not held",
    SettleReason.DIALOG: "a dialog waited for its answer",
    SettleReason.BUSY: "a script did not end and was stopped",
    SettleReason.DEADLINE: "the time was used up, and loading was stopped",
}
"""Reasons for which the wait for a page after an action ended (`envs.settle.SettleReason`), with
their meanings."""


@dataclass(frozen=True, slots=True)
class OutcomeCounts:
    """Counts of the episodes that training started."""

    started: int
    states: dict[str, int]
    """Number of episodes by state."""
    causes: dict[str, int]
    """Number of abstentions by cause."""

    @property
    def rows(self) -> list[tuple[str, int, str]]:
        """(name, episodes, meaning) of each state, and of each cause of abstentions after their
        state."""
        rows = []
        for state, why in STATES.items():
            if self.states.get(state) or state == "consumed":
                rows.append((state.replace("_", " "), self.states.get(state, 0), why))
            if state == "abstained":
                rows += [(f"abstained: {cause}", count, "among those") for cause, count in self.causes.items()]
        return rows

    @property
    def unexplained(self) -> int:
        """Number of episodes without a state; zero unless one was lost or counted twice."""
        return self.started - sum(self.states.values())


def headline(run: RunData) -> Headline:
    """Return the one-line result; from the evaluations so far while there is no ``result.json``."""
    before = run.result.success_before if run.result else None
    after = run.result.success_after if run.result else None
    first, last = first_and_last(run.evaluations)
    clocks = [*(line.wall for line in run.iterations), *(line.wall for line in run.evaluations)]
    walls = [wall for wall in clocks if wall is not None]
    total = run.result.seconds.get("total") if run.result else None
    return Headline(
        before=before or first,
        after=after or last,
        kinds=len(kind_rows(run)),
        seconds=total if total is not None else max(walls, default=None),
        running=run.result is None and (run.trains or not run.evaluations),
        iterations=len(run.iterations),
        trains=run.trains,
    )


def first_and_last(evaluations: list[EvaluationMetrics]) -> tuple[EvaluationMetrics | None, EvaluationMetrics | None]:
    """Return first and last evaluation; the last is ``None`` until there are two."""
    return (evaluations[0] if evaluations else None), (evaluations[-1] if len(evaluations) > 1 else None)


def kind_rows(run: RunData) -> list[KindRow]:
    """Return success by kind before and after, the largest gain first."""
    first, last = first_and_last(run.evaluations)
    before, after = (first.by_kind if first else {}), (last.by_kind if last else {})
    if run.result and run.result.success_by_kind:
        rows = [_changed(kind, entry, before.get(kind), run) for kind, entry in run.result.success_by_kind.items()]
    else:
        rows = [
            _evaluated(kind, before.get(kind), after.get(kind), run) for kind in sorted(before.keys() | after.keys())
        ]
    return sorted(rows, key=lambda row: (bool(row.unknown), (row.before or 0) - (row.after or 0), row.kind))


def _changed(kind: str, entry: KindChange, first: Success | None, run: RunData) -> KindRow:
    """Return a row of ``result.json``.

    That file does not say how many episodes ``before`` has; the first evaluation does.
    """
    before = None if first is not None and first.n == 0 else entry.before
    after = entry.after if entry.n else None
    unknown = frozenset(name for name, mean in (("before", before), ("after", after)) if mean is None)
    return KindRow(kind, before, after, entry.n, kind in run.kinds_that_read, unknown)


def _evaluated(kind: str, before: Success | None, after: Success | None, run: RunData) -> KindRow:
    sides = {name: side for name, side in (("before", before), ("after", after)) if side is not None}
    means = {name: side.mean for name, side in sides.items()}
    return KindRow(
        kind,
        means.get("before"),
        means.get("after"),
        list(sides.values())[-1].n,
        kind in run.kinds_that_read,
        frozenset(name for name, mean in means.items() if mean is None),
    )


def time_split(run: RunData) -> tuple[list[PhaseShare], float]:
    """Return each phase's share of the wall clock, and the total in seconds.

    The parts of a rollout (browser, generate, …) are seconds of workers that may overlap; they are
    scaled down to the wall clock of the rollouts when their sum is larger.
    """
    seconds = sum_by_name(entry.seconds for entry in run.iterations)
    split = sum_by_name(entry.rollout_split for entry in run.iterations)
    seconds.pop("total", None)
    seconds["evaluate"] = sum(entry.seconds or 0.0 for entry in run.evaluations)
    final = run.result.seconds if run.result else {}
    for key, value in final.items():
        if key != "total" and not seconds[key]:
            seconds[key] = value
    rollout, parts = seconds.pop("rollout", 0.0), sum(split.values())
    scale = min(1.0, rollout / parts) if parts else 0.0
    for key, value in split.items():
        seconds[key] += value * scale
    seconds["rollout"] = max(0.0, rollout - parts * scale)
    known = sum(seconds.values())
    total = max(known, final.get("total", 0.0))
    seconds["other"] += total - known
    seconds["other"] += sum(seconds.pop(key) for key in list(seconds) if key not in PHASES)
    shares, start = [], 0.0
    for key, name in PHASES.items():
        if total and seconds[key] > 0.0005 * total:
            shares.append(PhaseShare(key, name, seconds[key], seconds[key] / total, start))
            start += seconds[key] / total
    return shares, total


def orchestration_share(shares: list[PhaseShare]) -> float | None:
    """Return the share of the wall clock that is neither web nor model. ``None`` before any
    measurement."""
    return sum(share.share for share in shares if share.key == "orchestrate") if shares else None


def episode_counts(run: RunData) -> OutcomeCounts:
    """Return totals of the run: the result's, or the sum over the iterations so far."""
    entries = [run.result] if run.result and run.result.episodes else run.iterations
    counts = sum_by_name(entry.episodes for entry in entries)
    causes = sum_by_name(entry.abstentions for entry in entries)
    states = {name: int(counts[name]) for name in STATES if name in counts}
    return OutcomeCounts(int(counts["started"]), states, {name: int(causes[name]) for name in sorted(causes)})


def staleness_rows(run: RunData) -> list[tuple[int, int, float]]:
    """Return (staleness in versions, rows trained on, their share) over the run, by their oldest
    token.

    Empty where nothing ran in parallel.
    """
    rows = sum_by_name(line.asynchronous.staleness for line in run.iterations if line.asynchronous is not None)
    total = max(sum(rows.values()), 1)
    return sorted((int(old), int(count), count / total) for old, count in rows.items())


def stop_reasons(run: RunData) -> list[tuple[str, int, int]]:
    """Return (stop reason, training episodes, evaluation episodes), the most frequent first."""
    training, evaluation = run.count(lambda episode: [episode.stop_reason.value])
    return [(reason, training[reason], evaluation[reason]) for reason, _ in (training + evaluation).most_common()]


@dataclass(frozen=True)
class SettledSteps:
    """Steps after which the wait for the page ended for one reason."""

    reason: str
    why: str
    """Meaning of the reason; empty for a reason of another version."""
    training: int
    training_share: float
    """Share of the training steps that waited, 0 to 1."""
    evaluation: int
    evaluation_share: float


def settled_steps(run: RunData) -> list[SettledSteps]:
    """Return the reasons for which waits for pages ended, the most frequent first.

    Empty for runs that did not record them.
    """
    training, evaluation = run.count(lambda episode: episode.settled)
    return [
        SettledSteps(
            reason,
            SETTLED.get(reason, ""),
            training[reason],
            training[reason] / max(training.total(), 1),
            evaluation[reason],
            evaluation[reason] / max(evaluation.total(), 1),
        )
        for reason, _ in (training + evaluation).most_common()
    ]


def health_charts(run: RunData) -> list[tuple[LineChart, str, str]]:
    """Return (chart, meaning, last value) of each health measurement that the run has."""
    measured = [(float(line.iteration), _measurements(line)) for line in run.iterations]
    known = sorted({key for _, values in measured for key in values})
    charts = []
    for path, (title, meaning) in HEALTH.items():
        for key in (key for key in known if key == path or key.startswith(f"{path}/")):
            images = key[len(path) + 1 :].replace("_", " ")
            name = f"{title}, {images} {'image' if images == '1' else 'images'}" if images else title
            points = [(x, values[key]) for x, values in measured if key in values]
            charts.append((_health_chart(name, points), meaning, number(points[-1][1])))
    return charts


def _measurements(line: IterationMetrics) -> dict[str, float]:
    """Return the numbers of an iteration by path, as TensorBoard has them, and two that follow."""
    content = line.model_dump(exclude={"browsers", "pipelines"})
    values = {path.removeprefix("/"): value for path, value in numbers(content, "")}
    if values.get("groups/total") and "groups/zero_variance" in values:
        values["zero_variance"] = values["groups/zero_variance"] / values["groups/total"]
    if line.asynchronous is not None:
        values["mean_staleness"] = line.asynchronous.mean_staleness
    return values


def _health_chart(title: str, points: list[tuple[float, float]]) -> LineChart:
    return line_chart(
        title,
        [Series(title, "plain", tuple(points), dots=len(points) == 1)],
        x_label="iteration",
        x_steps=4,
        y_steps=2,
        notes={x: f"iteration {x:.0f}\n{number(y)}" for x, y in points},
        whole=True,
    )
