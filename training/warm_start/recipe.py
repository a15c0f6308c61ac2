"""The settings of pre-training. Imports no torch, so that a flow can hold them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from training.config import Settings


class Stage(Settings):
    """One stretch of training with its own optimiser, schedule and place in the curriculum."""

    steps: int = Field(
        ge=1, examples=[1500], description="Optimiser steps; the schedule and the phases are laid over them."
    )
    learning_rate: float = Field(gt=0, le=1, examples=[2e-3], description="Peak learning rate (AdamW).")
    seed: int = Field(0, ge=0, description="Of the samples; the seed of the run is added.")
    warm_up: int = Field(100, ge=0, description="Steps over which the learning rate rises from zero.")
    phase_ends: tuple[float, float, float] = Field(
        (0.1, 0.33, 0.55), description="Shares of the steps at which phases 0, 1 and 2 of the curriculum end."
    )


class Recipe(Settings):
    """How a checkpoint is pre-trained. The defaults made ``datasets/policies/reader``."""

    stages: tuple[Stage, ...] = Field(
        (Stage(steps=1500, learning_rate=2e-3),),
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
