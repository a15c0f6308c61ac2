"""From scored groups to the rows that one update is trained on. Pure: no files, no torch.

A *row* is one step of one episode. A batch names its rows by (episode, step) and never copies tokens or pixels; the trainer reads those
from the stored trajectories.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from envs.types import Record
from training.advantages import group_advantages, has_signal, step_advantages
from training.config import AlgorithmConfig
from training.groups import EpisodeSummary


class BatchRow(Record):
    """One step of one episode, as it enters the loss."""

    episode_id: str
    step: int = Field(ge=0)
    """Index into the trajectory's steps."""
    advantage: float
    """Of each response token of the step, the step normaliser included."""
    weight: float = Field(default=1.0, ge=0)
    """Factor on the row's loss. The token count that the loss is divided by is not weighted."""


class TrainingBatch(Record):
    """Everything that makes version ``version`` out of ``policy_version_before``, and where it came from."""

    version: int = Field(ge=1)
    policy_version_before: int = Field(ge=0)
    algorithm: Literal["grpo", "filtered_bc"]
    """Which loss the rows get (``AlgorithmConfig.name``)."""
    rows: tuple[BatchRow, ...]
    groups: int = Field(ge=0)
    """Groups that were looked at."""
    zero_variance_groups: int = Field(ge=0)
    """Of those, groups whose rewards were all equal (GRPO drops them; ``filtered_bc`` uses the successful ones)."""
    episodes: int = Field(ge=0)
    """Episodes that gave rows."""
    abstained_episodes: int = Field(default=0, ge=0)


def build_batch(version: int, groups: Iterable[Sequence[EpisodeSummary]], settings: AlgorithmConfig) -> TrainingBatch:
    """The batch that turns version ``version - 1`` into ``version``. A batch may come out without rows.

    Rows keep the order of the groups, their episodes and their steps, so that equal input gives equal bytes; the trainer shuffles.
    """
    rows: list[BatchRow] = []
    seen = zero_variance = used = abstained = 0
    for group in groups:
        scored = [episode for episode in group if episode.score is not None]
        seen += 1
        abstained += len(group) - len(scored)
        zero_variance += not has_signal([_score(episode) for episode in scored])
        chosen = _group_rows(scored, settings)
        used += len({row.episode_id for row in chosen})
        rows.extend(chosen)
    return TrainingBatch(
        version=version,
        policy_version_before=version - 1,
        algorithm=settings.name,
        rows=tuple(rows),
        groups=seen,
        zero_variance_groups=zero_variance,
        episodes=used,
        abstained_episodes=abstained,
    )


def _group_rows(scored: list[EpisodeSummary], settings: AlgorithmConfig) -> list[BatchRow]:
    if settings.name == "filtered_bc":
        return [
            BatchRow(episode_id=episode.episode_id, step=step, advantage=1.0)
            for episode in scored
            if episode.passed
            for step in range(episode.steps)
        ]
    scores = [_score(episode) for episode in scored]
    if not has_signal(scores):
        return []
    return [
        BatchRow(episode_id=episode.episode_id, step=step, advantage=advantage)
        for episode, of_episode in zip(scored, group_advantages(scores, settings.std_epsilon), strict=True)
        for step, advantage in enumerate(
            step_advantages(of_episode, episode.steps, settings.step_normalizer, settings.step_constant)
        )
    ]


def _score(episode: EpisodeSummary) -> float:
    if episode.score is None:
        raise ValueError(f"episode {episode.episode_id} abstained and has no score")
    return episode.score
