"""Costs of grading a run's rewards, and causes of missing rewards. Pure functions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from envs.types import Cost
from tasks_lib.folder.metrics import sum_by_name
from tasks_lib.report.data import RunData

MAX_CAUSES = 20
"""Maximum rows of the table of causes; the rest is one more row."""
MAX_WORDS = 140
"""Maximum characters of a cause."""
OTHERS = "other causes"


@dataclass(slots=True)
class GradingRow:
    """The grading of all episodes of training, or of evaluations."""

    phase: str
    episodes: int = 0
    """Number of episodes, including retried ones."""
    graded: int = 0
    abstained: int = 0
    asked: int = 0
    """Episodes for which a judge, a server or another source with a cost was asked."""
    cost: Cost = field(default_factory=Cost)


@dataclass(frozen=True, slots=True)
class GradingSummary:
    """Summary of all grading of a run."""

    rows: list[GradingRow]
    """One row for each phase that has episodes."""
    seconds: dict[str, float]
    """Seconds of the reward stages of training by activity, the longest first."""
    waiting: float
    """Total seconds that episodes waited for their turn."""
    timed_out: int


@dataclass(frozen=True, slots=True)
class CauseRow:
    """Episodes without a reward for one cause."""

    words: str
    stop: str
    """Stop reason of the episodes."""
    training: int
    evaluation: int


def grading(run: RunData) -> GradingSummary:
    """Return costs by phase from the groups' records, and the reward stages' times from the
    metrics."""
    rows = {"training": GradingRow("training"), "evaluation": GradingRow("evaluation")}
    for group in run.groups:
        row = rows["evaluation" if group.phase.startswith("e") else "training"]
        for member in group.episodes:
            row.episodes += 1
            row.graded += member.score is not None
            row.abstained += member.score is None
            row.asked += member.cost != Cost()
            row.cost += member.cost
    stages = [shard["reward"] for line in run.iterations for shard in line.pipelines if "reward" in shard]
    seconds = sum_by_name(stage.get("seconds", {}) for stage in stages)
    return GradingSummary(
        rows=[row for row in rows.values() if row.episodes],
        seconds=dict(sorted(seconds.items(), key=lambda item: -item[1])),
        waiting=sum(stage.get("waiting_seconds", 0.0) for stage in stages),
        timed_out=sum(stage.get("timed_out", 0) for stage in stages),
    )


def cause_rows(run: RunData) -> list[CauseRow]:
    """Return the causes of missing rewards, the most frequent first.

    Addresses and numbers in a cause do not make it a different one.
    """
    training, evaluation = run.count(
        lambda episode: (
            [] if episode.abstained is None else [(plain_cause(episode.abstained), episode.stop_reason.value)]
        )
    )
    keys = [key for key, _ in (training + evaluation).most_common()]
    rows = [CauseRow(*key, training[key], evaluation[key]) for key in keys[:MAX_CAUSES]]
    if rest := keys[MAX_CAUSES:]:
        rows.append(CauseRow(OTHERS, "", sum(training[key] for key in rest), sum(evaluation[key] for key in rest)))
    return rows


def plain_cause(text: str) -> str:
    """Return a cause without the details of single episodes, shortened.

    >>> plain_cause("http://shop.test/a?b=1 answered 503")
    '<address> answered 503'
    >>> plain_cause("not over after 300 s (context 8f3a9c12d0)")
    'not over after 300 s (context #)'
    """
    words = " ".join(text.split())
    words = re.sub(r"\b\w+://[^\s'\")]+", "<address>", words)
    words = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b|\b\d{4,}\b", "#", words, flags=re.IGNORECASE)
    return words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS].rstrip()}…"
