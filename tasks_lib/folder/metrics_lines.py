"""Lines of ``metrics.jsonl`` as records, with which they are written and read.

Loops write them; report, simulator and doctor read them. A measurement that was not taken has no
key, or null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import orjson
from pydantic import BeforeValidator, Field, PlainValidator, StrictInt, ValidationError, model_validator
from pydantic_core import PydanticKnownError

from envs.types import Record, StorageError
from training.ledger.seal import describe_first_error

RATE = ("mean", "low", "high")
"""Figures of a success rate; without any reward they are ``None``."""


def _number(value: Any) -> Any:
    """Accept a number as it is: an integer is written as one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise PydanticKnownError("float_type")


def _without_null(value: Any) -> Any:
    """Leave out the values of a mapping that were not measured."""
    return {key: number for key, number in value.items() if number is not None} if isinstance(value, dict) else value


Number = Annotated[int | float, PlainValidator(_number)]
Numbers = Annotated[dict[str, Number], BeforeValidator(_without_null)]


class Measurement(Record):
    """A success rate; over no episodes it is unknown: ``None``."""

    @model_validator(mode="before")
    @classmethod
    def _check_null(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if values.get("n") != 0 and (null := [name for name in RATE if name in values and values[name] is None]):
            raise ValueError(f"{null[0]} is null, over {values.get('n')} episodes")
        return values


class Success(Measurement):
    """Share of episodes that passed."""

    mean: Number | None
    """Share of the episodes with a reward that passed, in [0, 1]."""
    low: Number | None = None
    """Lower end of its 95 % interval (Wilson)."""
    high: Number | None = None
    """Upper end of that interval."""
    n: StrictInt
    """Number of episodes with a reward."""


class IdleShares(Record):
    """Idle shares of the time since the previous line, in [0, 1]."""

    browsers: Number | None = None
    """Share of time that a browser is lent to no episode."""
    engines: Number | None = None
    """Share of a worker's time without a turn of its own under way."""
    trainer: Number | None = None
    """Share of the trainer's time without a batch."""


class QueueWaits(Record):
    """Mean seconds in each queue since the previous line."""

    permit: Number | None = None
    """Wait of an episode from its shard's arrival at the worker to its start."""
    encode: Number | None = None
    """Wait of a turn for the encoder."""
    reward: Number | None = None
    """Wait of an episode for a place in the reward stage, and for the judge."""
    engine: Number | None = None
    """Wait of a turn for its generation batch; not measured with vLLM."""
    trainer: Number | None = None
    """Wait of a group from its end to its batch; only in asynchronous runs."""


class Overlap(Record):
    """Parallel work of an asynchronous run until a version was published."""

    staleness: Numbers = Field(default_factory=dict)
    """Number of rows by the age of their oldest token, in versions."""
    train: Number = 0.0
    """Seconds of the update."""
    publish: Number = 0.0
    """Seconds in which the engines were given the version."""
    trainer_idle: Number = 0.0
    """Seconds that the trainer waited for its batch."""
    workers_idle: Number = 0.0
    """Share of the workers' time in which they did nothing at all, in [0, 1]."""
    running: StrictInt = 0
    """Number of groups under way at the publication."""
    ready: StrictInt = 0
    """Number of groups that ended and wait for a batch."""
    limit: StrictInt | None = None
    """Maximum number of groups under way; only with ``pacing.adaptive``."""
    timeline: list[tuple[str, Number, Number]] = Field(default_factory=list)
    """Work that ended: name, beginning and end in seconds since 1970."""

    @property
    def mean_staleness(self) -> float:
        """Mean staleness of the rows, in versions."""
        rows = sum(self.staleness.values())
        return sum(int(old) * count for old, count in self.staleness.items()) / max(rows, 1)


class MetricsLine(Record):
    """One line of ``metrics.jsonl``. TensorBoard has its numbers under ``<kind>/<keys>``."""

    kind: ClassVar[str]
    """Value of the key ``kind``."""

    def content(self) -> dict[str, Any]:
        """Return the line's keys and values. Those that were not measured are left out."""
        return {"kind": self.kind, **self.model_dump(exclude_unset=True)}


class IterationMetrics(MetricsLine):
    """One training iteration, until its version is published."""

    kind = "iteration"

    success: Number | None = None
    """Share of the episodes with a reward that passed, in [0, 1]; null if none has one."""
    success_by_kind: dict[str, Success] = Field(default_factory=dict)
    """Success by task kind."""
    steps_mean: Number | None = None
    """Mean number of steps of the episodes with a reward."""
    response_tokens_mean: Number | None = None
    """Mean number of response tokens per step, of the episodes with a reward."""
    stop_reasons: Numbers = Field(default_factory=dict)
    """Number of episodes by stop reason."""
    forms: Numbers = Field(default_factory=dict)
    """Number of responses by the form of their action (`envs.types.action_text`)."""
    cut_turns: Number | None = None
    """Share of the turns that were cut at the token limit, in [0, 1]."""
    action_errors: Numbers = Field(default_factory=dict)
    """Number of failed actions by error code."""
    settled: Numbers = Field(default_factory=dict)
    """Number of steps by the reason why the wait for the page ended."""
    iteration: StrictInt
    """Number of the iteration; the first one is 0."""
    version: StrictInt | None = None
    """Policy version that the iteration published."""
    wall: Number | None = None
    """Seconds of the loop, including earlier processes of the run."""
    seconds: Numbers = Field(default_factory=dict)
    """Seconds of the flow process by phase, which add up to ``total``."""
    rollout_split: Numbers = Field(default_factory=dict)
    """Seconds of the workers by activity; those of parallel shards are summed."""
    browsers: list[dict[str, Any]] = Field(default_factory=list)
    """Counters and connection states of the shards' browser pools."""
    pipelines: list[dict[str, dict[str, Any]]] = Field(default_factory=list)
    """Counters of the shards' stages, by stage."""
    judge: dict[str, dict[str, StrictInt | None]] = Field(default_factory=dict)
    """Requests and tokens that the run's judges ``spent`` and have ``left`` (null: no limit)."""
    groups: Numbers = Field(default_factory=dict)
    """Number of groups of the batch (``total``), and of those without variance in their rewards."""
    rows: StrictInt | None = None
    """Number of rows of the batch."""
    train: dict[str, Number | dict[str, Number | None] | None] = Field(default_factory=dict)
    """Measurements of the trainer, means per response token where nothing else is said."""
    train_split: Numbers = Field(default_factory=dict)
    """Seconds of the update by part."""
    idle: IdleShares = IdleShares()
    """Idle shares of browsers, engines and trainer."""
    queues: QueueWaits = QueueWaits()
    """Mean waits in each queue."""
    batches: Numbers = Field(default_factory=dict)
    """Counters of the generation batches (`EngineStatistics`)."""
    servers_behind: StrictInt | None = None
    """Number of vLLM servers without the version when it was served; they get no turns."""
    asynchronous: Overlap | None = None
    """Work in parallel; only in asynchronous runs."""
    episodes: Numbers = Field(default_factory=dict)
    """Number of ``started`` episodes, and of those in each state (`training.records.states`)."""
    abstentions: Numbers = Field(default_factory=dict)
    """Number of abstentions by cause."""
    recovered: bool = False
    """True if the line was lost in a kill and made again from the iteration's files."""

    @property
    def trained(self) -> dict[str, float]:
        """The single numbers of ``train``."""
        return {name: value for name, value in self.train.items() if isinstance(value, int | float)}


class EvaluationMetrics(MetricsLine, Measurement):
    """Success of one policy version on the episodes of an evaluation.

    Its file in ``evaluations/`` has the same keys, and the episodes' ids and causes.
    """

    kind = "evaluation"

    wall: Number | None = None
    """Seconds of the loop, including earlier processes of the run."""
    version: StrictInt
    """Policy version that was evaluated."""
    policy: str | None = None
    """Hash (sha256) of its weights: a version that was made again may have others."""
    model: str | None = None
    """Name of the model at an endpoint that was evaluated in its place."""
    mean: Number | None
    """Share of the episodes with a reward that passed, in [0, 1]."""
    low: Number | None
    """Lower end of its 95 % interval (Wilson)."""
    high: Number | None
    """Upper end of that interval."""
    n: StrictInt
    """Number of episodes with a reward."""
    by_kind: dict[str, Success] = Field(default_factory=dict)
    """Success by task kind."""
    abstained: StrictInt = 0
    """Number of episodes without a reward."""
    split: str | None = None
    """Split of the page seeds."""
    greedy: bool | None = None
    """True if the tokens were chosen by probability alone."""
    seconds: Number | None = None
    """Seconds of wall clock that the evaluation took."""
    activity: Numbers = Field(default_factory=dict)
    """Seconds of the workers by activity, and ``wall``."""
    batches: Numbers = Field(default_factory=dict)
    """Counters of the generation batches (`EngineStatistics`)."""
    judge: dict[str, dict[str, StrictInt | None]] = Field(default_factory=dict)
    """Requests and tokens that the run's judges ``spent`` and have ``left`` (null: no limit)."""


Line = IterationMetrics | EvaluationMetrics
L = TypeVar("L", IterationMetrics, EvaluationMetrics)
LINES: tuple[type[Line], ...] = (IterationMetrics, EvaluationMetrics)


def parse_line(data: bytes, models: Sequence[type[Line]] = LINES) -> Line | None:
    """Return a line of ``metrics.jsonl``; ``None`` if it is of another kind.

    Unknown keys are ignored: another version of this code wrote them.

    Raises:
        StorageError: the line is torn or damaged. The message continues the line's name.
    """
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StorageError(f"is torn ({error})") from error
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str):
        raise StorageError("is no line of metrics: it has no kind")
    try:
        return next((model.model_validate(value, extra="ignore") for model in models if model.kind == kind), None)
    except ValidationError as error:
        raise StorageError(f"is no {kind}: {describe_first_error(error)}") from error


def parse_lines(path: Path, models: Sequence[type[Line]] = LINES) -> Iterator[Line | StorageError | None]:
    """Yield what `parse_line` returns of each line of a file, or an error that names the line."""
    for number, data in enumerate(path.read_bytes().splitlines() if path.exists() else (), start=1):
        try:
            yield parse_line(data, models)
        except StorageError as error:
            yield StorageError(f"{path.name} line {number} {error}")


def read_lines(path: Path, model: type[L]) -> list[L]:
    """Return all lines of one kind, oldest first.

    Raises:
        StorageError: a line is torn or damaged.
    """
    lines = list(parse_lines(path, (model,)))
    for line in lines:
        if isinstance(line, StorageError):
            raise StorageError(f"{path.parent}: {line}")
    return [line for line in lines if isinstance(line, model)]
