"""Reads a run's folder into plain values, whatever state it is in.

A run that goes on has half of its files, and perhaps half of its last line. Missing files are left
out. Unreadable ones are named in ``RunData.problems``, which the page shows, and never stop the
report.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import orjson
from pydantic import BaseModel, BeforeValidator, ValidationError, model_validator

from envs.types import AnyPath, StorageError, WebTask
from training.ledger.store import RunStore, read_json
from training.records.groups import GroupRecord


def _numbers(value: Any) -> Any:
    """Keep only the finite numbers of a mapping: null means that no measurement was taken."""
    if not isinstance(value, dict):
        return value
    return {key: number for key, number in value.items() if isinstance(number, int | float)}


M = TypeVar("M", bound=BaseModel)

Numbers = Annotated[dict[str, float], BeforeValidator(_numbers)]


class Measurement(BaseModel):
    """A measurement that is unknown over no episodes: ``None``, also where an older file has
    0.0."""

    @model_validator(mode="before")
    @classmethod
    def _unknown_of_none(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        names = [name for name in ("mean", "low", "high") if name in values]
        if values.get("n") == 0:
            return {**values, **dict.fromkeys(names)}
        if null := [name for name in names if values[name] is None]:
            raise ValueError(f"{null[0]} is null, over {values.get('n')} episodes")
        return values


class KindMean(Measurement):
    """Success of one task kind over ``n`` episodes."""

    mean: float | None
    n: int


class RewardCounts(BaseModel):
    """Counts and times of a shard's reward stage."""

    seconds: Numbers = {}
    waiting_seconds: float = 0.0
    timed_out: int = 0


class Stages(BaseModel):
    """The stages of a shard that the page shows; others are ignored."""

    reward: RewardCounts = RewardCounts()


class Overlap(BaseModel):
    """Parallel work of an asynchronous run until a version was published."""

    staleness: Numbers = {}
    """Number of rows by the age of their oldest token, in versions."""
    train: float = 0.0
    trainer_idle: float = 0.0
    workers_idle: float = 0.0
    running: int = 0
    timeline: list[tuple[str, float, float]] = []
    """Work that ended: name, beginning and end in seconds since 1970."""

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the rows, in versions."""
        rows = sum(self.staleness.values())
        return sum(int(old) * count for old, count in self.staleness.items()) / max(rows, 1)


class Iteration(BaseModel):
    """One training iteration, from its line in ``metrics.jsonl``. Unknown keys are ignored."""

    iteration: int
    wall: float | None = None
    seconds: Numbers = {}
    rollout_split: Numbers = {}
    success: float | None = None
    success_by_kind: dict[str, KindMean] = {}
    groups: Numbers = {}
    episodes: Numbers = {}
    abstentions: Numbers = {}
    steps_mean: float | None = None
    response_tokens_mean: float | None = None
    train: Numbers = {}
    kl_by_images: Numbers = {}
    """KL to the behaviour policy by the number of images in a row, from ``train``."""
    idle: Numbers = {}
    """Idle shares of browsers, engines and trainer; empty in older runs."""
    queues: Numbers = {}
    """Mean seconds in each queue; empty in older runs."""
    pipelines: list[Stages] = []
    asynchronous: Overlap | None = None

    @model_validator(mode="before")
    @classmethod
    def _lift_kl(cls, values: Any) -> Any:
        train = values.get("train") if isinstance(values, dict) else None
        return {**values, "kl_by_images": train.get("kl_by_images", {})} if isinstance(train, dict) else values

    @model_validator(mode="after")
    def _unknown_of_none(self) -> Self:
        if self.success_by_kind and not any(entry.n for entry in self.success_by_kind.values()):
            self.success = None
        return self


class Success(Measurement):
    """A success rate with its 95 % interval; unknown where no episode has a reward."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


class Evaluation(Measurement):
    """Held-out success of one policy version: mean with its 95 % interval over ``n`` episodes."""

    version: int
    wall: float | None = None
    mean: float | None
    low: float | None
    high: float | None
    n: int
    by_kind: dict[str, KindMean] = {}
    seconds: float | None = None


class KindChange(BaseModel):
    """Held-out success of one kind in the first and the last evaluation. ``n`` is the last
    one's."""

    before: float | None
    after: float | None
    n: int


class RunResult(BaseModel):
    """Content of ``result.json``, which is written once, when the run is over."""

    success_before: Success | None = None
    success_after: Success | None = None
    success_by_kind: dict[str, KindChange] = {}
    seconds: Numbers = {}
    peak_rss_mb: float | None = None
    episodes: Numbers = {}
    abstentions: Numbers = {}
    seed: int | None = None
    versions: dict[str, str | None] = {}


@dataclass(slots=True)
class RunData:
    """All that the report needs of a run's folder, except trajectories and blobs."""

    run_id: str
    config: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    git_commit: str | None = None
    iterations: list[Iteration] = field(default_factory=list)
    """Iterations in ascending order. The last line of an iteration wins (a kill may repeat it)."""
    evaluations: list[Evaluation] = field(default_factory=list)
    """Evaluations in ascending order of the policy version."""
    groups: list[GroupRecord] = field(default_factory=list)
    tasks: dict[str, WebTask] = field(default_factory=dict)
    result: RunResult | None = None
    """``None`` while the run goes on."""
    measured_at: float | None = None
    """Time when ``metrics.jsonl`` was last written, in seconds since the epoch."""
    problems: list[str] = field(default_factory=list)
    """Messages about files that exist but cannot be read."""

    @property
    def trains(self) -> bool:
        """True for a training run; False for an evaluation of one policy."""
        return bool(self.iterations) or "iterations" in self.config or not self.config

    @property
    def measured(self) -> str:
        """The split of the evaluations in words: held-out, or validation."""
        evaluation = self.config.get("evaluation")
        split = evaluation.get("split") if isinstance(evaluation, dict) else self.config.get("split")
        return str(split or "held_out").replace("_", "-")

    @property
    def kinds_that_read(self) -> set[str]:
        """Kinds with a task whose answer depends on matching words of the instruction."""
        return {task.kind for task in self.tasks.values() if task.needs_reading}


def read_run(run_dir: AnyPath) -> RunData:
    """Read the folder of a run that is finished, unfinished or being written right now."""
    store = RunStore(run_dir)
    run = read_measurements(run_dir)
    run.tasks = {task.task_id: task for task in _tasks(store, run.problems)}
    run.groups = list(_groups(store, run.problems))
    return run


def read_measurements(run_dir: AnyPath) -> RunData:
    """Read a run without its tasks and groups, which is fast, however long the run is."""
    store = RunStore(run_dir)
    run = RunData(run_id=store.root.resolve().name)
    document = _document(store.config_path, run.problems)
    run.config, run.versions = (
        value if isinstance(value, dict) else {} for value in (document.get("config"), document.get("versions"))
    )
    run.git_commit = document.get("git_commit")
    if result := _document(store.result_path, run.problems):
        run.result = _valid(RunResult, result, str(store.result_path.name), run.problems)
    _metrics(store, run)
    return run


def _document(path: Path, problems: list[str]) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = read_json(path)
    except StorageError as error:
        problems.append(str(error))
        return {}
    return value if isinstance(value, dict) else {}


def _valid(model: type[M], value: Any, name: str, problems: list[str]) -> M | None:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "value"
        problems.append(f"{name} is no {model.__name__.lower()}: {where}: {first['msg']}")
        return None


def _lines(path: Path, problems: list[str]) -> Iterable[tuple[str, Any]]:
    """Yield (name of the line, value) of a JSON-lines file. A line that cannot be read is a
    problem."""
    if not path.exists():
        return
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        name = f"{path.name} line {number}"
        try:
            yield name, orjson.loads(line)
        except orjson.JSONDecodeError as error:
            problems.append(f"{name} is torn ({error}): its measurements are missing from this page")


def _tasks(store: RunStore, problems: list[str]) -> Iterable[WebTask]:
    for name, value in _lines(store.tasks_path, problems):
        if task := _valid(WebTask, value, name, problems):
            yield task


def _metrics(store: RunStore, run: RunData) -> None:
    iterations: dict[int, Iteration] = {}
    evaluations: dict[int, Evaluation] = {}
    previous, offset = 0.0, 0.0
    for name, value in _lines(store.metrics_path, run.problems):
        kind = value.get("kind") if isinstance(value, dict) else None
        if kind not in ("iteration", "evaluation"):
            continue
        entry: Iteration | Evaluation | None
        entry = (
            _valid(Iteration, value, name, run.problems)
            if kind == "iteration"
            else _valid(Evaluation, value, name, run.problems)
        )
        if entry is None:
            continue
        if entry.wall is not None:
            if entry.wall < (previous - offset) / 2:  # the clock of a resumed run starts anew
                offset = previous
            entry.wall = previous = entry.wall + offset
        if isinstance(entry, Iteration):
            iterations[entry.iteration] = entry
        else:
            evaluations[entry.version] = entry
    for path in sorted((store.root / "evaluations").glob("v*.json")):
        if (stored := _valid(Evaluation, _document(path, run.problems), path.name, run.problems)) is not None:
            line = evaluations.get(stored.version)
            evaluations[stored.version] = stored.model_copy(update={"wall": line.wall if line else None})
    run.iterations = [iterations[key] for key in sorted(iterations)]
    run.evaluations = [evaluations[key] for key in sorted(evaluations)]
    if store.metrics_path.exists():
        run.measured_at = store.metrics_path.stat().st_mtime


def describe_phase(phase: str, version: int) -> str:
    """Describe a phase in words: ``evaluation of v3``, ``iteration 12``.

    ``version`` is used if the phase has no number.
    """
    number = int(phase[1:]) if phase[1:].isdigit() else version
    return f"evaluation of v{number}" if phase.startswith("e") else f"iteration {number}"


def _groups(store: RunStore, problems: list[str]) -> Iterable[GroupRecord]:
    for path in sorted((store.root / "groups").glob("*/*.json")):
        if not (document := _document(path, problems)):
            continue
        if group := _valid(GroupRecord, document, f"groups/{path.name}", problems):
            yield group
