"""Simulates the settings of a configuration and sorts the results, fastest first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

from envs.types import ConfigError
from tasks_lib.simulation.config import SimulateConfig
from tasks_lib.simulation.fit import fit
from training.pacing.results import Result
from training.pacing.simulate import simulate
from training.pacing.workload import Machine, Schedule, Workload

SHOWN = (
    "episodes_per_hour",
    "period",
    "update",
    "browser_idle",
    "engine_idle",
    "trainer_idle",
    "staleness_mean",
    "binds",
)
"""Fields of a result that the table shows."""


def compare(config: SimulateConfig) -> Iterator[tuple[dict[str, int], Result]]:
    """Simulate each combination of ``config.compare`` and yield its result.

    Raises:
        ConfigError: there is no run to fit, or nothing can ever be trained on in a setting.
    """
    base = base_of(config)
    for choice in config.choices():
        workload, machine, schedule = with_choice(base, choice, config)
        try:
            yield choice, simulate(workload, machine, schedule, versions=config.versions, seed=config.seed)
        except ValueError as error:
            raise ConfigError(f"workload: {error}; change workload.alpha and workload.beta, or abstain") from error


def base_of(config: SimulateConfig) -> tuple[Workload, Machine, Schedule]:
    """Return the values that all settings begin with: as given, or as fitted to the run."""
    if not config.run:
        return config.workload.workload(), config.machine.machine(), config.schedule.schedule()
    fitted = fit(config.run)
    return fitted.workload, fitted.machine, fitted.schedule


def with_choice(
    base: tuple[Workload, Machine, Schedule], choice: dict[str, int], config: SimulateConfig
) -> tuple[Workload, Machine, Schedule]:
    """Return the base with the values of a choice.

    Update times are proportional to the size of the batch, and inversely to the number of GPUs that
    train.
    """
    workload, machine, schedule = base
    gpus = config.machine
    engines = choice.get("engine_gpus", choice.get("replicas", gpus.engine_gpus))
    trainers = gpus.engine_gpus + gpus.trainer_gpus - engines if "engine_gpus" in choice else gpus.trainer_gpus
    batch = choice.get("batch", schedule.batch)
    slowdown = gpus.trainer_gpus / trainers
    update_seconds = replace(
        workload.update_seconds,
        mean=workload.update_seconds.mean * slowdown * batch / schedule.batch,
        values=tuple(value * slowdown * batch / schedule.batch for value in workload.update_seconds.values),
    )
    return (
        replace(workload, update_seconds=update_seconds, update_step_seconds=workload.update_step_seconds * slowdown),
        replace(
            machine,
            browsers=choice.get("browsers", machine.browsers),
            engine_turns=machine.engine_turns * engines / gpus.engine_gpus,
        ),
        replace(
            schedule,
            batch=batch,
            staleness=choice.get("staleness", schedule.staleness),
            # The depth of a run belongs to its own staleness.
            depth=None if "staleness" in choice else schedule.depth,
            running=choice.get("running", schedule.running),
        ),
    )


def rows_of(results: list[tuple[dict[str, int], Result]]) -> list[dict[str, Any]]:
    """Return a table of the results, those with the most episodes per hour first."""
    ordered = sorted(results, key=lambda pair: -pair[1].episodes_per_hour)
    return [{**choice, **{name: _short(getattr(result, name)) for name in SHOWN}} for choice, result in ordered]


UNITS = {"period": "s", "update": "s", "staleness_mean": "versions"}
"""Units of the fields in `SHOWN`; idle figures are shares of the time."""


def describe_row(row: dict[str, Any]) -> str:
    """Return a row of the table as a line, with units."""
    return "  ".join(f"{name.replace('_', ' ')} {value} {UNITS.get(name, '')}".rstrip() for name, value in row.items())


def document_of(results: list[tuple[dict[str, int], Result]]) -> list[dict[str, Any]]:
    """Return each setting with all fields of its result, as JSON values."""
    return [
        {
            "setting": choice,
            **asdict(result),
            "staleness_histogram": {str(lag): n for lag, n in result.staleness_histogram.items()},
        }
        for choice, result in results
    ]


def _short(value: Any) -> Any:
    return (
        float(f"{value:.3g}")
        if isinstance(value, float) and abs(value) < 1000
        else round(value)
        if isinstance(value, float)
        else value
    )
