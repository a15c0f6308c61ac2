"""The parts of configurations: tasks, rollouts, rewards, evaluations, cluster."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from envs.egress import AllowList
from envs.ends import HorizonPolicy
from envs.rewards import Component
from envs.rewards.chromiumrl import Mode
from envs.rewards.judge import JudgeConfig
from envs.sites import LiveOptions, split_address
from envs.tasks.samplers import SamplerConfig
from envs.types import ConfigError
from tasks_lib.config.reading import resolve_path
from training.config import Settings
from training.policy.prompt import MEMORY_BUDGET


class TasksConfig(Settings):
    """Which tasks are trained and evaluated."""

    file: str = Field(
        "datasets/tasks/miniwob.jsonl",
        description="Task file (JSONL, JSON, Parquet), folder or glob (tasks/difficulty/[1-3]/**/*.json); relative to the project, or absolute.",
    )
    kinds: list[str] = Field([], description="Task kinds to use; empty means all of the file.")
    sampler: SamplerConfig | None = Field(
        None,
        description="What draws the tasks (docs/tasks.md); a name alone (curriculum): with its defaults; null: by the success of kinds.",
    )
    exploration: float = Field(
        0.05, gt=0, le=1, description="Sampler success: a kind has the weight p(1-p) + this, p its success so far."
    )
    memory: float = Field(
        0.7,
        ge=0,
        lt=1,
        description="Decay of the running success of a kind (or task), per group; success and curriculum.",
    )
    blocklist_hours: float = Field(
        12.0,
        ge=0,
        le=1000,
        description="Hours that a site with a captcha or wall is not drawn from; doubled when it comes back, up to 16 times. 0: never left out.",
    )
    addresses: dict[str, str] = Field(
        {},
        description="Addresses of sites that we do not serve, by the site's name in the task (gitlab: http://127.0.0.1:8023); other hosts are "
        "https://HOST. Sites on this machine are reached only where they are named here.",
    )
    subdomains: bool = Field(False, description="Pages of live sites may reach the subdomains of their host too.")
    reach: list[str] = Field(
        [], description="Further origins that pages of live sites may reach, as https://*.cdn.example."
    )

    logins: dict[str, str] = Field(
        {},
        description="Files with a log-in's cookies by the live site's name (Playwright's storage state, absolute paths), read by the workers. "
        "shopping_site_admin: a file with username and password, for WebArena's checks that ask the shop (docs/judge.md).",
    )

    @property
    def live(self) -> LiveOptions:
        """What the workers are told of live sites."""
        return LiveOptions(dict(self.addresses), self.subdomains, tuple(self.reach), dict(self.logins))

    @model_validator(mode="after")
    def _addresses_can_be_reached(self) -> Self:
        try:
            for address in self.addresses.values():
                split_address(address)
            AllowList.of(*self.reach)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class DeviceConfig(Settings):
    """What pages are shown on, in place of each site's own viewport."""

    width: int = Field(ge=100, le=4096, examples=[390], description="Of the viewport, CSS pixels.")
    height: int = Field(ge=100, le=4096, examples=[844], description="Of the viewport, CSS pixels.")
    scale: float = Field(1.0, ge=0.25, le=4, description="Device pixels for each CSS pixel, in pages and screenshots.")
    mobile: bool = Field(False, description="Meta viewport, overlay scroll bars, touch events.")
    user_agent: str = Field("", description="Empty: the browser's own.")


class RolloutConfig(Settings):
    """How episodes are run on a worker."""

    groups_per_iteration: int = Field(16, ge=1, le=4096, description="Groups rolled out for one update.")
    concurrency: int = Field(16, ge=1, le=256, description="Episodes at once on one worker.")
    cohorts: int = Field(
        2,
        ge=1,
        le=16,
        description="Parts of the concurrent episodes: while the model answers one, the browser acts for the others.",
    )
    groups_per_task: int = Field(
        0, ge=0, le=4096, description="Groups in one Prefect task; 0 shares an iteration's groups over the workers."
    )
    step_deadline: float = Field(60.0, gt=0, le=600, description="Seconds one browser operation may take.")
    episode_deadline: float = Field(300.0, gt=0, le=7200, description="Seconds one episode may take.")
    wave_deadline: float = Field(2.0, gt=0, le=60, description="Seconds a generation batch waits for slow episodes.")
    attempts: int = Field(
        3, ge=1, le=10, description="Tries of an episode that abstains before the group goes on without."
    )
    spare: int = Field(
        0,
        ge=0,
        le=64,
        description="Episodes that a training group starts beyond its size: when as many as that are over, the others are given up (`abandoned`).",
    )
    horizon: HorizonPolicy | None = Field(
        None,
        description="Most steps of an episode: a number, by difficulty (bucketed: 10 for each three facts), or scheduled; null: the task's own.",
    )
    repeats: int = Field(
        3, ge=0, le=100, description="Equal steps in a row (picture, document, action) that end an episode; 0: never."
    )

    @field_validator("repeats")
    @classmethod
    def _not_one(cls, repeats: int) -> int:
        if repeats == 1:
            raise ValueError("one step is no repetition; allowed: 0, or 2 and more")
        return repeats

    stop_on_invalid: bool = Field(
        True, description="An output that is no action ends the episode (else: error shown, next step)."
    )
    browsers: int = Field(1, ge=1, le=64, description="Chromium processes of a worker that share its episodes.")
    browser_per_episode: bool = Field(False, description="A Chromium for each episode instead, ended with it.")
    device: DeviceConfig | None = Field(
        None, description="Device to emulate, such as a telephone (docs/web.md); null: each site's viewport."
    )
    page_seed: int | None = Field(
        None, ge=0, lt=2**32, description="Seeds the pages' Math.random and crypto.getRandomValues; null: random."
    )
    prewarm: int = Field(
        1,
        ge=0,
        le=64,
        description="Contexts ready beyond `concurrency`: an episode on a site that keeps state does not wait for its own (25 MB each).",
    )
    browser_address: str = Field(
        "", description="Debugging address of a browser to use instead of own ones (ws://… or http://host:port)."
    )
    judge: JudgeConfig | None = Field(
        None,
        description="Endpoint, models and limits of the LLM judge (docs/judge.md), for rubrics with facts that no program can check.",
    )

    @field_validator("judge")
    @classmethod
    def _one_cache(cls, judge: JudgeConfig | None) -> JudgeConfig | None:
        """A relative folder of answers is the project's: workers have working directories of their own."""
        if judge is None or judge.cache is None:
            return judge
        return judge.model_copy(update={"cache": resolve_path(str(judge.cache))})

    memory: Literal["off", "episode", "family"] = Field(
        "off",
        description="Notes that the policy may keep: none, for one episode, or for all later episodes of its kind (docs/memory.md).",
    )
    memory_budget: int = Field(
        MEMORY_BUDGET, ge=100, le=100_000, description="Characters of notes that a prompt shows, the newest first."
    )
    signals: bool = Field(False, description="Keep the browser's signals (paint, shifts, errors…) with each step.")
    designs: str = Field(
        "datasets/design2code", description="Folder of the pages of Design2Code tasks: N.html with its picture N.png."
    )
    dom_diffs: bool = Field(
        False,
        description="Keep what each step changed in the document, for the judge; and the last page's, for tasks with a reference.",
    )


class RewardConfig(Settings):
    """What a reward is made of, and how many episodes are graded at once."""

    concurrency: int = Field(16, ge=1, le=1024, description="Episodes graded at once on one worker.")
    deadline: float = Field(
        1200.0, gt=0, le=86_400, description="Seconds the grading of one episode may take; then it abstains."
    )
    task: float = Field(
        1.0, gt=0, le=1000, description="Weight of what was asked for: rubric, evaluators, or the page's own word."
    )
    visual: float = Field(
        1.0, ge=0, le=1000, description="Weight of how like its reference a page looks; 0: not asked."
    )
    clip: str = Field(
        "", description="Folder of CLIP weights that Design2Code compares pictures with; empty: SSIM, under that name."
    )
    semantic: float = Field(
        1.0, ge=0, le=1000, description="Weight of how like its reference's a document is; 0: not asked."
    )
    similarity: Mode = Field(
        "native",
        description="Arithmetic of that likeness: native, or chromiumrl, which keeps ChromiumRL's weak points (docs/visual-rewards.md).",
    )
    performance: float = Field(
        0.0, ge=0, le=1000, description="Weight of ChromiumRL's quality; needs rollout.signals. 0: not asked."
    )
    format: float = Field(
        0.0, ge=0, le=1000, description="Weight of the share of turns in a form that policies are asked for."
    )
    length: float = Field(0.0, ge=0, le=1, description="Penalty of an episode that uses its whole horizon.")
    action_errors: float = Field(0.0, ge=0, le=1, description="Penalty of an episode of which every action failed.")

    @field_validator("clip")
    @classmethod
    def _there(cls, clip: str) -> str:
        if clip and not (resolve_path(clip) / "config.json").is_file():
            raise ValueError(f"{resolve_path(clip)} is no Hugging Face checkpoint folder: it has no config.json")
        return clip

    def weights(self) -> dict[Component, float]:
        """By component."""
        return {component: getattr(self, component) for component in Component}


def check_measured(rewards: RewardConfig, rollout: RolloutConfig) -> None:
    """Raises ``ValueError`` if a part has a weight and could never be available."""
    if rewards.performance and not rollout.signals:
        raise ValueError(
            f"rewards.performance: {rewards.performance:g} needs rollout.signals=true: without signals no quality is measured"
        )


def split_told(split: str) -> str:
    """A split in words: ``held-out``, ``validation``."""
    return split.replace("_", "-")


class EvaluationConfig(Settings):
    """Greedy success on held-out seeds."""

    episodes: int = Field(200, ge=1, le=100_000, description="Episodes of one evaluation, shared over the kinds.")
    split: Literal["held_out", "validation"] = Field(
        "held_out", description="Whose page seeds are used; tune on validation, report on held_out."
    )
    every: int = Field(10, ge=1, le=100_000, description="Evaluate after this many updates (first and last always).")


class ClusterConfig(Settings):
    """Where rollouts run."""

    model_config = ConfigDict(json_schema_extra={"short": "an address alone (tcp://10.0.0.5:8786)"})

    address: str = Field("", description="Address of a Dask scheduler; empty starts a local cluster.")
    workers: int = Field(1, ge=1, le=1024, description="Workers of the local cluster.")

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, value: object) -> object:
        return {"address": value} if isinstance(value, str) and "://" in value else value
