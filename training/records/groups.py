"""Groups of episodes: the specification for a worker, and the committed record."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

from pydantic import Field, model_validator

from envs.types import Cost, Memory, MemoryChange, Record, StopReason, Trajectory, WebTask
from training.ledger.paths import phase_of


class GroupSpec(Record):
    """Specification of the episodes of one task that are run together.

    In training all share one page seed; an evaluation gives each its own.
    """

    group_id: str
    """Id of the group, as ``i000012-g0003``: the phase (iteration or evaluated version), then the
    group's number."""
    task: WebTask
    seeds: tuple[int, ...] = Field(min_length=1)
    """Page seed of each episode."""
    enough: int = Field(0, ge=0)
    """Number of gradable episodes after which the others are abandoned; 0: all are played."""
    greedy: bool = False
    """Decode greedily (evaluation)."""
    memory: Memory = ()
    """Memory of the task's family, with which every episode begins (`tasks_lib.rollouts.sampling`);
    empty where families have no memory."""

    @property
    def phase(self) -> str:
        """Phase, as ``i000012`` (rollouts of an iteration) or ``e000012`` (evaluation)."""
        return phase_of(self.group_id)

    def episode_id(self, sample: int, attempt: int) -> str:
        """Return the episode's id, as ``i000012-g0003-s02-a0``."""
        return f"{self.group_id}-s{sample:02d}-a{attempt}"


class StepShape(NamedTuple):
    """Numbers of a step's ids, and its place among the episode's sequences."""

    prompt: int
    response: int
    sequence: int
    """First step of the step's sequence: each of a sequence's prompts begins with the one before it
    and its response, so that the last step holds all of them."""


class EpisodeSummary(Record):
    """Summary of an episode for sampling, batches and metrics."""

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
    """Number of responses by the form in which they were parsed as actions
    (`envs.actions.parsing`)."""
    action_errors: dict[str, int] = Field(default_factory=dict)
    """Number of actions that were not carried out, by error."""
    settled: dict[str, int] = Field(default_factory=dict)
    """Number of steps by the reason that ended the wait for the page
    (`envs.settle.SettleReason`)."""
    cut_turns: tuple[int, ...] = ()
    """Indices of the steps whose response was cut at its length limit."""
    unchanged_turns: tuple[int, ...] = ()
    """Indices of the steps that left the screenshot the same, byte for byte."""
    versions: tuple[tuple[int, int], ...] = ()
    """Oldest and newest policy version of each step's tokens; one pair if all steps have the
    same."""
    shapes: tuple[StepShape, ...]
    """Shape of each step, by which a trainer plans before it reads any ids."""
    cost: Cost = Cost()
    """Cost of its grading."""
    memory: tuple[MemoryChange, ...] = ()
    """Entries that it added to and removed from its family's memory."""
    sha256: str
    """sha256 of its trajectory's file."""

    @model_validator(mode="after")
    def _check_shapes(self) -> EpisodeSummary:
        if len(self.shapes) != self.steps:
            raise ValueError(f"it has {self.steps} steps and {len(self.shapes)} shapes")
        return self

    @classmethod
    def of(cls, trajectory: Trajectory, sha256: str = "") -> EpisodeSummary:
        """Make the summary of a stored episode whose file has that sha256."""
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
            shapes=shapes_of(trajectory),
            cost=trajectory.reward.cost,
            memory=trajectory.memory,
            sha256=sha256,
        )

    def step_versions(self, version: int) -> tuple[tuple[int, int], ...]:
        """Return the oldest and newest version of each step; ``version`` where none is recorded."""
        versions = self.versions or ((version, version),)
        return versions * self.steps if len(versions) == 1 else versions

    def staleness(self, version: int) -> int:
        """Return the versions between ``version`` and the oldest token.

        0 where none is recorded.
        """
        return version - min((oldest for oldest, _ in self.versions), default=version)


def versions_of(trajectory: Trajectory) -> tuple[tuple[int, int], ...]:
    """Return the oldest and newest version of each step's tokens.

    One pair if all steps have the same.
    """
    versions = tuple(
        (step.policy_version, max((span.version for span in step.version_spans), default=step.policy_version))
        for step in trajectory.steps
    )
    return versions[:1] if len(set(versions)) == 1 else versions


def shapes_of(trajectory: Trajectory) -> tuple[StepShape, ...]:
    """Return the shape of each step.

    A step continues the sequence of the step before if its prompt begins with that one's prompt and
    response, and its pictures with that one's.
    """
    shapes: list[StepShape] = []
    for index, step in enumerate(trajectory.steps):
        sequence = index
        if index:
            before = trajectory.steps[index - 1]
            ids, pictures = before.prompt_ids + before.response_ids, before.pictures
            if step.prompt_ids[: len(ids)] == ids and step.pictures[: len(pictures)] == pictures:
                sequence = shapes[-1].sequence
        shapes.append(StepShape(len(step.prompt_ids), len(step.response_ids), sequence))
    return tuple(shapes)


def unchanged_turns(trajectory: Trajectory) -> tuple[int, ...]:
    """Return the indices of the steps whose next screenshot equals their own.

    The screenshot after the last step is the episode's final one, if there is one.
    """
    screenshots = [*(step.screenshot for step in trajectory.steps), trajectory.final_screenshot]
    return tuple(index for index, (before, after) in enumerate(pairwise(screenshots)) if before == after)


class GroupRecord(Record):
    """The commit record of a group, written once after all its trajectories.

    It lists every episode, abstentions too.
    """

    group_id: str
    token: str
    """Token of the attempt at the group that won, a part of its trajectories' names. Empty for
    copies of another run's episodes."""
    task_id: str
    kind: str
    policy_version: int
    episodes: tuple[EpisodeSummary, ...] = Field(min_length=1)

    @property
    def phase(self) -> str:
        """Phase, as ``i000012`` (rollouts of an iteration) or ``e000012`` (evaluation)."""
        return phase_of(self.group_id)

    @property
    def usable(self) -> tuple[EpisodeSummary, ...]:
        """The episodes with a reward."""
        return tuple(episode for episode in self.episodes if episode.score is not None)

    @property
    def mean(self) -> float | None:
        """Mean reward; ``None`` if every episode abstained."""
        scores = [episode.score for episode in self.usable if episode.score is not None]
        return sum(scores) / len(scores) if scores else None

    @property
    def abstentions(self) -> int:
        """Number of episodes that abstained."""
        return len(self.episodes) - len(self.usable)
