"""Reads a run's folder into plain values, whatever state it is in.

A run that goes on has half of its files, and perhaps half of its last line. Missing files are left
out. Unreadable ones are named in ``RunData.problems``, which the page shows, and never stop the
report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from envs.types import AnyPath, StorageError, WebTask
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics, Line, Numbers, Success, parse_lines
from training.ledger.seal import describe_first_error
from training.ledger.store import RunStore, read_json
from training.records.groups import EpisodeSummary, GroupRecord

M = TypeVar("M", bound=BaseModel)
K = TypeVar("K")


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
    started: dict[str, Any] = field(default_factory=dict)
    """Its start: ``by`` whom, ``flow_run``, ``deployment``, ``tags``."""
    iterations: list[IterationMetrics] = field(default_factory=list)
    """Iterations in ascending order. The last line of an iteration wins (a kill may repeat it)."""
    evaluations: list[EvaluationMetrics] = field(default_factory=list)
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

    def count(self, values: Callable[[EpisodeSummary], Iterable[K] | Mapping[K, int]]) -> tuple[Counter[K], Counter[K]]:
        """Count values of the training episodes, and of the evaluations' episodes."""
        training, evaluation = Counter[K](), Counter[K]()
        for group in self.groups:
            for episode in group.episodes:
                (evaluation if group.phase.startswith("e") else training).update(values(episode))
        return training, evaluation


def read_run(run_dir: AnyPath) -> RunData:
    """Read the folder of a run that is finished, unfinished or being written right now."""
    store = RunStore(run_dir)
    run = read_measurements(run_dir)
    run.tasks = {task.task_id: task for task in _tasks(store, run.problems)}
    run.groups = list(_groups(store, run.problems))
    return run


def read_measurements(run_dir: AnyPath, lines: Iterable[Line] | None = None) -> RunData:
    """Read a run without its tasks and groups, which is fast, however long the run is.

    Args:
        lines: The lines of ``metrics.jsonl``, where they are in memory: no measurement is read.
    """
    store = RunStore(run_dir)
    run = RunData(run_id=store.root.resolve().name)
    document = _document(store.config_path, run.problems)
    run.config, run.versions, run.started = (
        value if isinstance(value, dict) else {}
        for value in (document.get(key) for key in ("config", "versions", "started"))
    )
    run.git_commit = document.get("git_commit")
    if result := _document(store.result_path, run.problems):
        run.result = _valid(RunResult, result, store.result_path.name, run.problems, "ignore")
    _metrics(store, run, lines)
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


def _valid(
    model: type[M], value: Any, name: str, problems: list[str], extra: Literal["ignore"] | None = None
) -> M | None:
    try:
        return model.model_validate(value, extra=extra)
    except ValidationError as error:
        kind = model.__name__.lower().removesuffix("metrics")
        problems.append(f"{name} is no {kind}: {describe_first_error(error)}")
        return None


def _tasks(store: RunStore, problems: list[str]) -> Iterable[WebTask]:
    path = store.tasks_path
    for number, line in enumerate(path.read_bytes().splitlines() if path.exists() else (), start=1):
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            problems.append(f"{path.name} line {number} is torn ({error}): its task is missing from this page")
            continue
        if task := _valid(WebTask, value, f"{path.name} line {number}", problems):
            yield task


def _metrics(store: RunStore, run: RunData, lines: Iterable[Line] | None) -> None:
    iterations: dict[int, IterationMetrics] = {}
    evaluations: dict[int, EvaluationMetrics] = {}
    previous, offset = 0.0, 0.0
    for line in parse_lines(store.metrics_path) if lines is None else lines:
        if isinstance(line, StorageError):
            run.problems.append(f"{line}: its measurements are missing from this page")
        if line is None or isinstance(line, StorageError):
            continue
        if line.wall is not None:
            if line.wall < (previous - offset) / 2:  # the clock of a resumed run starts anew
                offset = previous
            previous = line.wall + offset
            if offset:
                line = line.model_copy(update={"wall": previous})
        if isinstance(line, IterationMetrics):
            iterations[line.iteration] = line
        else:
            evaluations[line.version] = line
    for path in sorted((store.root / "evaluations").glob("v*.json")) if lines is None else ():
        document = _document(path, run.problems)
        if (stored := _valid(EvaluationMetrics, document, path.name, run.problems, "ignore")) is not None:
            known = evaluations.get(stored.version)
            evaluations[stored.version] = stored.model_copy(update={"wall": known.wall if known else None})
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
