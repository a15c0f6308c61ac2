"""Configuration of a promotion: a run's version, and the alias that it gets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from tasks_lib.config.reading import resolve_path
from tasks_lib.config.values import Flag
from training.settings import Settings

APPROVAL_HOURS = 24.0
"""Hours that a flow run waits for a person by default."""


class PromoteConfig(Settings):
    """A named alias of a published version, which other flows accept as a checkpoint."""

    flow: ClassVar[str] = "flows.promote"
    bare: ClassVar[bool] = False
    FLAGS: ClassVar[Mapping[str, Flag]] = {
        "run": Flag("run", "value", "RUN", "folder of a training run"),
        "--version": Flag("version", "value", "N", "version to name; without it the newest, or for best the best"),
        "--alias": Flag("alias", "value", "NAME", "best, staging, or a name of your own"),
        "--approval": Flag("approval", "switch", "", "pause the flow run until a person approves"),
        "--remove": Flag("remove", "switch", "", "take the alias away"),
    }

    run: str = Field(description="Folder of a training run.")
    alias: str = Field(
        pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]*$",
        max_length=100,
        examples=["best"],
        description="Name of the version: best, staging, or a name of your own.",
    )
    version: int | None = Field(
        None, ge=0, description="Version to name; null: the newest, or for best that of the highest evaluation."
    )
    approval: bool = Field(False, description="Pause the flow run until a person approves (docs/automations.md).")
    approval_hours: float = Field(APPROVAL_HOURS, gt=0, le=720, description="Hours to wait for that person.")
    remove: bool = Field(False, description="Take the alias away; retention may then remove its version.")

    @model_validator(mode="after")
    def _one_act(self) -> Self:
        if self.remove and self.version is not None:
            raise ValueError("version: remove takes the alias away from the version that has it; leave version out")
        return self

    @property
    def run_dir(self) -> Path:
        """Folder of the run."""
        return resolve_path(self.run)

    @property
    def run_id(self) -> str:
        """Name of the flow run."""
        return f"{self.run_dir.name}@{self.alias}"

    def plan(self) -> str:
        """Describe in a sentence what this configuration would do."""
        if self.remove:
            return f"would take the alias {self.alias} away from {self.run_dir}"
        chosen = "a version" if self.version is None else f"version {self.version}"
        asked = ", once a person approves" if self.approval else ""
        return f"would give the alias {self.alias} to {chosen} of {self.run_dir}{asked}"
