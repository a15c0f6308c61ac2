"""Tasks: one instruction on a site, with its seeds by split."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from envs.types.dates import PageDate
from envs.types.record import Record
from envs.types.rubrics import Rubric
from envs.types.webarena import WebArenaEval


class Split(StrEnum):
    """Use of a range of a task's seeds.

    The ranges of one task never overlap.
    """

    TRAIN = "train"
    """Rolled out for reinforcement learning."""
    HELD_OUT = "held_out"
    """Evaluation only: never trained on, never used to choose anything."""
    VALIDATION = "validation"
    """Tuning and selection: never trained on, never reported."""
    DEMO = "demo"
    """Scripted demonstrations for the warm start."""


class SeedRange(Record):
    """Half-open range of page seeds, ``start <= seed < stop``."""

    start: int = Field(ge=0)
    stop: int = Field(gt=0)

    def __len__(self) -> int:
        return self.stop - self.start


class WebTask(Record):
    """One instruction (or seeded family of them) on a site, with its difficulty, horizon and
    seeds."""

    task_id: str
    """Unique, stable: ``<site>/<kind>``."""
    site: str
    """Name of the site that serves it, e.g. ``miniwob``."""
    kind: str
    """Family for reports and sampling, e.g. ``click-button``."""
    path: str
    """Path of the start page on the site."""
    instruction: str | None = None
    """Instruction for the policy; ``None`` when the page itself gives it at reset (MiniWoB)."""
    images: tuple[str, ...] = ()
    """Pictures of the instruction, in its order: an address (``__HOMEPAGE__/…`` too), or a path
    below the run's folder of pictures (`envs.sites.pictures`)."""
    difficulty: int = Field(ge=1)
    """Number of facts that must hold at the end."""
    horizon: int = Field(ge=1)
    """Maximum number of steps of an episode."""
    seeds: dict[Split, SeedRange]
    """Page seeds by split."""
    reference: str = Field(default="", pattern=r"^(/.*)?$")
    """Path on the site of the page that the last one is compared with, node by node; empty for
    none."""
    files: str = ""
    """Folder of the files that its episodes may upload, relative to the folder of the task file;
    empty for none."""
    script: str = ""
    """Playwright functions that set the page up and validate its end (`envs.episodes.page_script`):
    ``module:Class`` or a module; empty for none."""
    date: PageDate = ""
    """Date of the page's clock when an episode begins (``2024-05-01``, ``2024-05-01T09:30Z``). It
    overrides the run's. Empty means the run's date, else the real time on live sites and
    `envs.settle.EPOCH_SECONDS` on all others."""
    needs_reading: bool = False
    """True if the answer depends on matching the instruction's words to an element (reported
    apart)."""
    rubric: Rubric | None = None
    """Rubric of the grading; ``None`` where the page itself gives the reward."""
    rubric_hash: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Hash of the frozen rubric; grading by another is refused. Empty if the rubric is not
    frozen."""
    evaluators: WebArenaEval | None = None
    """WebArena's evaluators, in place of a rubric. Placeholders of sites (``__GITLAB__``) are
    filled in where they are graded."""
    evaluators_hash: str = Field(default="", pattern=r"^([0-9a-f]{64})?$")
    """Hash of the evaluators when they were frozen, as ``rubric_hash``."""
