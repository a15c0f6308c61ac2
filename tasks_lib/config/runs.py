"""Configurations of the flows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from envs.types import ConfigError
from tasks_lib.config.alerts import AlertConfig
from tasks_lib.config.parts import (
    ClusterConfig,
    EvaluationConfig,
    PacingConfig,
    PolicyEndpointConfig,
    RewardConfig,
    RolloutConfig,
    TasksConfig,
    TeacherConfig,
    check_measured,
    check_reached,
    describe_split,
)
from tasks_lib.config.reading import RUN_NAME, load_preset, merge, presets_of
from training.config import AlgorithmConfig, PolicyConfig, TrainerConfig
from training.serving.config import ServingConfig
from training.settings import Settings
from training.warm_start.recipe import Recipe

Monitor = Annotated[bool, Field(description="Serve the live monitor; its address is in the log (docs/monitor.md).")]
View = Annotated[
    str,
    Field(
        pattern=r"^https?://[^\s/]+/?$",
        description="Address of `flows.view`, to which the run's artifacts and log link (docs/monitor.md).",
    ),
]
VIEW = "http://127.0.0.1:8711"
"""Address of `flows.view` on this machine."""


class FolderConfig(Settings):
    """Folder and preset of a run, a task set or a sweep."""

    run_id: str = Field(
        "",
        pattern=RUN_NAME,
        description="Folder of the run; empty: PRESET-seedSEED.",
    )
    preset: str = Field(
        "",
        pattern=RUN_NAME,
        description="Preset under the other values.",
    )
    root: str = Field("runs", description="Folder of all runs, on shared storage.")

    flow: ClassVar[str]
    """Module of the flow that takes this configuration."""
    bare: ClassVar[bool] = False
    """True if the defaults alone are a useful configuration."""

    @model_validator(mode="before")
    @classmethod
    def _over_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("preset"), str) and values["preset"]:
            preset = load_preset(values["preset"], cls.model_fields)
            check_preset(preset, cls.flow, cls.model_fields)
            return merge(preset, values)
        return values

    @property
    def run_dir(self) -> Path:
        """Folder of the run."""
        return Path(self.root).expanduser().resolve() / self.run_id


def check_preset(preset: dict[str, Any], flow: str, keys: Collection[str]) -> None:
    """Check that a preset is not of other flows, which have all of its keys.

    Keys that no flow has are refused later.

    Args:
        preset: Values of the preset, as `load_preset` returns them.
        flow: Module of the flow that the preset is used for.
        keys: Keys of that flow's configuration.

    Raises:
        ConfigError: the preset is of other flows.
    """
    wanted = preset.keys()
    others = sorted(kind.flow for kind in _kinds(FolderConfig) if wanted <= kind.model_fields.keys())
    if wanted <= {*keys} or not others:
        return
    own = ", ".join(presets_of(keys)) if "preset" in keys else ""
    raise ConfigError(
        f"preset: {preset['preset']} is a preset of {' and '.join(others)}, not of {flow}, "
        + (f"whose presets are: {own}" if own else "which has none; give its values with --set")
    )


def _kinds(kind: type[FolderConfig]) -> Iterator[type[FolderConfig]]:
    """Yield the configurations of imported flows: all of them in a flow's command."""
    for inner in kind.__subclasses__():
        if hasattr(inner, "flow"):
            yield inner
        yield from _kinds(inner)


class RunConfig(FolderConfig):
    """Configuration that all kinds of runs with a seed share."""

    seed: int = Field(0, ge=0, lt=2**31, description="Seed of all random choices.")

    unnamed: ClassVar[str]
    """Word for the preset in the name of a run without one."""

    @model_validator(mode="after")
    def _named(self) -> Self:
        if not self.run_id:
            object.__setattr__(self, "run_id", f"{self.preset or self.unnamed}-seed{self.seed}")
        return self


class TrainConfig(RunConfig):
    """Configuration that decides a training run.

    With one worker, the same values and seed give the same run, except with
    ``rollout.over_sampling``, where it depends on which episodes end first.
    """

    flow = "flows.train"
    unnamed = "custom"

    iterations: int = Field(10, ge=1, le=1_000_000, description="Updates of the run.")
    monitor: Monitor = False
    view: View = VIEW
    trackers: tuple[Literal["wandb", "mlflow"], ...] = Field(
        (),
        description="Services that get a copy of the metrics: `wandb`, if it is installed; `mlflow`, a server (docs/monitor.md).",
    )
    mode: Literal["sync", "async"] = Field("sync", description="Roll out, then train; or both at once (docs/async.md).")
    pacing: PacingConfig = PacingConfig()
    tasks: TasksConfig = TasksConfig()
    policy: PolicyConfig = PolicyConfig()
    serving: ServingConfig = ServingConfig()
    rollout: RolloutConfig = RolloutConfig()
    rewards: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    trainer: TrainerConfig = TrainerConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    alerts: AlertConfig = AlertConfig()
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="before")
    @classmethod
    def _free_batches(cls, values: Any) -> Any:
        """Turn ``deterministic`` off in asynchronous runs, unless it is given.

        Fixed batches would wait for every open session.
        """
        if isinstance(values, dict) and values.get("mode") == "async":
            rollout = values.get("rollout", {})
            if isinstance(rollout, dict):
                return {**values, "rollout": {"deterministic": False, **rollout}}
        return values

    @model_validator(mode="after")
    def _parts_fit(self) -> Self:
        check_measured(self.rewards, self.rollout)
        check_reached(self.serving, self.cluster)
        return self

    @model_validator(mode="after")
    def _adapters_can_be_served(self) -> Self:
        trainer = self.trainer
        if self.serving.engine == "vllm" and trainer.adapter_rank and trainer.train_vision_tower:
            raise ValueError(
                "trainer.train_vision_tower: vLLM leaves out adapters of the vision tower; "
                "set it to false, or set trainer.lora_export=merged"
            )
        return self

    @model_validator(mode="after")
    def _machines_are_there(self) -> Self:
        trainer = self.trainer
        if trainer.nodes and not self.cluster.address:
            raise ValueError(
                "trainer.nodes: the machines are workers of a Dask cluster, and cluster.address is empty; set it, "
                "or leave trainer.nodes out to train on the flow's machine"
            )
        if trainer.nodes and trainer.processes % trainer.nodes:
            raise ValueError(
                f"trainer.processes: {trainer.processes} cannot be shared evenly by {trainer.nodes} machines (trainer.nodes)"
            )
        return self

    @model_validator(mode="after")
    def _reference_can_be_held(self) -> Self:
        trainer = self.trainer
        if self.algorithm.kl_coefficient and trainer.finetuning_type == "full" and trainer.zero_stage == 3:
            raise ValueError(
                "algorithm.kl_coefficient: the first policy is held whole beside the trained one, which ZeRO 3 cannot; "
                "set trainer.zero_stage=2 or trainer.finetuning_type=lora, or leave it at 0"
            )
        return self

    @model_validator(mode="after")
    def _servers_can_be_used(self) -> Self:
        if self.serving.sleep and self.mode == "async":
            raise ValueError("serving.sleep: mode=async generates during updates; set mode=sync, or leave it out")
        if self.serving.weight_transfer == "broadcast" and self.trainer.adapter_rank:
            raise ValueError(
                "serving.weight_transfer: LoRA adapters are read from disk; set it to disk, or trainer.lora_export=merged"
            )
        return self

    @model_validator(mode="after")
    def _evaluations_have_a_place(self) -> Self:
        where = self.evaluation.where
        if where != "boundary" and self.mode == "sync":
            raise ValueError(
                f"evaluation.where: {where} measures beside an asynchronous run; set mode=async, or boundary"
            )
        if where == "adapter" and not (self.serving.engine == "vllm" and self.trainer.adapter_rank):
            raise ValueError(
                "evaluation.where: adapter is of vLLM servers that are given LoRA adapters; set serving.engine=vllm, "
                "trainer.finetuning_type=lora and trainer.lora_export=adapter, or replica or boundary"
            )
        if where == "replica" and self.serving.engine == "vllm" and self.serving.servers < 2:
            raise ValueError(
                "evaluation.where: replica takes the last vLLM server for itself; set serving.replicas=2 or more "
                "(or name another server in serving.address), or boundary"
            )
        return self

    @property
    def serving_of_rollouts(self) -> ServingConfig:
        """Engines of training groups."""
        return self.serving.part(0, -1) if self.evaluation.where == "replica" else self.serving

    @property
    def serving_of_evaluations(self) -> ServingConfig | None:
        """Engines that only evaluations use; ``None`` if there are none."""
        return self.serving.part(-1, None) if self.evaluation.where == "replica" else None

    @property
    def batch_settings(self) -> AlgorithmConfig:
        """Algorithm of the batches, with the bound on staleness of an asynchronous run.

        Pacing keeps episodes within that bound, with two exceptions: a worker that outlives a
        killed run may commit a group late, and the bound may be lowered when a run is resumed.
        """
        if self.mode == "sync" or self.algorithm.stale_limit is not None:
            return self.algorithm
        return self.algorithm.model_copy(update={"stale_limit": self.pacing.staleness})

    @property
    def episodes_per_group(self) -> int:
        """Number of episodes that a group starts, including those of over-sampling."""
        return self.algorithm.group_size + self.rollout.over_sampling

    @property
    def total_episodes(self) -> int:
        """Number of episodes of all iterations and evaluations, without repeated draws."""
        training = self.iterations * self.rollout.groups_per_iteration * self.episodes_per_group
        return training + self.evaluations * self.evaluation.episodes

    @property
    def evaluations(self) -> int:
        """Number of evaluations, with the first and the last."""
        return 1 + -(-self.iterations // self.evaluation.every)

    def plan(self) -> str:
        """Describe in a sentence what a run of this configuration would do."""
        size = self.episodes_per_group
        episodes = self.rollout.groups_per_iteration * size
        extra = f" ({self.rollout.over_sampling} of them over-sampled)" if self.rollout.over_sampling else ""
        split = describe_split(self.evaluation.split)
        return (
            f"would run {self.iterations} iterations of {self.rollout.groups_per_iteration} groups x {size}{extra} = "
            f"{episodes} episodes ({self.iterations * episodes} in all) with {self.algorithm.name}, and {self.evaluations} evaluations of "
            f"{self.evaluation.episodes} {split} episodes, on {self.cluster.address or f'{self.cluster.workers} local worker(s)'}, "
            f"into {self.run_dir}"
            + (f"; asynchronous, groups at most {self.pacing.staleness} versions old" if self.mode == "async" else "")
        )


class EvaluateConfig(Settings):
    """One evaluation of one policy."""

    flow: ClassVar[str] = "flows.evaluate"
    bare: ClassVar[bool] = True

    policy: PolicyConfig = Field(PolicyConfig(), description="policy.checkpoint is the folder to evaluate.")
    policy_endpoint: PolicyEndpointConfig | None = Field(
        None,
        description="Model at an OpenAI-compatible endpoint to evaluate in place of policy.checkpoint, whose tokenizer measures prompts.",
    )
    tasks: TasksConfig = TasksConfig()
    serving: ServingConfig = ServingConfig()
    rollout: RolloutConfig = RolloutConfig()
    rewards: RewardConfig = RewardConfig()
    cluster: ClusterConfig = ClusterConfig()
    episodes: int = Field(
        200, ge=1, le=100_000, description="Episodes, shared over the kinds; of 200, as many as there are page seeds."
    )
    split: Literal["held_out", "validation", "train", "demo"] = Field(
        "held_out", description="Split of the page seeds."
    )
    greedy: bool = Field(True, description="Greedy decoding; false: policy.temperature.")
    alerts: AlertConfig = AlertConfig()
    monitor: Monitor = False
    view: View = VIEW
    root: str = Field("runs", description="Folder of all runs, on shared storage.")
    run_id: str = Field("", pattern=RUN_NAME, description="Folder of the evaluation; empty: evaluate-TIME.")

    @model_validator(mode="after")
    def _checked(self) -> EvaluateConfig:
        check_measured(self.rewards, self.rollout)
        check_reached(self.serving, self.cluster)
        if not self.run_id:
            object.__setattr__(self, "run_id", f"evaluate-{datetime.now():%Y%m%d-%H%M%S}")
        return self

    @property
    def run_dir(self) -> Path:
        """Folder of the evaluation."""
        return Path(self.root).expanduser().resolve() / self.run_id

    def plan(self) -> str:
        """Describe in a sentence what a run of this configuration would do."""
        return f"would evaluate {self.subject} on {self.episodes} {self.split} episodes, into {self.run_dir}"

    @property
    def subject(self) -> str:
        """The policy that is evaluated: its folder, or the model and its endpoint."""
        endpoint = self.policy_endpoint
        return self.policy.checkpoint if endpoint is None else f"{endpoint.model} at {endpoint.address}"


class WarmStartConfig(RunConfig):
    """Configuration that decides a warm start.

    The defaults pre-train with the shipped recipe and clone nothing.
    """

    flow = "flows.warm_start"
    unnamed = "warm-start"

    base: str = Field(
        "",
        description="Checkpoint folder to start from; empty: pre-train one.",
    )
    recipe: Recipe = Field(Recipe(), description="Pre-training, when there is no base.")
    tasks: TasksConfig = Field(
        TasksConfig(), description="Kinds to demonstrate and measure; empty: all that have an oracle."
    )
    policy: PolicyConfig = Field(
        PolicyConfig(), description="How turns are rendered and sampled; policy.checkpoint is not read (see base)."
    )
    rollout: RolloutConfig = RolloutConfig()
    episodes: list[str] = Field(
        [], description="Folders of runs whose successful episodes are cloned in place of scripted ones."
    )
    teacher: TeacherConfig | None = Field(
        None, description="Plays the demonstrations in place of the scripted oracles."
    )
    demonstrations: int = Field(
        490, ge=1, le=100_000, description="Episodes to clone at most; scripted ones are shared over the kinds."
    )
    cloning_updates: int = Field(0, ge=0, le=100_000, description="Updates, each on all demonstrations; 0: no cloning.")
    trainer: TrainerConfig = Field(TrainerConfig(), description="Optimiser of cloning.")
    gate: float = Field(0.25, ge=0, le=1, description="Least sampled validation success to publish.")
    gate_episodes: int = Field(
        490, ge=1, le=100_000, description="Validation episodes, played once sampled and once greedy."
    )
    output: str = Field("", description="Folder to publish to; empty: output/ of the run.")
    cluster: ClusterConfig = ClusterConfig()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.episodes and self.teacher is not None:
            raise ValueError("teacher: the demonstrations are those of episodes; give one of the two")
        return self

    def plan(self) -> str:
        """Describe in a sentence what a run of this configuration would do."""
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
