"""What a trainer process is told, once, in ``trainer/config.json``."""

from __future__ import annotations

from pydantic import Field

from training.config import AlgorithmConfig, Settings, TrainerConfig


class TrainerSpec(Settings):
    """Settings of one trainer process group.

    Constant for a run, so that an update means the same before and after a restart.
    """

    template: str = Field("qwen2_vl", description="LLaMA-Factory chat template; gives the multimodal plugin.")
    temperature: float = Field(
        1.0, gt=0, description="Temperature of sampling, under which all log-probabilities are taken."
    )
    banned_ids: tuple[int, ...] = Field((), description="Token ids that sampling never draws.")
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    total_updates: int = Field(
        ge=1, description="Updates of the run: the process ends after that version, schedules stretch over it."
    )
    seed: int = Field(
        0, ge=0, description="Of the minibatch shuffles (together with the version) and of LoRA's initialisation."
    )
    resume_from: int | None = Field(
        None,
        ge=0,
        description="Version whose weights and state are gone on from, checked by the owner; later ones are done again.",
    )
    owner_pid: int | None = Field(None, description="The flow process; when it is gone the trainer exits.")
    owner_started: float | None = Field(None, description="Start time of the owner (psutil), against reuse of its pid.")
