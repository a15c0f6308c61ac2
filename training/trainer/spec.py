"""What a trainer process is told, once, in ``trainer/config.json``."""

from __future__ import annotations

from pydantic import Field, ValidationError

from envs.types import ConfigError
from training.config import AlgorithmConfig, Settings, TrainerConfig
from training.ledger.store import RunStore, read_json


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
    owner: str = Field("", description="HOST:PORT where the flow's process listens; when it is gone the trainer exits.")
    token: str = Field("", description="What a process of the trainer says to be let in there.")
    rendezvous: str = Field("", description="HOST:PORT at the first of several machines, where torchrun's agents meet.")


def read_spec(store: RunStore) -> TrainerSpec:
    """The spec in ``trainer/config.json``; ``ConfigError`` when it is not valid."""
    path = store.trainer_path / "config.json"
    try:
        return TrainerSpec.model_validate(read_json(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {error}") from error
