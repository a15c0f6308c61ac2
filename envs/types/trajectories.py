"""The record of an episode."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from envs.types.actions import Action
from envs.types.error_codes import ErrorCode
from envs.types.evidence import Recorded
from envs.types.memory import MemoryChange
from envs.types.observations import Observation
from envs.types.record import Record
from envs.types.rewards import RewardBundle
from envs.types.signals import EpisodeSignals, PageSignals

TRAJECTORY_SCHEMA = 2
"""Version of the stored trajectory. Version 1 had one picture and one policy version for each step; a newer one is refused."""


FinishReason = Literal["stop", "length", "context_overflow", "aborted"]
"""Why a model's turn ended: at its end token; at its length limit; before its first token, because the prompt leaves no room for that
many in the model's context; or because the engine gave it up."""


class StopReason(StrEnum):
    """Why an episode ended; appears as it is in the metrics."""

    DONE = "done"
    """The page declared the end (success or failure)."""
    ANSWER = "answer"
    """The policy gave its answer."""
    TERMINATED = "terminated"
    """The policy declared the end."""
    SUBMITTED = "submitted"
    """The policy handed in a page; it is the last step's action."""
    HORIZON = "horizon"
    """The step limit was reached."""
    REPETITION = "repetition"
    """The same action on the same page, again and again."""
    BLOCKED = "blocked"
    """The site shows a captcha or a bot wall: an abstention."""
    HTTP_ERROR = "http_error"
    """The site answered with a status of 500 or more: an abstention."""
    INVALID_ACTION = "invalid_action"
    """The policy's output was no action and the task does not go on after one."""
    CRASH = "crash"
    """The page's own process died (out of memory, a crash): an abstention."""
    BROWSER_ERROR = "browser_error"
    """Chromium or its connection failed: an abstention."""
    DEADLINE = "deadline"
    """The episode's wall-clock limit passed: an abstention."""
    ABANDONED = "abandoned"
    """Its group was given up (enough other episodes, or too old): an abstention."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The prompt leaves no room for a turn in the model's context: an abstention."""
    ENGINE_ERROR = "engine_error"
    """The inference engine failed for longer than it is waited for: an abstention."""


class ContextMessage(Record):
    """A message before the present one in a step's prompt."""

    role: Literal["user", "assistant"]
    text: str
    pictures: tuple[str, ...] = ()
    """Names of the blobs of its pictures, which come before the text."""


class TokenSpan(Record):
    """The tokens ``start`` to ``end - 1`` of a response are of one policy version."""

    version: int
    start: int
    end: int


class StepSeconds(Record):
    """Wall seconds of a step's parts, as one episode saw them (concurrent episodes overlap)."""

    observe: float = 0.0
    generate: float = 0.0
    act: float = 0.0


class Step(Record):
    """observation -> model turn -> action -> effect."""

    index: int = Field(ge=0)
    observation: Observation
    screenshot: str
    """sha256 of the JPEG blob that the policy saw."""
    prompt: str
    """The present user turn's text as rendered (the picture's place is implicit: first)."""
    context: tuple[ContextMessage, ...] = ()
    """The messages before it, oldest first."""
    cut_rounds: int = Field(0, ge=0)
    """Rounds that were left out because the prompt would have had too many tokens."""
    prompt_ids: tuple[int, ...]
    """Token ids of the whole prompt, image placeholders expanded."""
    response: str
    response_ids: tuple[int, ...]
    """Exactly the sampled ids, end-of-turn included."""
    logprobs: tuple[float, ...]
    """log pi_behaviour of each response id, under the temperature and token bans of sampling."""
    policy_version: int
    """Oldest version that generated a token of this response."""
    version_spans: tuple[TokenSpan, ...] = ()
    """Which version generated which tokens; empty where all are of ``policy_version``, and in older records."""
    finish_reason: FinishReason | None = None
    """Why the response ended; ``None`` in older records, and where no model gave it."""
    action: Action
    form: str = ""
    """How the response was read as an action (`envs.actions.parsing`)."""
    error: ErrorCode | None = None
    """Why the action was not carried out; the message is in the next observation."""
    settled: str = ""
    """Why the wait for the page after the action ended (`envs.settle.SettleReason`); empty where it was not waited for, and in older records."""
    signals: PageSignals | None = None
    """What the browser said of the page after the action, when it was asked."""
    dom_diff: str = ""
    """Name of the blob that says what the action changed in the page (`envs.rewards.chromiumrl.StepDiff`, JSON); empty if it was not asked for."""
    point: tuple[float, float] | None = None
    """Where the mouse went, in CSS pixels."""
    seconds: StepSeconds = StepSeconds()

    @property
    def pictures(self) -> tuple[str, ...]:
        """Names of the blobs of all pictures of its prompt, in order; the last one is the screenshot."""
        return (*(name for message in self.context for name in message.pictures), self.screenshot)


class Trajectory(Record):
    """The record of one episode."""

    schema_version: int = Field(TRAJECTORY_SCHEMA, ge=1, le=TRAJECTORY_SCHEMA)
    episode_id: str
    group_id: str
    task_id: str
    kind: str
    seed: int
    """Page seed; all episodes of a group share it."""
    sample: int
    """0..K-1: which member of the group."""
    attempt: int = 0
    """0 for the first try; counts up after abstentions."""
    policy_version: int
    steps: tuple[Step, ...]
    final: Observation | None = None
    """The page after the last action; ``None`` if it was not seen."""
    final_dom: str = ""
    """Name of the blob of the last page's nodes (`envs.rewards.chromiumrl.DomSnapshot`, JSON); empty if they were not asked for."""
    final_screenshot: str = ""
    """Name of the blob of the last page's picture; empty where no step was taken, or the page shows nothing at its end (MiniWoB)."""
    stop_reason: StopReason
    reward: RewardBundle
    judgement: str = ""
    """Name of the blob of what the LLM judge was asked and said (`envs.rewards.judge.Judgement`, JSON: calls, votes, costs); empty if it was not."""
    page_facts: dict[str, float | bool | str] = Field(default_factory=dict)
    """Raw programmatic facts from the page (MiniWoB: raw_reward, done, reason)."""
    signals: EpisodeSignals | None = None
    """The steps' signals taken together."""
    recorded: Recorded | None = None
    """What the task's grading asked to be read at the end; ``None`` if it asked for nothing."""
    answer: str = ""
    """What the policy answered, or the status it ended with."""
    memory: tuple[MemoryChange, ...] = ()
    """What the episode kept and forgot that was otherwise when it began, oldest first."""
    error: str | None = None
    """The failure's message for an abstention."""
    wall: str = ""
    """The wall that was there instead of the site: the name of an `envs.ends.BlockSign`, or ``judge`` if only the judge saw it."""
    seconds: float = 0.0
    """Wall seconds from reset to the end of the episode; its grading comes later."""

    @property
    def is_last_attempt(self) -> bool:
        """Whether the episode is not tried again: it has something to be graded, or another attempt would end like this one."""
        return self.error is None or bool(self.wall) or self.stop_reason in NOT_TRIED_AGAIN


NOT_TRIED_AGAIN = (StopReason.ABANDONED, StopReason.CONTEXT_OVERFLOW, StopReason.ENGINE_ERROR)
"""Abstentions that another attempt would not mend: the engine was waited for already."""
