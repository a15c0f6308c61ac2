"""The plain types that every part of Rollwright speaks, and its one exception tree.

Nothing here does I/O or imports a browser, torch or Prefect; it is the only module that ``envs`` and ``training`` share.
The words follow docs/concepts.md: a *task* is attempted in *episodes*, the record of an episode is a *trajectory* of *steps*, the K
episodes of one task and seed form a *group*, and an episode with no usable reward is an *abstention*.

Errors::

    RollwrightError
    ├── ConfigError      a parameter, preset or flag
    ├── TaskError        a task file or row
    ├── BrowserError     Chromium, its connection or a page (retried, never a reward)
    ├── SiteError        a site that cannot be served or reset
    ├── JudgeError       a reward that could not be computed
    ├── PolicyError      a checkpoint or an inference engine
    ├── TrainingError    the trainer process
    └── StorageError     the run's folder, journal or blobs
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

TRAJECTORY_SCHEMA = 1
"""Version of the stored trajectory; a reader refuses any other."""


class RollwrightError(Exception):
    """Base of all errors that Rollwright raises on purpose. The message names the thing, what was expected and the fix."""


class ConfigError(RollwrightError):
    """A parameter, preset or flag is unknown or out of range."""


class TaskError(RollwrightError):
    """A task file or row is malformed."""


class BrowserError(RollwrightError):
    """Chromium, its connection or a page failed. The episode is an abstention and is retried; it never becomes a reward."""


class SiteError(RollwrightError):
    """A site cannot be served, reset or reached."""


class JudgeError(RollwrightError):
    """A reward could not be computed; the episode is an abstention."""


class PolicyError(RollwrightError):
    """A checkpoint or an inference engine cannot do what was asked."""


class TrainingError(RollwrightError):
    """The trainer process failed or refused a batch."""


class StorageError(RollwrightError):
    """The run's folder, journal or a blob is missing, torn or of another version."""


class Record(BaseModel):
    """Base of stored values: immutable, and unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


# ---------------------------------------------------------------------------------------------------------------- tasks


class Split(StrEnum):
    """Which seeds of a task may be used for what. The ranges of one task never overlap."""

    TRAIN = "train"
    """Rolled out for reinforcement learning."""
    HELD_OUT = "held_out"
    """Evaluation only: never trained on, never used to choose anything."""
    VALIDATION = "validation"
    """For tuning and choosing; never trained on, never reported."""
    DEMO = "demo"
    """Scripted demonstrations for the warm start."""


class SeedRange(Record):
    """Half-open range of page seeds, ``start <= seed < stop``."""

    start: int = Field(ge=0)
    stop: int = Field(gt=0)

    def __len__(self) -> int:
        return self.stop - self.start


class WebTask(Record):
    """One instruction (or seeded family of them) on a site, with its difficulty, horizon and seeds."""

    task_id: str
    """Unique, stable: ``<site>/<kind>``."""
    site: str
    """Name of the site that serves it, e.g. ``miniwob``."""
    kind: str
    """Family for reports and sampling, e.g. ``click-button``."""
    path: str
    """Path of the start page on the site."""
    instruction: str | None = None
    """What to do; ``None`` when the page itself gives it at reset (MiniWoB)."""
    difficulty: int = Field(ge=1)
    """Number of facts that must hold at the end."""
    horizon: int = Field(ge=1)
    """Most steps of an episode."""
    seeds: dict[Split, SeedRange]
    """Page seeds by split."""
    needs_reading: bool = False
    """The answer depends on matching the instruction's words to an element (reported apart)."""


# ---------------------------------------------------------------------------------------------------- observation, action


class Element(Record):
    """One interactive element that the policy may name, in reading order."""

    index: int = Field(ge=1)
    """Number in this observation, from 1."""
    tag: str
    """Kind shown to the policy: button, link, input, password, textarea, checkbox, radio, select, option, text…"""
    text: str
    """Visible label, shortened."""
    value: str = ""
    """Current value of a field, shortened."""
    checked: bool = False
    """A checkbox or radio is on; a tab or option is selected."""
    focused: bool = False
    """The element has the keyboard focus."""
    box: tuple[float, float, float, float]
    """x, y, width, height in CSS pixels of the viewport."""


class Observation(Record):
    """What the policy sees before a step. The screenshot travels beside it as JPEG bytes, never inside."""

    instruction: str
    elements: tuple[Element, ...]
    url: str
    viewport: tuple[int, int]
    """width, height in CSS pixels; the screenshot has the same size."""
    error: str | None = None
    """Why the previous action had no effect, with a hint; ``None`` when it was carried out."""


class Click(Record):
    """Press and release the mouse on an element."""

    type: Literal["click"] = "click"
    element: int


class Type(Record):
    """Click a field, empty it and type the text."""

    type: Literal["type"] = "type"
    element: int
    text: str


class Select(Record):
    """Choose an option of a drop-down list by its visible label."""

    type: Literal["select"] = "select"
    element: int
    text: str


class Invalid(Record):
    """What the policy wrote is no action. The page is not touched; the reason goes into the next observation."""

    type: Literal["invalid"] = "invalid"
    reason: str


Action = Annotated[Click | Type | Select | Invalid, Field(discriminator="type")]


# ---------------------------------------------------------------------------------------------------------------- rewards


class RewardPart(Record):
    """One part of a reward with its evidence."""

    name: str
    value: float | None
    """In [0, 1]; ``None`` when the part is not available (left out of the mean, never zero)."""
    weight: float = Field(gt=0)
    evidence: str
    """What was seen that gives this value."""


class RewardBundle(Record):
    """All parts of an episode's reward, and what they come to.

    ``score`` is ``sum(w_i v_i) / sum(w_i)`` over the available parts; ``passed`` is ``score >= threshold``. With no available part,
    or a cause given by the episode, the bundle *abstains*: ``score`` is ``None`` and the episode is never trained on.
    """

    parts: tuple[RewardPart, ...] = ()
    score: float | None
    passed: bool
    abstained: str | None = None
    """Cause of the abstention; ``None`` when there is a usable reward."""


# ------------------------------------------------------------------------------------------------------------- trajectories


class StopReason(StrEnum):
    """Why an episode ended; appears as it is in the metrics."""

    DONE = "done"
    """The page declared the end (success or failure)."""
    HORIZON = "horizon"
    """The step limit was reached."""
    INVALID_ACTION = "invalid_action"
    """The policy's output was no action and the task does not go on after one."""
    BROWSER_ERROR = "browser_error"
    """Chromium or the page failed: an abstention."""
    DEADLINE = "deadline"
    """The episode's wall-clock limit passed: an abstention."""


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
    """The user turn's text as rendered (the image's place is implicit: first)."""
    prompt_ids: tuple[int, ...]
    """Token ids of the whole prompt, image placeholders expanded."""
    response: str
    response_ids: tuple[int, ...]
    """Exactly the sampled ids, end-of-turn included."""
    logprobs: tuple[float, ...]
    """log pi_behaviour of each response id, under the temperature and token bans of sampling."""
    policy_version: int
    """Version that generated every token of this response."""
    action: Action
    point: tuple[float, float] | None = None
    """Where the mouse went, in CSS pixels."""
    seconds: StepSeconds = StepSeconds()


class Trajectory(Record):
    """The record of one episode."""

    schema_version: int = TRAJECTORY_SCHEMA
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
    stop_reason: StopReason
    reward: RewardBundle
    page_facts: dict[str, float | bool | str] = {}
    """Raw programmatic facts from the page (MiniWoB: raw_reward, done, reason)."""
    error: str | None = None
    """The failure's message for an abstention."""
    seconds: float = 0.0
    """Wall seconds from reset to reward."""
