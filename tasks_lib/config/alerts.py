"""Conditions of a run of which Prefect is sent an event."""

from __future__ import annotations

from pydantic import Field

from training.settings import Settings


class AlertConfig(Settings):
    """Conditions that are reported as Prefect events, once each time that they begin."""

    stalled_minutes: float = Field(
        30.0,
        ge=0,
        le=10_080,
        description="Minutes in which no episode, update or evaluation ended: rollwright.run.stalled. 0: off.",
    )
    disk_gb: float = Field(
        5.0, ge=0, le=1e6, description="Free GB of the run's disk below which rollwright.disk.low is sent. 0: off."
    )
    abstentions: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Share of a batch's episodes without a reward from which rollwright.abstentions.high is sent.",
    )
