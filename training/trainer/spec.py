"""Settings of the trainer processes, written once to ``trainer/config.json``."""

from __future__ import annotations

from pydantic import Field, ValidationError

from envs.types import ConfigError
from training.config import AlgorithmConfig, TrainerConfig
from training.ledger.store import RunStore, read_json
from training.settings import Settings


class TrainerSpec(Settings):
    """Settings of one trainer process group.

    They are constant for a run, so that an update is the same before and after a restart.
    """

    template: str = Field("qwen2_vl", description="LLaMA-Factory chat template; it selects the multimodal plugin.")
    temperature: float = Field(
        1.0, gt=0, description="Temperature of sampling, under which all log-probabilities are taken."
    )
    banned_ids: tuple[int, ...] = Field((), description="Token ids that sampling never draws.")
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    total_updates: int = Field(
        ge=1, description="Updates of the run: the process ends after the last one, and schedules span them."
    )
    seed: int = Field(
        0, ge=0, description="Seed of the minibatch shuffles (with the version) and of LoRA's initialisation."
    )
    resume_from: int | None = Field(
        None,
        ge=0,
        description="Version to resume from, checked by the owner; later updates are done again.",
    )
    owner: str = Field("", description="HOST:PORT of the flow's process; when that is gone, the trainer exits.")
    token: str = Field("", description="Secret that a trainer process sends to the owner.")
    servers: str = Field("", description="Host of the servers that weights are broadcast to; empty: they are not.")
    rendezvous: str = Field("", description="HOST:PORT of torchrun's rendezvous on the first of several machines.")


def read_spec(store: RunStore) -> TrainerSpec:
    """Read ``trainer/config.json``; raise ``ConfigError`` if it is not valid."""
    path = store.trainer_path / "config.json"
    try:
        return TrainerSpec.model_validate(read_json(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
