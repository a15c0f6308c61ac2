"""The configuration of a run: one shallow tree, with presets, overrides and errors that name the key.

Precedence, left to right: defaults, the preset (``deployments/presets/NAME.yaml``), what is given: by ``--set key.sub=value``, by the
parameter ``config`` of a deployment, by a caller.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from envs.egress import AllowList
from envs.ends import HorizonPolicy
from envs.rewards import Component
from envs.rewards.judge import JudgeConfig
from envs.sites import LiveOptions, split_address
from envs.tasks.samplers import SamplerConfig
from envs.types import ConfigError
from training.config import AlgorithmConfig, PolicyConfig, Settings, TrainerConfig
from training.policy.prompt import MEMORY_BUDGET
from training.warm_start.recipe import Recipe

PROJECT = Path(__file__).resolve().parents[1]
"""The checkout: where ``datasets/`` and ``deployments/`` lie."""
PRESETS = PROJECT / "deployments" / "presets"


class TasksConfig(Settings):
    """Which tasks are trained and evaluated."""

    file: str = Field(
        "datasets/tasks/miniwob.jsonl",
        description="Task file (JSONL, JSON, Parquet), folder or glob (tasks/difficulty/[1-3]/**/*.json); relative to the project, or absolute.",
    )
    kinds: list[str] = Field([], description="Task kinds to use; empty means all of the file.")
    sampler: SamplerConfig | None = Field(
        None,
        description="What draws the tasks (docs/tasks.md): curriculum, uniform, ratio, sequential, no_repeat; null: by the success of kinds.",
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
        description="Files with a log-in's cookies by the live site's name (Playwright's storage state, absolute paths), read by the workers.",
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
    horizon: HorizonPolicy | None = Field(
        None,
        description="Most steps of an episode: fixed, bucketed by difficulty (10 for each three facts), or scheduled; null: the task's own.",
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
    browser_address: str = Field(
        "", description="Debugging address of a browser to use instead of own ones (ws://… or http://host:port)."
    )
    judge: JudgeConfig | None = Field(
        None,
        description="Endpoint, models and limits of the LLM judge (docs/judge.md), for rubrics with facts that no program can check.",
    )
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


def _measured(rewards: RewardConfig, rollout: RolloutConfig) -> None:
    """Raises ``ValueError`` if a part has a weight and could never be available."""
    if rewards.performance and not rollout.signals:
        raise ValueError(
            f"rewards.performance: {rewards.performance:g} needs rollout.signals=true: without signals no quality is measured"
        )


class EvaluationConfig(Settings):
    """Greedy success on held-out seeds."""

    episodes: int = Field(200, ge=1, le=100_000, description="Episodes of one evaluation, shared over the kinds.")
    split: Literal["held_out", "validation"] = Field(
        "held_out", description="Whose page seeds are used; tune on validation, report on held_out."
    )
    every: int = Field(10, ge=1, le=100_000, description="Evaluate after this many updates (first and last always).")


class ClusterConfig(Settings):
    """Where rollouts run."""

    address: str = Field("", description="Address of a Dask scheduler; empty starts a local cluster.")
    workers: int = Field(1, ge=1, le=1024, description="Workers of the local cluster.")


class RunConfig(Settings):
    """What every kind of run has: a name, a preset that its values are laid over, a folder."""

    run_id: str = Field(
        "", pattern=r"^[A-Za-z0-9._-]*$", description="Name of the run's folder; empty means <preset>-seed<seed>."
    )
    preset: str = Field(
        "",
        pattern=r"^[A-Za-z0-9._-]*$",
        description="File of deployments/presets that the other values are laid over; empty: the defaults.",
    )
    root: str = Field("runs", description="Folder of all runs (shared storage); relative to the working directory.")
    seed: int = Field(0, ge=0, lt=2**31, description="Seed of everything that is drawn.")

    unnamed: ClassVar[str]
    """Stands for the preset in the name of a run without one."""

    @model_validator(mode="before")
    @classmethod
    def _over_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("preset"), str) and values["preset"]:
            return merge(load_preset(values["preset"]), values)
        return values

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.run_id:
            object.__setattr__(self, "run_id", f"{self.preset or self.unnamed}-seed{self.seed}")
        return self

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        return Path(self.root).expanduser().resolve() / self.run_id


class TrainConfig(RunConfig):
    """Everything a training run is decided by. Same values and seed, one worker: the same run."""

    unnamed = "custom"

    iterations: int = Field(10, ge=1, le=1_000_000, description="Updates of the run.")
    tasks: TasksConfig = TasksConfig()
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    rewards: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _rewards_can_be_had(self) -> Self:
        _measured(self.rewards, self.rollout)
        return self

    def plan(self) -> str:
        """What this configuration would do, in a sentence."""
        episodes = self.rollout.groups_per_iteration * self.algorithm.group_size
        evaluations = 1 + -(-self.iterations // self.evaluation.every)
        return (
            f"would run {self.iterations} iterations of {self.rollout.groups_per_iteration} groups x {self.algorithm.group_size} = "
            f"{episodes} episodes ({self.iterations * episodes} in all) with {self.algorithm.name}, and {evaluations} evaluations of "
            f"{self.evaluation.episodes} held-out episodes, on {self.cluster.address or f'{self.cluster.workers} local worker(s)'}, "
            f"into {self.run_dir}"
        )


class EvaluateConfig(Settings):
    """One evaluation of one policy."""

    policy: PolicyConfig = Field(PolicyConfig(), description="policy.checkpoint is the folder to evaluate.")
    tasks: TasksConfig = TasksConfig()
    rollout: RolloutConfig = RolloutConfig()
    rewards: RewardConfig = RewardConfig()
    cluster: ClusterConfig = ClusterConfig()
    episodes: int = Field(200, ge=1, le=100_000, description="Episodes, shared over the kinds.")
    split: Literal["held_out", "validation", "train", "demo"] = Field(
        "held_out", description="Whose page seeds are used."
    )
    greedy: bool = Field(True, description="Greedy decoding; false samples at policy.temperature.")
    root: str = Field("runs", description="Folder of all runs.")
    run_id: str = Field(
        "", pattern=r"^[A-Za-z0-9._-]*$", description="Name of the evaluation's folder; empty means evaluate-<time>."
    )

    @model_validator(mode="after")
    def _checked(self) -> EvaluateConfig:
        _measured(self.rewards, self.rollout)
        if not self.run_id:
            object.__setattr__(self, "run_id", f"evaluate-{datetime.now():%Y%m%d-%H%M%S}")
        return self

    @property
    def run_dir(self) -> Path:
        """The evaluation's folder."""
        return Path(self.root).expanduser().resolve() / self.run_id

    def plan(self) -> str:
        """What this configuration would do, in a sentence."""
        return f"would evaluate {self.policy.checkpoint} on {self.episodes} {self.split} episodes, into {self.run_dir}"


class WarmStartConfig(RunConfig):
    """Everything a warm start is decided by. The defaults pre-train with the shipped recipe and clone nothing."""

    unnamed = "warm-start"

    base: str = Field(
        "",
        description="Checkpoint folder to start from (relative to the project, or absolute); empty pre-trains one.",
    )
    recipe: Recipe = Field(Recipe(), description="Pre-training, when there is no base.")
    tasks: TasksConfig = Field(
        TasksConfig(), description="Kinds to demonstrate and measure; empty kinds mean all that have an oracle."
    )
    policy: PolicyConfig = Field(
        PolicyConfig(), description="How turns are rendered and sampled; policy.checkpoint is not read (see base)."
    )
    rollout: RolloutConfig = RolloutConfig()
    demonstrations: int = Field(
        490, ge=1, le=100_000, description="Scripted episodes to clone, shared over the kinds; none without cloning."
    )
    cloning_updates: int = Field(
        0, ge=0, le=100_000, description="Updates on the demonstrations, all of them in each; 0: no cloning."
    )
    trainer: TrainerConfig = Field(TrainerConfig(), description="The optimiser of cloning.")
    gate: float = Field(0.25, ge=0, le=1, description="Least sampled success on validation seeds to be published.")
    gate_episodes: int = Field(
        490, ge=1, le=100_000, description="Validation episodes, once sampled (the gate) and once greedy (the record)."
    )
    output: str = Field(
        "", description="Folder to publish to (relative to the project, or absolute); empty: output/ of the run."
    )
    cluster: ClusterConfig = ClusterConfig()

    def plan(self) -> str:
        """What this configuration would do, in a sentence."""
        start = f"start from {self.base}" if self.base else f"pre-train for {self.recipe.steps} steps"
        cloning = (
            f"clone {self.demonstrations} demonstrations in {self.cloning_updates} updates"
            if self.cloning_updates
            else "clone nothing"
        )
        return (
            f"would {start}, {cloning}, ask for sampled success of {self.gate:g} on {self.gate_episodes} validation episodes, and "
            f"publish to {self.output or self.run_dir / 'output'}"
        )


def resolve_path(path: str) -> Path:
    """A path from the configuration: absolute, or relative to the project."""
    given = Path(path).expanduser()
    return given if given.is_absolute() else PROJECT / given


def load_preset(name: str) -> dict[str, Any]:
    """The values of a preset file; ``ConfigError`` lists the presets there are."""
    path = PRESETS / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in PRESETS.glob("*.yaml")))
        raise ConfigError(f"there is no preset {name!r}; the presets are: {known}")
    values = yaml.safe_load(path.read_text()) or {}
    return {"preset": name, **values}


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """``["a.b=1", "c=x"]`` as a nested mapping; values are read as YAML."""
    tree: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {assignment!r} is not of the form key.sub=value")
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = yaml.safe_load(value)
    return tree


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return merged


def resolve(model: type[Settings], values: dict[str, Any]) -> Any:
    """Validate ``values``; ``ConfigError`` has one line for each bad key, with its allowed range or the known names."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(model, problem["loc"], problem["msg"], problem.get("input")) for problem in error.errors()]
        raise ConfigError("the configuration is not valid:\n" + "\n".join(f"  {line}" for line in lines)) from None


def _explain(model: type[Settings], location: tuple[int | str, ...], message: str, value: Any) -> str:
    if not location:  # several keys together
        return message.removeprefix("Value error, ")
    key = ".".join(str(part) for part in location)
    owner: Any = model
    for part in location[:-1]:
        owner = owner.model_fields[part].annotation if isinstance(part, str) and part in owner.model_fields else None
        if owner is None or not hasattr(owner, "model_fields"):
            return f"{key}: {message} (got {value!r})"
    name = str(location[-1])
    if name not in owner.model_fields:
        return f"{key}: no such key; {'.'.join(map(str, location[:-1])) or 'the top level'} has: {', '.join(owner.model_fields)}"
    return f"{key}: {message} (got {value!r}; {_allowed(owner, name)})"


def _allowed(owner: type[Settings], name: str) -> str:
    schema = owner.model_json_schema()["properties"][name]
    words = {
        "minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<", "enum": "one of", "pattern": "matching",
    }  # fmt: skip
    parts = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    kind = schema.get("type", "value")
    return f"allowed: {kind} {' and '.join(parts)}".rstrip()
