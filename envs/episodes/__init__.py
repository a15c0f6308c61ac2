"""One episode, independent of who decides its actions: begin, end, evidence and grading.

`WebEpisode` plays one attempt of a task on a leased session. `ending` decides when an attempt ends,
`read_end` reads what its grading needs before the browser is given back, and `RecordGrader`
computes the reward from its record. The front door (`envs.open_env`) and the rollouts of a run use
the same parts. Nothing here knows a policy, a run or its store.
"""

from typing import TYPE_CHECKING

from envs.cancel_scope import CancelScope
from envs.episodes.episode import NO_TURN, NOT_GRADED, WebEpisode
from envs.episodes.grading import GRADING_DEADLINE, JUDGED_WALL, RecordGrader, part_sources
from envs.lazy import lazy_names

if TYPE_CHECKING:
    from envs.episodes.visual_evidence import PageEvidence, VisualRewardSources


__all__ = [
    "GRADING_DEADLINE",
    "JUDGED_WALL",
    "NOT_GRADED",
    "NO_TURN",
    "CancelScope",
    "PageEvidence",
    "RecordGrader",
    "VisualRewardSources",
    "WebEpisode",
    "part_sources",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.episodes.visual_evidence": ("VisualRewardSources", "PageEvidence"),
    },
)
