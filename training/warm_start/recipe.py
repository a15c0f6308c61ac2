"""Settings of pre-training. Imports no torch, so that a flow can hold them."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from training.settings import Settings


class PretrainStage(Settings):
    """One stage of training with its own optimiser, schedule and curriculum."""

    steps: int = Field(ge=1, examples=[1500], description="Optimiser steps.")
    learning_rate: float = Field(gt=0, le=1, examples=[2e-3], description="Peak learning rate (AdamW).")
    seed: int = Field(0, ge=0, description="Seed of the samples, added to the run's.")
    warm_up: int = Field(100, ge=0, description="Steps until the peak learning rate.")
    phase_ends: tuple[float, float, float] = Field(
        (0.1, 0.33, 0.55), description="Shares of the steps that end phases 0, 1 and 2."
    )


class Recipe(Settings):
    """Settings of a pre-training. The defaults made ``datasets/policies/reader``."""

    stages: tuple[PretrainStage, ...] = Field(
        (PretrainStage(steps=1500, learning_rate=2e-3),),
        min_length=1,
        description="Stages, trained one after the other on the same weights.",
    )
    prompt_weight: float = Field(0.1, ge=0, le=1, description="Loss weight of the task's words; the answer has 1.")
    image_share: float = Field(0.3, ge=0, le=1, description="Share of the last phase's prompts with an image.")
    threads: int = Field(1, ge=1, le=256, description="CPU threads; more were not faster at this size.")

    held_out: int = Field(64, ge=1, le=10_000, description="Fresh samples of each skill that score a stage.")

    @property
    def steps(self) -> int:
        """Number of optimiser steps of all stages."""
        return sum(stage.steps for stage in self.stages)


def stage_path(folder: Path, number: int) -> Path:
    """Return the checkpoint folder of stage ``number``, from 1.

    ``training.warm_start.pretrain`` writes it; its ``stage.json`` has settings and scores.
    """
    return folder / f"stage-{number}"
