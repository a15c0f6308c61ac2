"""Rewards from browser signals: page performance, DOM similarity, step diffs.

Rewards from the browser itself: how well a page performs, how like its reference it is, and what a
step changed in it.

Pure functions of plain records; the only browser format known here is that of
`envs.observation.dom.Dom`, in `convert`.
"""

from envs.rewards.chromiumrl.convert import CAPTURED, snapshot_of_capture
from envs.rewards.chromiumrl.quality import MARKS, Quality, episode_quality
from envs.rewards.chromiumrl.records import DomNode, DomSnapshot
from envs.rewards.chromiumrl.render_diff import describe_diff
from envs.rewards.chromiumrl.similarity import DomSimilarity, dom_similarity
from envs.rewards.chromiumrl.step_diff import DiffChange, DiffNode, StepDiff, step_diff
from envs.rewards.chromiumrl.view import Mode

__all__ = [
    "CAPTURED",
    "MARKS",
    "DiffChange",
    "DiffNode",
    "DomNode",
    "DomSimilarity",
    "DomSnapshot",
    "Mode",
    "Quality",
    "StepDiff",
    "describe_diff",
    "dom_similarity",
    "episode_quality",
    "snapshot_of_capture",
    "step_diff",
]
