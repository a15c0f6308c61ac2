"""The configuration of a simulation: workload, machine, schedule, and settings to compare."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from training.pacing.workload import Distribution, Machine, Schedule, Workload
from training.settings import Settings

MAX_SETTINGS = 200
"""Most combinations of one simulation; each takes about a second."""


class WorkloadConfig(Settings):
    """Times of episodes and updates on an unloaded machine. Not used if a run is given."""

    group_size: int = Field(8, ge=2, description="Episodes of a group.")
    success_steps: float = Field(5.1, ge=1, description="Mean steps of passed episodes.")
    failure_steps: float = Field(12.5, ge=1, description="Mean steps of the others.")
    steps_sigma: float = Field(0.4, ge=0, le=3, description="Lognormal spread of steps.")
    reset_seconds: float = Field(1.0, ge=0, description="Seconds to prepare a page.")
    browser_seconds: float = Field(2.0, gt=0, description="Seconds of action and screenshot.")
    generation_seconds: float = Field(1.0, gt=0, description="Seconds of a model turn.")
    seconds_sigma: float = Field(0.8, ge=0, le=3, description="Lognormal spread of both.")
    judge_seconds: float = Field(0.0, ge=0, description="Seconds to grade an episode.")
    update_step_seconds: float = Field(0.02, ge=0, description="Update seconds per step of the batch.")
    publish_seconds: float = Field(1.0, ge=0, description="Seconds until engines serve a version.")
    pause_seconds: float = Field(0.2, ge=0, description="Seconds of these without generation.")
    abstain: float = Field(0.0, ge=0, lt=1, description="Share of episodes without a reward.")
    alpha: float = Field(1.0, gt=0, description="Beta distribution of tasks' success: alpha.")
    beta: float = Field(1.0, gt=0, description="Beta of the same distribution.")

    def workload(self) -> Workload:
        return Workload(
            group_size=self.group_size,
            success_steps=Distribution(self.success_steps, self.steps_sigma),
            failure_steps=Distribution(self.failure_steps, self.steps_sigma),
            reset_seconds=Distribution(self.reset_seconds),
            browser_seconds=Distribution(self.browser_seconds, self.seconds_sigma),
            generation_seconds=Distribution(self.generation_seconds, self.seconds_sigma),
            judge_seconds=Distribution(self.judge_seconds),
            update_seconds=Distribution(0.0),
            update_step_seconds=self.update_step_seconds,
            publish_seconds=self.publish_seconds,
            pause_seconds=self.pause_seconds,
            abstain=self.abstain,
            success=(self.alpha, self.beta),
        )


class MachineConfig(Settings):
    """Browsers and GPUs of the cluster."""

    browsers: int = Field(64, ge=1, description="Concurrent episodes.")
    engine_gpus: int = Field(1, ge=1, description="GPUs (replicas) that generate.")
    turns_per_gpu: float = Field(32.0, gt=0, description="Concurrent turns of one GPU at full speed.")
    trainer_gpus: int = Field(1, ge=1, description="GPUs that train; update times are for this many.")

    def machine(self) -> Machine:
        return Machine(self.browsers, self.turns_per_gpu * self.engine_gpus)


class ScheduleConfig(Settings):
    """Pacing of the run."""

    OLD_NAMES: ClassVar[Mapping[str, str]] = {"spares": "over_sampling"}

    batch: int = Field(16, ge=1, description="Groups of a batch.")
    staleness: int = Field(0, ge=0, le=64, description="Most versions a group may be late; 0: synchronous.")
    depth: int | None = Field(None, ge=0, description="Versions to admit ahead; null: half of staleness.")
    running: int = Field(4096, ge=1, description="Most groups under way.")
    barrier: Literal["none", "episode", "step"] = Field("none", description="What episodes wait for together.")
    over_sampling: int = Field(0, ge=0, description="Episodes started beyond a group's size.")

    def schedule(self) -> Schedule:
        return Schedule(
            batch=self.batch,
            staleness=self.staleness,
            depth=self.depth,
            running=self.running,
            barrier=self.barrier,
            over_sampling=self.over_sampling,
        )


class PlanConfig(Settings):
    """Values to compare, each combination; empty: only the one above."""

    staleness: tuple[int, ...] = Field((), description="Values of schedule.staleness.")
    batch: tuple[int, ...] = Field((), description="Values of schedule.batch.")
    running: tuple[int, ...] = Field((), description="Values of schedule.running.")
    browsers: tuple[int, ...] = Field((), description="Values of machine.browsers.")
    engine_gpus: tuple[int, ...] = Field((), description="GPUs that generate; the others train.")
    replicas: tuple[int, ...] = Field((), description="GPUs that generate; as many train as before.")


class SimulateConfig(Settings):
    """Configuration of ``flows.simulate``."""

    flow: ClassVar[str] = "flows.simulate"
    bare: ClassVar[bool] = True

    run: str = Field("", description="Folder of a finished run to take times from; empty: workload.")
    versions: int = Field(10, ge=1, le=10_000, description="Versions measured, after two.")
    seed: int = Field(0, ge=0, description="Seed of the random draws.")
    output: str = Field("", description="JSON file of the results; empty: none.")
    workload: WorkloadConfig = WorkloadConfig()
    machine: MachineConfig = MachineConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    compare: PlanConfig = PlanConfig()

    @property
    def run_id(self) -> str:
        """Name of the flow run."""
        return f"simulate-{Path(self.run).name}" if self.run else "simulate"

    def plan(self) -> str:
        """Describe in a sentence what a run of this configuration would do."""
        source = f"times of {self.run}" if self.run else "the given times"
        return f"would simulate {len(self.choices())} settings of {self.versions} versions with {source}"

    def choices(self) -> list[dict[str, int]]:
        """Return the combinations to compare, each with the values of `PlanConfig` by name.

        Returns one empty combination if there are no values.
        """
        lists = {name: values for name in PlanConfig.model_fields if (values := getattr(self.compare, name))}
        return [dict(zip(lists, values, strict=True)) for values in itertools.product(*lists.values())]

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        depth = self.schedule.depth
        if depth is not None and depth > min((self.schedule.staleness, *self.compare.staleness)):
            raise ValueError(f"schedule.depth: {depth} is more than a staleness; lower it, or leave it null")
        if len(self.choices()) > MAX_SETTINGS:
            raise ValueError(f"compare: {len(self.choices())} combinations; give fewer values, {MAX_SETTINGS} in all")
        gpus = self.machine.engine_gpus + self.machine.trainer_gpus
        for name in ("batch", "running", "browsers", "engine_gpus", "replicas"):
            if min(getattr(self.compare, name), default=1) < 1:
                raise ValueError(f"compare.{name}: values are at least 1")
        if min(self.compare.staleness, default=0) < 0:
            raise ValueError("compare.staleness: values are at least 0")
        if max(self.compare.engine_gpus, default=1) >= max(2, gpus):
            raise ValueError(f"compare.engine_gpus: of {gpus} GPUs at least one trains; raise machine.trainer_gpus")
        if self.compare.engine_gpus and self.compare.replicas:
            raise ValueError("compare.replicas: give these or compare.engine_gpus, not both")
        return self
