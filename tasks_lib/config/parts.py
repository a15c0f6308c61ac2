"""Configuration parts: tasks, rollouts, rewards, evaluations, cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from envs.browser import BrowserOptions
from envs.ends import REPEATS, HorizonPolicy
from envs.episodes import GRADING_DEADLINE
from envs.prompts import MEMORY_BUDGET
from envs.rewards import Component, Mode
from envs.rewards.judge import JudgeConfig, endpoint_address, endpoint_key
from envs.sites import AllowList, LiveOptions, split_address
from envs.tasks.samplers import SamplerConfig
from envs.types import ConfigError
from tasks_lib.config.reading import resolve_path
from training.serving.config import LOOPBACK, ServingConfig
from training.settings import Settings


class TasksConfig(Settings):
    """Tasks to train and evaluate on."""

    file: str = Field(
        "datasets/tasks/miniwob.jsonl",
        description="Task file, folder or glob.",
    )
    kinds: list[str] = Field([], description="Task kinds; empty: all.")
    sampler: SamplerConfig | None = Field(
        None,
        description="Sampler (docs/sampling.md); null: success.",
    )
    exploration: float = Field(
        0.05, gt=0, le=1, description="success: weight p(1-p) + this, p the success of the kind."
    )
    memory: float = Field(
        0.7,
        ge=0,
        lt=1,
        description="success, curriculum: decay of the running success per group.",
    )
    blocklist_hours: float = Field(
        12.0,
        ge=0,
        le=1000,
        description="Hours without a site that showed a captcha or wall; 0: off.",
    )
    addresses: dict[str, str] = Field(
        {},
        description="Addresses by site name (gitlab: http://127.0.0.1:8023); needed for sites on this machine. Others: https://HOST.",
    )
    subdomains: bool = Field(False, description="Pages of live sites may reach subdomains.")
    reach: list[str] = Field([], description="Further origins for pages of live sites (https://*.cdn.example).")

    logins: dict[str, str] = Field(
        {},
        description="Log-ins by site name: Playwright's storage state (absolute path), or a script as module:function. "
        "shopping_site_admin: a file with username and password (docs/webarena.md).",
    )

    recipes: dict[str, str] = Field({}, description="Site recipes by host (shop.example: oscar).")
    pictures: str = Field("", description="Folder of pictures that tasks and checks name (docs/webarena.md).")

    @property
    def live(self) -> LiveOptions:
        """Options of live sites for the workers."""
        reach, logins = tuple(self.reach), dict(self.logins)
        return LiveOptions(
            dict(self.addresses), self.subdomains, reach, logins, pictures=self.pictures, recipes=dict(self.recipes)
        )

    @model_validator(mode="after")
    def _addresses_can_be_reached(self) -> Self:
        try:
            for address in self.addresses.values():
                split_address(address)
            AllowList.of(*self.reach)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class PlaySettings(Settings):
    """Groups of episodes, and how a worker plays them."""

    OLD_NAMES: ClassVar[Mapping[str, str]] = {"wave_deadline": "batch_deadline", "spare": "over_sampling"}

    groups_per_iteration: int = Field(16, ge=1, le=4096, description="Groups for one update.")
    concurrency: int = Field(16, ge=1, le=4096, description="Concurrent episodes on one worker.")
    deterministic: bool = Field(
        True,
        description="Fixed batches repeat a seed exactly; false: free slots and batches (docs/serving.md).",
    )
    cohorts: int = Field(
        2,
        ge=1,
        le=16,
        description="Parts of the concurrent episodes that use model and browser in turn.",
    )
    groups_per_task: int = Field(
        0,
        ge=0,
        le=4096,
        description="Groups of one Prefect task; 0: shared over the workers, in an asynchronous run what a worker plays at once, four at most.",
    )
    episode_deadline: float = Field(300.0, gt=0, le=7200, description="Seconds of an episode without engine failures.")
    batch_deadline: float = Field(
        2.0, gt=0, le=60, description="Seconds that an inference batch waits for slow episodes."
    )
    attempts: int = Field(3, ge=1, le=10, description="Tries of an episode that abstains.")
    over_sampling: int = Field(
        0,
        ge=0,
        le=64,
        description="Extra episodes of a training group; the last ones are abandoned.",
    )
    quorum: float = Field(
        1.0, gt=0, le=1, description="Share of a worker's episodes after which the last ones are given up; 1: none."
    )
    grace: float = Field(30.0, ge=0, le=7200, description="Seconds that those have after the quorum.")
    horizon: HorizonPolicy | None = Field(
        None,
        description="Most steps of an episode; null: the task's.",
    )
    repeats: int = Field(REPEATS, ge=0, le=100, description="Equal steps in a row that end an episode; 0: off.")

    @field_validator("repeats")
    @classmethod
    def _not_one(cls, repeats: int) -> int:
        if repeats == 1:
            raise ValueError("one step is no repetition; allowed: 0, or 2 and more")
        return repeats

    stop_on_invalid: bool = Field(
        True, description="An invalid action ends the episode; false: show the error and go on."
    )
    parser: str = Field(
        "default",
        examples=["my_parser:read"],
        description="Reader of the policy's text: default, module:function, or an installed one (docs/extending.md).",
    )
    prewarm: int = Field(
        1,
        ge=0,
        le=64,
        description="Browser contexts kept ready beyond `concurrency` (25 MB each).",
    )
    judge: JudgeConfig | None = Field(
        None,
        description="LLM judge (docs/rewards.md).",
    )

    @field_validator("judge")
    @classmethod
    def _one_cache(cls, judge: JudgeConfig | None) -> JudgeConfig | None:
        """Make the cache folder absolute: workers have working directories of their own."""
        if judge is None or judge.cache is None:
            return judge
        return judge.model_copy(update={"cache": resolve_path(str(judge.cache))})

    memory: Literal["off", "episode", "family"] = Field(
        "off",
        description="The policy's notes: none, for an episode, or for a task kind (docs/memory.md).",
    )
    memory_budget: int = Field(
        MEMORY_BUDGET, ge=100, le=100_000, description="Characters of notes in a prompt, newest first."
    )
    designs: str = Field("datasets/design2code", description="Folder of Design2Code pages: N.html, N.png.")
    dom_diffs: bool = Field(
        False,
        description="Record what each step changed in the document, and the last page of tasks with a reference.",
    )


class RolloutConfig(BrowserOptions, PlaySettings):
    """Rollout of episodes on a worker."""


class RewardConfig(Settings):
    """Parts of a reward, and the number of episodes graded at once."""

    concurrency: int = Field(16, ge=1, le=1024, description="Episodes graded at once on one worker.")
    deadline: float = Field(
        GRADING_DEADLINE, gt=0, le=86_400, description="Seconds to grade one episode; then it abstains."
    )
    function: str = Field(
        "",
        examples=["my_rewards:reached"],
        description="Reward in place of the task's own: module:function, or an installed one (docs/extending.md).",
    )
    extra: dict[str, float] = Field(
        {},
        examples=[{"my_rewards:polite": 0.2}],
        description="Weights of more components, by module:function or installed name (docs/extending.md).",
    )
    task: float = Field(1.0, gt=0, le=1000, description="Weight of the task's own reward.")
    visual: float = Field(1.0, ge=0, le=1000, description="Weight of visual similarity; 0: off.")
    clip: str = Field("", description="Folder of CLIP weights for Design2Code; empty: SSIM.")
    semantic: float = Field(1.0, ge=0, le=1000, description="Weight of DOM similarity; 0: off.")
    similarity: Mode = Field(
        "native",
        description="Arithmetic of DOM similarity (docs/dom-similarity.md).",
    )
    performance: float = Field(0.0, ge=0, le=1000, description="Weight of page performance; needs rollout.signals.")
    format: float = Field(0.0, ge=0, le=1000, description="Weight of the share of turns in a requested form.")
    length: float = Field(0.0, ge=0, le=1, description="Penalty at the full horizon.")
    action_errors: float = Field(0.0, ge=0, le=1, description="Penalty if every action fails.")

    @field_validator("extra")
    @classmethod
    def _other_names(cls, extra: dict[str, float]) -> dict[str, float]:
        for name, weight in extra.items():
            if name in set(Component):
                raise ValueError(f"{name} is built in: set rewards.{name}")
            if not 0 <= weight <= 1000:
                raise ValueError(f"the weight of {name} is {weight:g}; allowed: from 0 to 1000")
        return extra

    @field_validator("clip")
    @classmethod
    def _there(cls, clip: str) -> str:
        if clip and not (resolve_path(clip) / "config.json").is_file():
            raise ValueError(f"{resolve_path(clip)} is no Hugging Face checkpoint folder: it has no config.json")
        return clip

    def weights(self) -> dict[str, float]:
        """Return the weights by component."""
        return {**self.extra, **{component: getattr(self, component) for component in Component}}


def check_measured(rewards: RewardConfig, rollout: RolloutConfig) -> None:
    """Raise ``ValueError`` if a part has a weight and could never be available."""
    if rewards.performance and not rollout.signals:
        raise ValueError(
            f"rewards.performance: {rewards.performance:g} needs rollout.signals=true: without signals no quality is measured"
        )


def check_reached(serving: ServingConfig, cluster: ClusterConfig) -> None:
    """Raise ``ValueError`` if workers on other machines cannot reach the servers of this one."""
    scheduler = urlsplit(cluster.address).hostname
    if serving.own_servers_are_local and scheduler and scheduler not in LOOPBACK:
        raise ValueError(
            f"serving.host: the workers of {cluster.address} cannot reach servers on {serving.host}; "
            "give an address of this machine and serving.api_key, or servers of your own (serving.address)"
        )


def describe_split(split: str) -> str:
    """Return a split in words: ``held-out``, ``validation``."""
    return split.replace("_", "-")


class EvaluationConfig(Settings):
    """Greedy success on held-out seeds."""

    episodes: int = Field(200, ge=1, le=100_000, description="Episodes, shared over the kinds.")
    split: Literal["held_out", "validation"] = Field(
        "held_out", description="Split of the page seeds; tune on validation, report on held_out."
    )
    every: int = Field(10, ge=1, le=100_000, description="Updates between evaluations (first and last always).")
    where: Literal["boundary", "replica", "adapter"] = Field(
        "boundary",
        description="boundary: the next publication waits for it. replica, adapter: a worker of its own evaluates during "
        "updates (mode=async), with a vLLM server of its own, or with a LoRA adapter on the shared ones.",
    )


MAX_GROUPS_PER_TASK = 4
"""Most groups of one Prefect task in an asynchronous run, unless the configuration sets a number.

A task's groups are trained on only when all of them have ended.
"""


class PacingConfig(Settings):
    """Bounds on how far rollouts may be ahead of updates in an asynchronous run."""

    staleness: int = Field(
        2, ge=0, le=64, description="Most versions between the start of a group and the batch that takes it."
    )
    depth: int = Field(
        0, ge=0, le=64, description="Versions that new groups may be ahead; 0: half of staleness, rounded up."
    )
    running: int = Field(
        0, ge=0, le=100_000, description="Groups under way at once; 0: three times as many as the workers play at once."
    )
    adaptive: bool = Field(
        False,
        description="Have fewer groups under way while engines queue or the workers' machines are full, running at most.",
    )
    replace: bool = Field(
        True, description="Start another group for each that leaves nothing to learn from, within bounds."
    )
    batch_seconds: float = Field(
        0.0, ge=0, le=86_400, description="Seconds after which a batch takes what is ready, if anything; 0: it is full."
    )
    silence: float = Field(
        3600.0, gt=0, le=86_400, description="Seconds in which nothing ends after which the run is given up as stuck."
    )

    @model_validator(mode="after")
    def _not_deeper(self) -> Self:
        if self.depth > self.staleness:
            raise ValueError(
                f"depth: {self.depth} is more than staleness {self.staleness}: groups would start too early; lower it"
            )
        return self

    @property
    def ahead(self) -> int:
        """Number of versions that admission runs ahead."""
        return self.depth or -(-self.staleness // 2)

    def groups_at_once(self, workers: int, concurrency: int, episodes: int) -> int:
        """Return the number of groups under way at once.

        Args:
            workers: Number of workers.
            concurrency: Concurrent episodes of a worker.
            episodes: Episodes of a group.
        """
        return self.running or max(3 * -(-concurrency // episodes) * workers, 2)

    @staticmethod
    def groups_per_task(configured: int, concurrency: int, episodes: int) -> int:
        """Return the number of groups of one Prefect task.

        Args:
            configured: ``rollout.groups_per_task``.
            concurrency: Concurrent episodes of a worker.
            episodes: Episodes of a group.
        """
        return configured or min(-(-concurrency // episodes), MAX_GROUPS_PER_TASK)


class ClusterConfig(Settings):
    """Dask cluster that rollouts run on."""

    model_config = ConfigDict(json_schema_extra={"short": "an address alone (tcp://10.0.0.5:8786)"})

    address: str = Field("", description="Address of a Dask scheduler; empty: a local cluster.")
    workers: int = Field(1, ge=1, le=1024, description="Workers of the local cluster.")

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, value: object) -> object:
        return {"address": value} if isinstance(value, str) and "://" in value else value


class EndpointConfig(Settings):
    """A model at an OpenAI-compatible endpoint."""

    key_setting: ClassVar[str] = "endpoint.api_key"
    """Name of the setting with the key's variable, for messages."""

    address: str = Field(
        examples=["http://127.0.0.1:8000/v1"], description="Chat-completions endpoint, up to and with /v1."
    )
    model: str = Field(min_length=1, examples=["Qwen3-VL-32B-Instruct"], description="Model name at the endpoint.")
    api_key: str = Field("", description="Name of the environment variable that holds the key.")
    temperature: float | None = Field(None, ge=0, le=2, description="Sampling temperature; null: the endpoint's own.")
    max_tokens: int = Field(1024, ge=16, le=200_000, description="Longest answer, thoughts included.")
    timeout: float = Field(120.0, gt=0, le=3600, description="Seconds for one request.")
    retries: int = Field(4, ge=0, le=20, description="Retries after 429, 5xx or a broken answer.")
    budget_requests: int | None = Field(
        None, ge=0, description="Requests of a whole run, retries included; null: no limit."
    )

    @field_validator("address")
    @classmethod
    def _address(cls, value: str) -> str:
        return endpoint_address(value, f"that {cls.key_setting} names")

    def read_key(self) -> str:
        """Read the key from its environment variable; empty if none is named.

        Raises:
            ConfigError: the named variable is not set or cannot be sent in a header.
        """
        return endpoint_key(self.key_setting, self.api_key) if self.api_key else ""


class PolicyEndpointConfig(EndpointConfig):
    """A model at an OpenAI-compatible endpoint that is evaluated."""

    key_setting: ClassVar[str] = "policy_endpoint.api_key"


class TeacherConfig(EndpointConfig):
    """A model at an OpenAI-compatible endpoint that plays the demonstrations of a warm start."""

    key_setting: ClassVar[str] = "teacher.api_key"

    temperature: float | None = Field(0.7, ge=0, le=2, description="Sampling temperature; null: the endpoint's own.")
