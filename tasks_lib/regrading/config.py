"""Configuration of a regrading: episodes, judge and weights."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from envs.rewards.judge import JudgeConfig
from tasks_lib.config import ClusterConfig, RewardConfig, TasksConfig
from training.settings import Settings


class RegradeConfig(Settings):
    """Episodes of a run that are graded again, with their judge and weights."""

    flow: ClassVar[str] = "flows.regrade"
    bare: ClassVar[bool] = False

    run: str = Field(description="Folder of a training run or an evaluation.")
    name: str = Field(
        "again",
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        description="The results are in regraded/NAME of the run.",
    )
    which: Literal["abstained", "all"] = Field(
        "abstained", description="Episodes without a reward, or all; browser failures stay without."
    )
    batch: int = Field(64, ge=1, le=4096, description="Episodes of one Prefect task.")
    judge: JudgeConfig | None = Field(None, description="Judge to ask; null: the run's.")
    rewards: RewardConfig | None = Field(None, description="Weights; null: the run's.")
    tasks: TasksConfig | None = Field(None, description="Tasks of an evaluation that were moved; null: the run's.")
    cluster: ClusterConfig = ClusterConfig()

    @property
    def run_id(self) -> str:
        """Name of the flow run."""
        return f"{self.run_dir.name}-{self.name}"

    @property
    def run_dir(self) -> Path:
        """Folder of the run."""
        return Path(self.run).expanduser().resolve()

    def plan(self) -> str:
        """Describe what this configuration would do, in a sentence."""
        episodes = "every episode" if self.which == "all" else "the episodes without a reward"
        return f"would grade {episodes} of {self.run_dir} again, into {self.run_dir / 'regraded' / self.name}"
