"""Results of a batch: one file for each episode, written last, in the episode's folder.

::

    runs/<batch>/config.json              configuration at its start; other values are refused
    runs/<batch>/summary.json             counts over all episodes (`tasks_lib.batch.summary`)
    runs/<batch>/tasks/<episode>/
        result.json                       success, score, steps, tokens: the episode is finished
        trace.json                        turns as the agent saw and said them, and the trajectory
        screenshots/000.jpg …             the page of each turn
        index.html                        the same, to look at
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, ValidationError

from envs.chat import Usage
from envs.types import Record, StopReason, StorageError, WebTask
from training.ledger.store import read_json, write_json

RESULT = "result.json"
TASKS = "tasks"
MAX_NAME = 100
"""Longest task id that is a folder's name as it is."""
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._]*(?:-[A-Za-z0-9._]+)*(?:/[A-Za-z0-9._]+(?:-[A-Za-z0-9._]+)*)*")
"""Task ids that differ after their slashes have become ``--``."""


@dataclass(slots=True)
class Spending:
    """Requests and tokens of one episode, over all its attempts."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    unmetered: int = 0
    """Answers whose tokens the endpoint does not say."""

    def add(self, usage: Usage | None) -> None:
        """Count the tokens of an answer."""
        if usage is None:
            self.unmetered += 1
            return
        self.prompt_tokens += usage.prompt
        self.cached_tokens += usage.cached
        self.answer_tokens += usage.answer


class TokenCount(Record):
    """Tokens of an episode, over all its attempts."""

    prompt: int = Field(0, ge=0)
    cached: int = Field(0, ge=0)
    """Tokens of the prompts that came from the endpoint's cache."""
    answer: int = Field(0, ge=0)


class EpisodeResult(Record):
    """Result of one episode: ``result.json``."""

    task_id: str
    kind: str
    site: str
    difficulty: int
    seed: int
    success: bool
    score: float | None
    """Reward within [-1, 1]; ``None`` if the episode abstained (``error`` says why)."""
    answer: str
    steps: int
    stop: StopReason
    error: str | None
    """Reason why there is no reward: the endpoint, the agent, a browser, a wall, a grader."""
    blocked: bool
    """True if the site showed a captcha or a bot wall."""
    invalid_actions: int
    """Turns that were no action."""
    refused_actions: int
    """Actions that could not be carried out."""
    attempts: int = Field(ge=1)
    failures: tuple[str, ...] = ()
    """Reasons why the attempts before the last one gave no reward."""
    requests: int = 0
    tokens: TokenCount = TokenCount()
    unmetered: int = 0
    """Answers whose tokens the endpoint does not say; they are in no count."""
    cost: float | None
    """Dollars, at the prices of the configuration; ``None`` if the tokens are not known."""
    judge_tokens: int = 0
    judge_dollars: float = 0.0
    seconds: float
    """Wall seconds of the last attempt, with its grading."""


@dataclass(frozen=True, slots=True)
class PlannedEpisode:
    """One task with one page seed."""

    task: WebTask
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder, another for each task and seed."""
        task_id = self.task.task_id
        plain = len(task_id) <= MAX_NAME and _PLAIN.fullmatch(task_id)
        digest = hashlib.sha256(task_id.encode()).hexdigest()[:12]
        shown = task_id.replace("/", "--") if plain else f"{re.sub(r'[^A-Za-z0-9.]+', '-', task_id)[:60]}--{digest}"
        return f"task_{shown}_seed{self.seed}"


def read_result(folder: Path) -> EpisodeResult | None:
    """Return the result in an episode's folder; ``None`` if it is missing or damaged."""
    try:
        return EpisodeResult.model_validate(read_json(folder / RESULT))
    except (StorageError, ValidationError):
        return None


def write_result(folder: Path, result: EpisodeResult) -> None:
    """Write the result, which finishes the episode."""
    write_json(folder / RESULT, result)
