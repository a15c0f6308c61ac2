"""Generates tasks over the bundled sites from templates.

Templates (`shop` and its siblings) draw requests from a world, and `generate` makes a set of
distinct tasks of them, by the hundred thousand. Each task comes with its solution (`moves`), which
`check` carries out on the site and grades. See ``docs/generated-tasks.md``.
"""

from typing import TYPE_CHECKING

from envs.bundled.generate.drafts import TaskDraft
from envs.bundled.generate.generate import TEMPLATES, World, draft_of, generate, generate_world, solution_of, worlds
from envs.bundled.generate.spec import WORLDS, GeneratorSpec
from envs.lazy import lazy_names

if TYPE_CHECKING:
    from envs.bundled.generate.check import Checker, NoStartPage, checker
    from envs.bundled.generate.splits import MAX_LOOKED_AT, empty_splits, split_counts, wanted_splits


__all__ = [
    "MAX_LOOKED_AT",
    "TEMPLATES",
    "WORLDS",
    "Checker",
    "GeneratorSpec",
    "NoStartPage",
    "TaskDraft",
    "World",
    "checker",
    "draft_of",
    "empty_splits",
    "generate",
    "generate_world",
    "solution_of",
    "split_counts",
    "wanted_splits",
    "worlds",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.bundled.generate.check": ("Checker", "NoStartPage", "checker"),
        "envs.bundled.generate.splits": ("MAX_LOOKED_AT", "empty_splits", "split_counts", "wanted_splits"),
    },
)
