"""The configuration of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from envs.types import ConfigError
from tasks_lib.config import RUN_NAME, FolderConfig
from tasks_lib.config.promotion import APPROVAL_HOURS
from tasks_lib.sweeps.arms import Arm, make_arms


class SweepConfig(FolderConfig):
    """Configuration of a sweep: a training run, and the differences of each arm."""

    flow = "flows.sweep"

    run_id: str = Field(
        "",
        pattern=RUN_NAME,
        description="Folder, and beginning of the arms' names; empty: the preset, else sweep-PRESET of base.",
    )
    base: dict[str, Any] = Field({}, description="Values of all arms, nested; may name a preset.")
    grid: dict[str, Any] = Field(
        {}, description="Lists of values by key (algorithm.group_size, seed): an arm for each combination."
    )
    arms: list[dict[str, Any]] = Field(
        [],
        description="Arms one by one, values by key, each combined with the grid.",
    )
    deployment: str = Field(
        "",
        pattern=r"^(train/.+)?$",
        description="Deployment that runs the arms (train/quickstart); empty: subflows in this process.",
    )
    parallel: int = Field(1, ge=1, le=256, description="Concurrent arms; more than 1 needs a deployment.")

    approve_above: int | None = Field(
        None,
        ge=0,
        description="Episodes of all unfinished arms above which a person has to approve the sweep "
        "(docs/automations.md); null: never.",
    )
    approval_hours: float = Field(APPROVAL_HOURS, gt=0, le=720, description="Hours to wait for that person.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.run_id:
            base = self.base.get("preset") or "custom"
            object.__setattr__(self, "run_id", self.preset or f"sweep-{base}")
        if self.parallel > 1 and not self.deployment:
            raise ValueError(
                f"parallel: {self.parallel} arms at a time need a deployment: in one process each arm takes the cluster, the trainer and "
                "the cores for itself; set deployment (as train/quickstart), or leave parallel at 1"
            )
        try:
            self.all_arms()
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return self

    def all_arms(self) -> tuple[Arm, ...]:
        """Return the arms, complete and checked (`make_arms`)."""
        root = str(Path(self.root).expanduser().resolve())
        return make_arms(self.run_id, root, self.base, self.grid, self.arms)

    def plan(self) -> str:
        """Describe what this configuration would do: a sentence, and a line for each arm."""
        where = (
            f"as flow runs of {self.deployment}, {self.parallel} at a time"
            if self.deployment
            else "in this process, one after the other"
        )
        lines = [f"{arm.run_id}: {arm.description}" for arm in self.all_arms()]
        return "\n".join([f"would train {len(lines)} arms {where}, and compare them in {self.run_dir}", *lines])
