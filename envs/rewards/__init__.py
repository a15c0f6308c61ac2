"""Grades the record of an episode into a reward bundle.

Grading comes after the browser has been given back.

`bundle` does the arithmetic of parts, `rubric` grades by a rubric of facts, `facts` checks each
type of fact against `evidence`, `formats` reads rubrics of other systems, `compose` puts the parts
of all sources together and `grader` asks them. Nothing here drives a browser. Judges, server states
and sources of parts are protocols.
"""

from typing import TYPE_CHECKING

from envs.lazy import lazy_names
from envs.rewards.bundle import NO_PARTS, page_reward, score
from envs.rewards.compose import Component, PartSource, compose
from envs.rewards.evidence import DomElement, Download, GradingEvidence
from envs.rewards.facts import FactResult
from envs.rewards.formats import from_w8, from_webgym, load_rubric, read_rubric
from envs.rewards.rubric import combine, grade, grade_by_program
from envs.rewards.server_answers import record_answers

if TYPE_CHECKING:
    from envs.rewards.chromiumrl import DiffChange, DiffNode, Mode, StepDiff
    from envs.rewards.chromiumrl.capture import capture_page
    from envs.rewards.chromiumrl.step_diff import MAX_DIFF_TEXT
    from envs.rewards.design2code import Clip, Image
    from envs.rewards.design2code.source import DESIGNS
    from envs.rewards.functions import extra_sources, reward_source


__all__ = [
    "DESIGNS",
    "MAX_DIFF_TEXT",
    "NO_PARTS",
    "Clip",
    "Component",
    "DiffChange",
    "DiffNode",
    "DomElement",
    "Download",
    "FactResult",
    "GradingEvidence",
    "Image",
    "Mode",
    "PartSource",
    "StepDiff",
    "capture_page",
    "combine",
    "compose",
    "extra_sources",
    "from_w8",
    "from_webgym",
    "grade",
    "grade_by_program",
    "load_rubric",
    "page_reward",
    "read_rubric",
    "record_answers",
    "reward_source",
    "score",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.rewards.chromiumrl": ("DiffChange", "DiffNode", "Mode", "StepDiff"),
        "envs.rewards.chromiumrl.capture": ("capture_page",),
        "envs.rewards.chromiumrl.step_diff": ("MAX_DIFF_TEXT",),
        "envs.rewards.design2code": ("Clip", "Image"),
        "envs.rewards.design2code.source": ("DESIGNS",),
        "envs.rewards.functions": ("extra_sources", "reward_source"),
    },
)
