"""The settings of pre-training. Imports no torch, so that a flow can hold them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from training.config import Settings


class Stage(Settings):
    """One stretch of training with its own optimiser, schedule and place in the curriculum."""

    steps: int = Field(ge=1, description="Optimiser steps that are taken.")
    schedule_steps: int = Field(
        ge=1, description="Steps that the learning rate and the phases are laid over; steps may stop before their end."
    )
    learning_rate: float = Field(gt=0, le=1, description="Peak learning rate (AdamW).")
    seed: int = Field(0, ge=0, description="Of the samples; the seed of the run is added.")
    warm_up: int = Field(100, ge=0, description="Steps over which the learning rate rises from zero.")
    phase_ends: tuple[float, float, float] = Field(
        (0.08, 0.35, 0.75), description="Shares of schedule_steps at which phases 0, 1 and 2 of the curriculum end."
    )

    @model_validator(mode="after")
    def _within(self) -> Stage:
        if self.steps > self.schedule_steps:
            raise ValueError(f"steps {self.steps} must not be above schedule_steps {self.schedule_steps}")
        return self


class Recipe(Settings):
    """How a checkpoint is pre-trained. The defaults made ``datasets/policies/reader``."""

    # The first stage was planned over 2000 steps and stopped by hand at 500; the second went on from there in the late phases. That is
    # how the shipped weights came about, so it is kept as it was; one uninterrupted schedule was never measured (docs/warm-start.md).
    stages: tuple[Stage, ...] = Field(
        (
            Stage(steps=500, schedule_steps=2000, learning_rate=2e-3),
            Stage(steps=420, schedule_steps=420, learning_rate=1.5e-3, seed=1, phase_ends=(0.0, 0.0, 0.4)),
        ),
        min_length=1,
        description="One after the other, each on the weights of the one before.",
    )
    prompt_weight: float = Field(0.1, ge=0, le=1, description="Loss weight of a task's own words; the answer has 1.")
    image_share: float = Field(0.3, ge=0, le=1, description="Share of the last phase's prompts that hold an image.")
    threads: int = Field(1, ge=1, le=256, description="CPU threads; more than one were not faster for this size.")

    held_out: int = Field(
        64, ge=1, le=10_000, description="Fresh samples of each skill that a finished stage is scored on."
    )

    @property
    def steps(self) -> int:
        """Optimiser steps in all."""
        return sum(stage.steps for stage in self.stages)


def stage_path(folder: Path, number: int) -> Path:
    """Where ``training.warm_start.pretrain`` leaves the checkpoint of stage ``number``, from 1; ``stage.json`` in it tells how it went."""
    return folder / f"stage-{number}"
