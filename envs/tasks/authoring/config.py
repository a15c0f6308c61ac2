"""Configuration of the rubric writer."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from envs.rewards.judge import JudgeConfig
from envs.types import Record


class WriterConfig(Record):
    """The writer of rubrics."""

    endpoint: JudgeConfig = Field(
        examples=[{"base_url": "http://127.0.0.1:8000/v1", "models": {"default": "Qwen3-8B"}, "temperature": 0.7}],
        description="As of a judge; style and votes are not read.",
    )
    samples: int = Field(3, ge=1, le=15, description="Rubrics to compare (odd).")
    attempts: int = Field(3, ge=1, le=10, description="Tries of one sample.")
    agreement: float = Field(0.6, ge=0, le=1, description="Least share of facts that most samples have.")
    max_facts: int = Field(12, ge=1, le=50, description="Most facts of a rubric.")

    @model_validator(mode="after")
    def _samples_differ(self) -> Self:
        if self.samples % 2 == 0:
            raise ValueError(f"samples: {self.samples} is even; an odd number has a majority")
        if self.samples > 1 and self.endpoint.temperature == 0:
            raise ValueError(
                f"endpoint.temperature: {self.samples} samples at temperature 0 are one and the same; give 0.7, or ask for one sample"
            )
        return self
