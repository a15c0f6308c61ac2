"""Groups of episodes: the specification for a worker, and the committed record."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from pydantic import Field

from envs.types import Cost, Memory, MemoryChange, Record, StopReason, Trajectory, WebTask
from training.ledger.store import phase_of


class GroupSpec(Record):
    """Episodes of one task to be run together.

    In training all share one page seed; an evaluation gives each its own.
    """

    group_id: str
    """``i000012-g0003``: phase (iteration or evaluated version), then the group."""
    task: WebTask
    seeds: tuple[int, ...] = Field(min_length=1)
    """Page seed of each episode."""
    enough: int = Field(0, ge=0)
    """Episodes that may be over, with something to be graded, before the others are given up; 0: all are played."""
    greedy: bool = False
    """Decode greedily (evaluation)."""
    memory: Memory = ()
    """What its task family remembers: every episode begins with this (`tasks_lib.rollouts.sampling`). Empty without a memory of families."""

    @property
    def phase(self) -> str:
        """``i000012`` (rollouts of an iteration) or ``e000012`` (evaluation of a version)."""
        return phase_of(self.group_id)

    def episode_id(self, sample: int, attempt: int) -> str:
        """``i000012-g0003-s02-a0``."""
        return f"{self.group_id}-s{sample:02d}-a{attempt}"


class EpisodeSummary(Record):
    """What sampling, batches and metrics need to know of an episode."""

    episode_id: str
    seed: int
    sample: int
    score: float | None
    """Reward in [-1, 1], below 0 by penalties only; ``None`` for an abstention."""
    passed: bool
    steps: int
    response_tokens: int
    stop_reason: StopReason
    abstained: str | None
    forms: dict[str, int] = Field(default_factory=dict)
    """How its responses were read as actions (`envs.actions.parsing`), counted."""
    action_errors: dict[str, int] = Field(default_factory=dict)
    """Why actions were not carried out, counted."""
    settled: dict[str, int] = Field(default_factory=dict)
    """Why the waits for its pages ended (`envs.settle.SettleReason`), counted over its steps; empty in older runs."""
    cut_turns: tuple[int, ...] = ()
    """Steps whose response was cut at its length limit; empty in older runs, which did not say."""
    unchanged_turns: tuple[int, ...] = ()
    """Steps after which the screenshot was the same, byte for byte; empty in older runs, which did not say."""
    versions: tuple[tuple[int, int], ...] = ()
    """Oldest and newest policy version of each step's tokens, one pair where they are equal; empty in older runs."""
    cost: Cost = Cost()
    """Of its grading."""
    memory: tuple[MemoryChange, ...] = ()
    """What it kept and forgot."""
    sha256: str = ""
    """Of its trajectory's file; empty in older runs."""

    @classmethod
    def of(cls, trajectory: Trajectory, sha256: str = "") -> EpisodeSummary:
        """The summary of a stored episode, whose file has that sha256."""
        return cls(
            episode_id=trajectory.episode_id,
            seed=trajectory.seed,
            sample=trajectory.sample,
            score=trajectory.reward.score,
            passed=trajectory.reward.passed,
            steps=len(trajectory.steps),
            response_tokens=sum(len(step.response_ids) for step in trajectory.steps),
            stop_reason=trajectory.stop_reason,
            abstained=trajectory.reward.abstained,
            forms=Counter(step.form for step in trajectory.steps if step.form),
            action_errors=Counter(str(step.error) for step in trajectory.steps if step.error),
            settled=Counter(step.settled for step in trajectory.steps if step.settled),
            cut_turns=tuple(step.index for step in trajectory.steps if step.finish_reason == "length"),
            unchanged_turns=unchanged_turns(trajectory),
            versions=versions_of(trajectory),
            cost=trajectory.reward.cost,
            memory=trajectory.memory,
            sha256=sha256,
        )

    def step_versions(self, version: int) -> tuple[tuple[int, int], ...]:
        """Oldest and newest version of each step; ``version`` where the record does not say."""
        found = self.versions or ((version, version),)
        return found * self.steps if len(found) == 1 else found

    def staleness(self, version: int) -> int:
        """Versions between ``version`` and the oldest token; 0 where the record does not say."""
        return version - min((oldest for oldest, _ in self.versions), default=version)


def versions_of(trajectory: Trajectory) -> tuple[tuple[int, int], ...]:
    """Oldest and newest version of each step's tokens, one pair where they are all equal."""
    found = tuple(
        (step.policy_version, max((span.version for span in step.version_spans), default=step.policy_version))
        for step in trajectory.steps
    )
    return found[:1] if len(set(found)) == 1 else found


def unchanged_turns(trajectory: Trajectory) -> tuple[int, ...]:
    """Steps whose next screenshot is the one that the policy had seen; the last step's is the episode's final one, where there is one."""
    seen = [*(step.screenshot for step in trajectory.steps), trajectory.final_screenshot]
    return tuple(index for index, (now, after) in enumerate(pairwise(seen)) if now == after)


class GroupRecord(Record):
    """The commit record of a group, written once after all its trajectories.

    Lists every episode, abstentions too.
    """

    group_id: str
    token: str = ""
    """Of the attempt at the group that won: part of the names of its trajectories' files. Empty in older runs, whose names have none."""
    task_id: str
    kind: str
    policy_version: int
    episodes: tuple[EpisodeSummary, ...]

    @property
    def phase(self) -> str:
        """``i000012`` (rollouts of an iteration) or ``e000012`` (evaluation of a version)."""
        return phase_of(self.group_id)

    @property
    def usable(self) -> tuple[EpisodeSummary, ...]:
        """The episodes with a reward."""
        return tuple(episode for episode in self.episodes if episode.score is not None)

    @property
    def mean(self) -> float | None:
        """Mean reward, ``None`` if every episode abstained."""
        scores = [episode.score for episode in self.usable if episode.score is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def abstentions(self) -> int:
        """How many attempts abstained."""
        return len(self.episodes) - len(self.usable)


def play_order(group_id: str) -> tuple[int, int, str]:
    """Sorts the groups of a phase as they were drawn: first its first draw (``i000003-g…``), then ``-r1``, …, ``-r10``; by number."""
    draw = re.search(r"-r(\d+)-", group_id)
    return int(draw[1]) if draw else 0, len(group_id), group_id
