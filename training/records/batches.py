"""Builds the training rows of one update from scored groups. Pure: no files, no torch.

A *row* is one step of one episode. A batch names its rows by (episode, step) and never copies
tokens or pixels; the trainer reads those from the stored trajectories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np
from pydantic import Field

from envs.types import Record
from training.algorithms.advantages import group_advantages, has_signal, named_advantages, step_advantages
from training.config import AlgorithmConfig
from training.ledger.paths import group_of
from training.records.groups import EpisodeSummary, StepShape
from training.records.states import EpisodeState, LeftOut

NO_STEP = LeftOut(state=EpisodeState.FAILED_FILTER, reason="it has no step")
ALL_CUT = LeftOut(
    state=EpisodeState.FAILED_FILTER, reason="all its turns were cut at their length limit (algorithm.length_cut)"
)
ALL_UNCHANGED = LeftOut(
    state=EpisodeState.FAILED_FILTER, reason="no step of it changed the screenshot (algorithm.skip_unchanged)"
)
NOT_DRAWN = LeftOut(state=EpisodeState.FAILED_FILTER, reason="none of its steps was drawn (algorithm.replay_steps)")

Versions = tuple[int, int]
"""Oldest and newest policy version among the tokens of a row."""


class BatchRow(Record):
    """One step of one episode, as it enters the loss."""

    episode_id: str
    step: int = Field(ge=0)
    """Index into the trajectory's steps."""
    advantage: float
    """Advantage of each response token of the step, already divided by the step normaliser."""
    shape: StepShape
    """Shape of the step."""


class TrainingBatch(Record):
    """Training data of one update, and its sources.

    The update makes ``version`` from ``policy_version_before``.
    """

    version: int = Field(ge=1)
    policy_version_before: int = Field(ge=0)
    algorithm: Literal["grpo", "filtered_bc"]
    """Loss of the rows (``AlgorithmConfig.name``)."""
    rows: tuple[BatchRow, ...]
    """Rows of the iteration's own episodes."""
    replayed: tuple[BatchRow, ...] = ()
    """Rows of episodes of earlier iterations, which were also in their own iteration's batch."""
    damaged_earlier: dict[str, str] = Field(default_factory=dict)
    """Episodes of earlier iterations that would be replayed but were lost since; each with what is
    lost."""
    group_ids: tuple[str, ...]
    """Ids of the groups that the batch was made from, in their order."""
    versions: tuple[Versions, ...]
    """Versions of each of ``rows``."""
    zero_variance_groups: int = Field(ge=0)
    """Number of groups whose rewards were all equal. GRPO drops them; ``filtered_bc`` uses their
    successful episodes."""
    episodes: int = Field(ge=0)
    """Number of episodes that gave rows."""
    abstained_episodes: int = Field(default=0, ge=0)
    left_out: dict[str, LeftOut] = Field(default_factory=dict)
    """Every episode with a reward that gave no rows, and why."""


def build_batch(
    version: int,
    groups: Iterable[Sequence[EpisodeSummary]],
    settings: AlgorithmConfig,
    damaged: Mapping[str, str] = MappingProxyType({}),
    earlier: Iterable[Sequence[EpisodeSummary]] = (),
    seed: int = 0,
) -> TrainingBatch:
    """Build the batch that turns version ``version - 1`` into ``version``.

    The batch may have no rows. Rows keep the order of the groups, their episodes and their steps,
    so that equal input gives equal bytes; the trainer shuffles them.

    Args:
        damaged: Episodes whose trajectory or screenshots are lost, with what is lost. They give no
            rows; the other episodes of their groups keep their advantages.
        earlier: Groups of earlier iterations that are trained on again (``replay_iterations``),
            oldest first.
        seed: Seed of the run, which with the version fixes the draw of ``replay_steps``.
    """
    current = _Rows(settings, damaged, version - 1)
    # ``stale_limit`` does not apply to replayed episodes: ``replay_iterations`` bounds their age.
    replay = _Rows(settings.model_copy(update={"stale_limit": None}), damaged, version - 1)
    for group in groups:
        current.add(group)
    for group in earlier:
        replay.add(group)
    every = [*replay.rows, *current.rows]
    drawn = draw_recent(every, settings.replay_steps, settings.replay_recency, (seed, version))
    rows = [row for row in drawn if row.episode_id not in replay.used]
    kept = {row.episode_id for row in rows}
    return TrainingBatch(
        version=version,
        policy_version_before=version - 1,
        algorithm=settings.name,
        rows=tuple(rows),
        replayed=tuple(row for row in drawn if row.episode_id in replay.used),
        damaged_earlier=replay.damaged,
        group_ids=tuple(current.group_ids),
        versions=tuple(current.versions[row.episode_id][row.step] for row in rows),
        zero_variance_groups=current.zero_variance,
        episodes=len(kept),
        abstained_episodes=current.abstained,
        left_out={**current.left_out, **{name: NOT_DRAWN for name in current.used if name not in kept}},
    )


class _Rows:
    """Collects the rows of groups, and why other episodes gave none."""

    def __init__(self, settings: AlgorithmConfig, damaged: Mapping[str, str], version: int) -> None:
        self.rows: list[BatchRow] = []
        self.used: dict[str, None] = {}
        """Ids of the episodes that gave rows, in order."""
        self.left_out: dict[str, LeftOut] = {}
        self.damaged: dict[str, str] = {}
        self.versions: dict[str, tuple[Versions, ...]] = {}
        """Versions of the steps of each used episode."""
        self.group_ids: list[str] = []
        self.zero_variance = self.abstained = 0
        self._settings, self._damaged, self._version = settings, damaged, version

    def add(self, group: Sequence[EpisodeSummary]) -> None:
        settings = self._settings
        scored = [episode for episode in group if episode.score is not None]
        self.group_ids += [group_of(episode.episode_id) for episode in group[:1]]
        self.abstained += len(group) - len(scored)
        self.zero_variance += not has_signal([_score(episode, settings) for episode in scored])
        for episode, advantages in zip(scored, _advantages(scored, settings), strict=True):
            name = episode.episode_id
            if isinstance(advantages, LeftOut):
                self.left_out[name] = advantages
            elif name in self._damaged:
                self.damaged[name] = self._damaged[name]
                self.left_out[name] = LeftOut(state=EpisodeState.DAMAGED, reason=self._damaged[name])
            elif isinstance(steps := _trained_steps(episode, settings), LeftOut):
                self.left_out[name] = steps
            elif (limit := settings.stale_limit) is not None and (lag := episode.staleness(self._version)) > limit:
                reason = f"its oldest token is {lag} versions old (algorithm.stale_limit={limit})"
                self.left_out[name] = LeftOut(state=EpisodeState.STALE, reason=reason)
            else:
                self.used[name] = None
                self.versions[name] = episode.step_versions(self._version)
                weight = settings.stale_decay ** episode.staleness(self._version)
                self.rows += [
                    BatchRow(
                        episode_id=name, step=step, advantage=weight * advantages[step], shape=episode.shapes[step]
                    )
                    for step in steps
                ]


def draw_recent(rows: Sequence[BatchRow], size: int, power: float, seed: tuple[int, int]) -> list[BatchRow]:
    """Draw at most ``size`` rows without replacement, kept in their order.

    The i-th oldest has the weight ``i ** power`` (WebGym).

    Args:
        size: Number of rows; 0: all.
        seed: Seed of the run, and version that the rows are for.
    """
    if not size or len(rows) <= size:
        return list(rows)
    weights = np.arange(1, len(rows) + 1, dtype=np.float64) ** power
    drawn = np.random.default_rng(seed).choice(len(rows), size, replace=False, p=weights / weights.sum())
    return [rows[index] for index in sorted(drawn)]


def _advantages(scored: list[EpisodeSummary], settings: AlgorithmConfig) -> list[list[float] | LeftOut]:
    """Return the advantages of each episode's steps, or why it gives no rows."""
    if settings.name == "filtered_bc":
        failed = LeftOut(state=EpisodeState.FAILED_FILTER, reason="filtered_bc trains on episodes that passed")
        return [[1.0] * episode.steps or NO_STEP if episode.passed else failed for episode in scored]
    if settings.advantages == "raft":
        failed = LeftOut(state=EpisodeState.FAILED_FILTER, reason="raft trains on episodes that passed")
        return [_per_step(1.0, episode, settings) if episode.passed else failed for episode in scored]
    scores = [_score(episode, settings) for episode in scored]
    if not has_signal(scores):
        reason = f"rewards of its group: {', '.join(f'{score:g}' for score in scores)}"
        return [LeftOut(state=EpisodeState.ZERO_VARIANCE, reason=reason)] * len(scored)
    if settings.advantages in ("", "grpo"):
        advantages = group_advantages(scores, settings.std_epsilon)
    else:
        advantages = named_advantages(settings.advantages, scores)
    return [_per_step(advantage, episode, settings) for episode, advantage in zip(scored, advantages, strict=True)]


def _per_step(advantage: float, episode: EpisodeSummary, settings: AlgorithmConfig) -> list[float] | LeftOut:
    return step_advantages(advantage, episode.steps, settings.step_normalizer, settings.step_constant) or NO_STEP


def _trained_steps(episode: EpisodeSummary, settings: AlgorithmConfig) -> list[int] | LeftOut:
    """Return the steps that are trained on, or why there is none.

    ``length_cut: mask`` and ``skip_unchanged`` leave steps out.
    """
    cut = episode.cut_turns if settings.length_cut == "mask" else ()
    uncut = [step for step in range(episode.steps) if step not in cut]
    unchanged = episode.unchanged_turns if settings.skip_unchanged else ()
    return [step for step in uncut if step not in unchanged] or (ALL_UNCHANGED if uncut else ALL_CUT)


def _score(episode: EpisodeSummary, settings: AlgorithmConfig) -> float:
    """Return the episode's score; under ``length_cut: penalise`` less a penalty for cut turns.

    The penalty is ``length_penalty`` times the share of cut turns.
    """
    if episode.score is None:
        raise ValueError(f"episode {episode.episode_id} abstained and has no score")
    if settings.length_cut != "penalise" or not episode.cut_turns:
        return episode.score
    return episode.score - settings.length_penalty * len(episode.cut_turns) / episode.steps
