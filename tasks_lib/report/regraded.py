"""Compares rewards before and after a regrading, by kind and by episode.

It reads rewards; the rest are pure functions.

A regrading that was stopped shows what it has graded. Unreadable rewards are one problem of their
regrading, and the others still show.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.types import Cost, RewardBundle, RewardPart, StorageError
from tasks_lib.config.differences import NONE, differences
from tasks_lib.folder.regraded import Regraded, RegradingLog, RegradingStart, read_log, read_regraded
from tasks_lib.report.data import RunData, describe_phase
from tasks_lib.report.evidence import cut_text
from tasks_lib.report.grading import plain_cause
from training.ledger.store import RunStore

SAME = "as before"
CHANGES = ("passes no more", "passes now", "reward now", "no reward now", "other score", "other parts", SAME)
"""Changes of a reward, as the page shows them, the most important first."""
MAX_KINDS = 40
"""Maximum rows of a table by kind, those with the most changes first."""
MAX_EPISODES = 40
"""Maximum rows of a table of changed episodes."""
MAX_CAUSES = 10
MAX_DECIDED = 4
"""Maximum number of parts that are named as the cause of a change."""
SETTINGS = {"judge": "rollout.judge", "rewards": "rewards", "tasks": "tasks"}
"""Settings of a regrading, and their place in a run's configuration."""


@dataclass(frozen=True, slots=True)
class Grade:
    """Result of a reward, without its parts."""

    score: float | None
    passed: bool
    abstained: str | None

    @classmethod
    def of(cls, reward: RewardBundle) -> Grade:
        return cls(reward.score, reward.passed, reward.abstained)

    @property
    def outcome(self) -> str:
        """``success``, ``failure`` or ``abstained``."""
        return "abstained" if self.score is None else "success" if self.passed else "failure"


@dataclass(frozen=True, slots=True)
class GradedEpisode:
    """An episode's first grade, and a later one."""

    episode_id: str
    kind: str
    where: str
    before: Grade
    after: Grade
    change: str
    """The change, one of ``CHANGES``."""


@dataclass(frozen=True, slots=True)
class GradeTotals:
    """Totals of all first grades, or of all later grades, of a regrading."""

    rewards: int
    passed: int
    mean: float | None
    abstained: int

    @classmethod
    def of(cls, grades: Iterable[Grade]) -> GradeTotals:
        every = list(grades)
        scores = [grade.score for grade in every if grade.score is not None]
        mean = sum(scores) / len(scores) if scores else None
        return cls(len(scores), sum(grade.passed for grade in every), mean, len(every) - len(scores))


@dataclass(frozen=True, slots=True)
class KindGrades:
    """The episodes of one kind."""

    kind: str
    before: GradeTotals
    after: GradeTotals
    episodes: int
    changed: int


@dataclass(slots=True)
class RegradingData:
    """One regrading: ``<run>/regraded/<name>``."""

    name: str
    store: RunStore
    starts: tuple[RegradingStart, ...]
    started_at: float
    """Time of its last start in seconds since the epoch. Without a recorded start it is its
    folder's last change."""
    episodes: list[GradedEpisode] = field(default_factory=list)
    """Graded episodes in the order of their ids."""
    cost: Cost = field(default_factory=Cost)
    rubrics: int = 0
    """Number of episodes that were first graded by another rubric."""

    @property
    def planned(self) -> int:
        """Number of episodes it was to grade, as far as it is known."""
        return max([len(self.episodes), *(start.episodes for start in self.starts)])

    @property
    def unfinished(self) -> bool:
        """True while it goes on, or if it was stopped."""
        return bool(self.starts) and self.starts[-1].ended is None

    @property
    def when(self) -> str:
        """Time of its last start, as text."""
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(self.started_at))

    @property
    def mixed(self) -> bool:
        """True if an earlier start had other settings, so that rewards are not all comparable."""
        return any(start.settings != self.starts[-1].settings for start in self.starts)

    @property
    def before(self) -> GradeTotals:
        return GradeTotals.of(episode.before for episode in self.episodes)

    @property
    def after(self) -> GradeTotals:
        return GradeTotals.of(episode.after for episode in self.episodes)

    @property
    def changes(self) -> list[tuple[str, int]]:
        """(change, number of episodes), in the order of ``CHANGES``."""
        counts = Counter(episode.change for episode in self.episodes)
        return [(name, counts[name]) for name in CHANGES if counts[name]]

    @property
    def kinds(self) -> list[KindGrades]:
        """Grades of each kind, the most changed first."""
        by_kind: dict[str, list[GradedEpisode]] = {}
        for episode in self.episodes:
            by_kind.setdefault(episode.kind, []).append(episode)
        rows = [
            KindGrades(
                kind=kind,
                before=GradeTotals.of(episode.before for episode in rows),
                after=GradeTotals.of(episode.after for episode in rows),
                episodes=len(rows),
                changed=sum(episode.change != SAME for episode in rows),
            )
            for kind, rows in by_kind.items()
        ]
        return sorted(rows, key=lambda row: (-row.changed, row.kind))

    @property
    def causes(self) -> list[tuple[str, int]]:
        """(cause, episodes without a reward now), the most frequent first."""
        counts = Counter(
            plain_cause(episode.after.abstained) for episode in self.episodes if episode.after.abstained is not None
        )
        return counts.most_common(MAX_CAUSES)

    @property
    def changed(self) -> list[GradedEpisode]:
        """Changed episodes, one of each change in turn, so that the first few show every change."""
        seen: Counter[str] = Counter()
        order = []
        for episode in self.episodes:
            if episode.change != SAME:
                seen[episode.change] += 1
                order.append((seen[episode.change], CHANGES.index(episode.change), episode))
        return [episode for *_, episode in sorted(order, key=lambda entry: entry[:2])]

    @property
    def rows(self) -> list[tuple[GradedEpisode, list[str]]]:
        """The first of the changed episodes, each with the causes of its change, sorted by
        change."""
        shown = sorted(
            self.changed[:MAX_EPISODES], key=lambda episode: (CHANGES.index(episode.change), episode.episode_id)
        )
        rewards = ((episode, self.read(episode.episode_id)) for episode in shown)
        return [(episode, [] if regraded is None else describe_change(regraded)) for episode, regraded in rewards]

    def read(self, episode_id: str) -> Regraded | None:
        """Return the stored reward. ``None`` if the episode was not graded here, or cannot be read.

        `read_regradings` has reported the unreadable ones.
        """
        path = self.store.regraded_path(self.name, episode_id)
        try:
            return read_regraded(path)
        except StorageError:
            return None

    @property
    def judge(self) -> str:
        """The judge of its last start: model, style and address."""
        judge = self.starts[-1].settings.get("judge") if self.starts else None
        if not isinstance(judge, dict):
            return ""
        models = judge.get("models")
        names = [str(name) for name in models.values() if name] if isinstance(models, dict) else []
        return f"{', '.join(dict.fromkeys(names))} ({judge.get('style')}) at {judge.get('base_url')}"

    def other_settings(self, config: dict[str, Any]) -> list[tuple[str, str, str]]:
        """Return the settings that differ from the run's: (dotted name, value now, value in the
        run).

        Settings that only one of them has are left out.
        """
        if not self.starts:
            return []
        rows: list[tuple[str, str, str]] = []
        for name, place_in_run in SETTINGS.items():
            now, then = self.starts[-1].settings.get(name), _inside(config, place_in_run)
            changes = differences(now, then, name) if now and then else ()
            rows += [row for row in changes if NONE not in row]
        return rows


def classify_change(before: RewardBundle, after: RewardBundle) -> str:
    """Classify the change of a reward, as one of ``CHANGES``."""
    if before.score is None or after.score is None:
        return SAME if before.score == after.score else "reward now" if before.score is None else "no reward now"
    if before.passed != after.passed:
        return "passes now" if after.passed else "passes no more"
    if abs(before.score - after.score) > 1e-9:
        return "other score"
    return SAME if _available_values(before) == _available_values(after) else "other parts"


def describe_change(regraded: Regraded) -> list[str]:
    """Explain the change of a reward.

    The lines name the parts that differ, with their evidence; else the weights; else other known
    causes.
    """
    first, known = {part.name: part for part in regraded.before.parts}, _available_values(regraded.before)
    lines = [] if regraded.reward.abstained is None else [f"no reward: {cut_text(regraded.reward.abstained, 300)}"]
    values = [
        f"{part.name} {_value(first.get(part.name))} → {_value(part)}: {cut_text(part.evidence, 200)}"
        for part in regraded.reward.parts
        if known.get(part.name) != part.value
    ]
    gone = known.keys() - {part.name for part in regraded.reward.parts}
    values += [f"{name} {_value(first[name])} → no part" for name in sorted(gone)]
    lines += values[:MAX_DECIDED]
    if len(values) > MAX_DECIDED:
        lines.append(f"and {len(values) - MAX_DECIDED} more parts")
    if lines:
        return lines
    weights = [
        f"{part.name} weighs {part.weight:.3g}, not {first[part.name].weight:.3g}"
        for part in regraded.reward.parts
        if part.name in first and part.weight != first[part.name].weight
    ]
    return weights[:MAX_DECIDED] or [*regraded.reward.failed[:MAX_DECIDED]] or ["another rubric's threshold"]


def read_regradings(run: RunData, store: RunStore) -> list[RegradingData]:
    """Read all regradings of a run that have begun, the newest first.

    Messages about unreadable files are added to ``run.problems``.
    """
    where = {
        member.episode_id: (group.kind, describe_phase(group.phase, group.policy_version))
        for group in run.groups
        for member in group.episodes
    }
    regradings = []
    for folder in sorted((store.root / "regraded").glob("*/")):
        regrading = _read(folder, store, where, run.problems)
        if regrading.starts or regrading.episodes:
            regradings.append(regrading)
    return sorted(regradings, key=lambda regrading: -regrading.started_at)


def _read(folder: Path, store: RunStore, where: dict[str, tuple[str, str]], problems: list[str]) -> RegradingData:
    try:
        log = read_log(store, folder.name)
    except StorageError as error:
        problems.append(str(error))
        log = RegradingLog()
    regrading = RegradingData(
        folder.name, store, log.starts, log.starts[-1].at if log.starts else folder.stat().st_mtime
    )
    torn: list[str] = []
    for path in sorted(folder.glob("*/*.json"), key=lambda path: path.stem):
        try:
            regraded = read_regraded(path)
        except StorageError as error:
            torn.append(str(error))
            continue
        kind, words = where.get(path.stem, (regraded.task_id, ""))
        first, now = regraded.before, regraded.reward
        regrading.episodes.append(
            GradedEpisode(path.stem, kind, words, Grade.of(first), Grade.of(now), classify_change(first, now))
        )
        regrading.cost += now.cost
        regrading.rubrics += first.rubric_hash != now.rubric_hash
    if torn:
        others = f" So are {len(torn) - 1} more of this regrading." if len(torn) > 1 else ""
        problems.append(f"{torn[0]}.{others}")
    return regrading


def _available_values(reward: RewardBundle) -> dict[str, float]:
    """Return the values of the available parts: one that is not available counts as missing."""
    return {part.name: part.value for part in reward.parts if part.value is not None}


def _value(part: RewardPart | None) -> str:
    return "no part" if part is None else "not available" if part.value is None else f"{part.value:.2f}"


def _inside(config: dict[str, Any], path: str) -> Any:
    value: Any = config
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
