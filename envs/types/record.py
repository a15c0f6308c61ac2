"""The base of all stored values."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """Base of stored values: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
