"""Specification of a set of generated tasks."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from envs.ends import Bucket
from envs.types import Record, SeedRange, Split

WORLDS = {
    Split.HELD_OUT: SeedRange(start=0, stop=10_000),
    Split.DEMO: SeedRange(start=100_000, stop=200_000),
    Split.TRAIN: SeedRange(start=200_000, stop=1_200_000),
    Split.VALIDATION: SeedRange(start=2_000_000, stop=2_010_000),
}
"""Seeds of worlds by split, as MiniWoB's pages have them.

A world belongs to one split, so no task of training is about a world of evaluation.
"""

Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class GeneratorSpec(Record):
    """A set of generated tasks: equal specs give equal tasks, on any number of processes.

    Example::

        for task in generate(GeneratorSpec(count=1_000)):
            ...
    """

    count: int = Field(default=1_000, ge=1, le=10_000_000, description="Tasks of the set.")
    seed: int = Field(default=0, ge=0, description="Selects the worlds.")
    sites: tuple[str, ...] = Field(default=(), description="Bundled sites; empty: all.")
    kinds: tuple[str, ...] = Field(default=(), description="Templates; empty: all.")
    buckets: tuple[Bucket, ...] = Field(default=(), description="Difficulties; empty: all.")
    splits: dict[Split, Share] = Field(
        default={Split.TRAIN: 0.9, Split.VALIDATION: 0.05, Split.HELD_OUT: 0.05},
        description="Shares of the worlds.",
    )
    per_world: int = Field(default=6, ge=1, le=1_000, description="Most tasks of a template in a world.")
