"""Settings of the model side: policy, sampling, algorithm and trainer.

Shallow pydantic models with bounds and descriptions: they become the parameter form of a Prefect deployment. Unknown keys are refused.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from training.algorithms.choices import PRESETS, Aggregation, Correction, PolicyLoss, RatioLevel, TrustRegion
from training.policy.context import ContextPolicy
from training.policy.prompt import ObservationMode
from training.policy.prompts import PromptName


class Settings(BaseModel):
    """Base of all settings: immutable, validated, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PolicyConfig(Settings):
    """The policy and how its turns are sampled."""

    checkpoint: str = Field(
        "datasets/policies/reader",
        description="Hugging Face checkpoint folder to start from.",
    )
    template: str = Field("", description="LLaMA-Factory chat template; empty: the checkpoint's.")
    observation: ObservationMode = Field(
        "text",
        description="Numbered elements and words; marks on the screenshot; the screenshot alone.",
    )
    context: ContextPolicy = Field(
        "present", description="Rounds of the prompt: none; the last ones; or added and dropped in blocks."
    )
    context_rounds: int = Field(4, ge=0, le=64, description="Rounds besides the present, each with its screenshot.")
    context_tokens: int = Field(
        0, ge=0, description="Tokens of a prompt; older rounds are cut. 0: the model's context."
    )
    image_pixels: int = Field(
        1280 * 768,
        ge=784,
        le=2**24,
        description="Pixels of a screenshot; larger ones are scaled down as they are taken.",
    )
    prompt: PromptName = Field(
        "plain",
        description="System turn: the template's; WebGym's answers, short or whole; or tools (docs/contexts.md).",
    )
    temperature: float = Field(1.0, gt=0, le=5, description="Sampling temperature in training.")
    max_new_tokens: int = Field(32, ge=1, le=8192, description="Longest model turn in tokens.")

    @property
    def max_images(self) -> int:
        """Most pictures of one prompt."""
        return 1 if self.context == "present" else self.context_rounds + 1


class AlgorithmConfig(Settings):
    """How rewards become a loss."""

    name: Literal["grpo", "filtered_bc"] = Field(
        "grpo",
        description="Group advantages with a decoupled clipped loss, or cloning of successful steps (WebGym).",
    )
    preset: Literal[*PRESETS] | None = Field(  # type: ignore[valid-type]
        None, description="Values of a published algorithm under the others (docs/algorithms.md)."
    )
    advantages: str = Field(
        "grpo",
        examples=["my_algorithm:ranks"],
        description="grpo, dr_grpo, rloo, raft (successes alone), or one of yours (docs/extending.md).",
    )
    loss: str = Field(
        "",
        examples=["my_algorithm:reinforce"],
        description="Loss of each token: module:function, or an installed one (docs/extending.md).",
    )
    length_cut: Literal["keep", "mask", "penalise"] = Field(
        "keep",
        description="Turns cut at policy.max_new_tokens: keep, leave out, or lower the episode's score.",
    )
    length_penalty: float = Field(
        0.5, ge=0, le=1, description="penalise: taken off the score, by the share of cut turns."
    )
    group_size: int = Field(8, ge=2, le=64, description="Episodes of one task and seed in a group.")
    std_epsilon: float = Field(1e-4, gt=0, le=1, description="Added to the group's standard deviation.")
    step_normalizer: Literal["constant", "trajectory", "none"] = Field(
        "constant", description="Divisor of a step's advantage: a constant, the trajectory's steps, or none."
    )
    step_constant: float = Field(10.0, gt=0, le=1000, description="The constant divisor (AsyncWebRL: 10).")
    ratio: RatioLevel = Field("token", description="Importance ratio: of each token, of a step's response, or none.")
    trust_region: TrustRegion = Field(
        "dual_clip", description="PPO's clip, the same with a bound for negative advantages, DPPO's mask, or none."
    )
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip of the importance ratio: 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, le=10, description="Upper clip of the importance ratio: 1 + clip_high.")
    dual_clip: float = Field(
        3.0, gt=1, le=100, description="Bound of the loss for negative advantages, in units of |A|."
    )
    dppo_limit: float = Field(0.2, gt=0, lt=1, description="dppo: change of a token's probability without a mask.")
    correction: Correction = Field(
        "mask", description="pi_proximal / pi_behaviour above the cap: mask, clamp; band: mask below the floor too."
    )
    behaviour_cap: float = Field(5.0, gt=1, description="Largest pi_proximal / pi_behaviour.")
    behaviour_floor: float = Field(0.5, gt=0, lt=1, description="band: the smallest.")
    aggregation: Aggregation = Field("token", description="Mean over tokens, over steps, or over episodes (sequence).")
    kl_coefficient: float = Field(0.0, ge=0, le=10, description="Weight of KL to the run's first policy.")
    proximal: Literal["recompute", "behaviour"] = Field(
        "recompute",
        description="Proximal log-probs from a forward pass, or from the rollout.",
    )
    replay_iterations: int = Field(
        1, ge=1, le=1000, description="Iterations whose episodes are trained on: the newest, and ones before it."
    )
    replay_steps: int = Field(0, ge=0, description="Most steps of a batch, drawn by recency; 0: all.")
    replay_recency: float = Field(2.0, ge=0, le=10, description="A step's weight in the draw: its place to this power.")
    skip_unchanged: bool = Field(False, description="Leave out steps after which the screenshot was the same.")
    stale_limit: int = Field(
        0,
        ge=0,
        description="Versions after which an episode is left out, by its oldest token; 0: pacing.staleness (mode=async).",
    )
    stale_decay: float = Field(
        1.0, gt=0, le=1, description="Factor of an episode's advantages for each version that its oldest token is old."
    )
    entropy_coefficient: float = Field(0.0, ge=0, le=1, description="Weight of the entropy bonus.")
    entropy_floor: float = Field(0.25, ge=0, description="The bonus acts below this mean token entropy (nats).")

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, given: Any) -> Any:
        """The values of the preset under those that are given."""
        name = given.get("preset") if isinstance(given, dict) else None
        return PRESETS[name] | given if isinstance(name, str) and name in PRESETS else given

    @model_validator(mode="after")
    def _used(self) -> Self:
        if self.name == "filtered_bc" and (self.advantages not in ("", "grpo") or self.loss or self.kl_coefficient):
            key = "loss" if self.loss else "kl_coefficient" if self.kl_coefficient else "advantages"
            raise ValueError(f"{key}: filtered_bc clones successes and uses none; leave it out, or set name=grpo")
        if self.loss and self.kl_coefficient:
            raise ValueError("kl_coefficient: a loss of your own is the whole loss; leave one of the two out")
        if self.replay_iterations > 1 and self.name != "filtered_bc" and self.advantages != "raft":
            raise ValueError(
                "replay_iterations: only successes are trained on again; set name=filtered_bc or advantages=raft"
            )
        if self.ratio == "none" and self.trust_region != "none":
            raise ValueError("trust_region: it bounds an importance ratio, and ratio is none; set it to none")
        return self

    @property
    def choices(self) -> PolicyLoss:
        """What `training.algorithms.policy_loss` takes."""
        return PolicyLoss(**{each.name: getattr(self, each.name) for each in fields(PolicyLoss)})


class TrainerConfig(Settings):
    """The optimiser and the process group that runs it."""

    learning_rate: float = Field(1e-6, gt=0, le=1, description="Peak learning rate (AdamW).")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta 1.")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="AdamW beta 2.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW weight decay.")
    warmup_updates: int = Field(0, ge=0, description="Updates until the peak learning rate, in equal parts.")
    scheduler: Literal["constant_with_warmup", "cosine", "linear"] = Field(
        "constant_with_warmup",
        description="Learning rate schedule; falling ones would reach zero after the last update.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm clip.")
    epochs: int = Field(1, ge=1, le=16, description="Passes over a batch.")
    minibatch_rows: int = Field(
        64, ge=1, le=65536, description="Steps (rows) of one optimiser step, over all processes."
    )
    micro_batch_rows: int = Field(32, ge=1, le=4096, description="Rows of one forward pass of one process.")
    micro_batch_tokens: int = Field(
        0, ge=0, description="Most tokens of a forward pass, padding included; 0: by rows alone."
    )
    finetuning_type: Literal["full", "lora"] = Field("full", description="All weights, or LoRA adapters.")
    lora_rank: int = Field(16, ge=1, le=1024, description="Rank of the adapters.")
    lora_export: Literal["adapter", "merged"] = Field(
        "adapter", description="What a LoRA run publishes: the adapter alone, or whole merged weights."
    )
    train_vision_tower: bool | None = Field(
        None,
        description="Train the image encoder and projector too; null: in models of at most 100 million parameters.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations: slower, less memory.")
    zero_stage: int = Field(2, ge=0, le=3, description="DeepSpeed ZeRO stage.")
    bf16: bool | None = Field(None, description="Train in bfloat16; null: where there is a CUDA device.")
    llamafactory: dict[str, Any] = Field(
        {}, examples=[{"flash_attn": "fa2"}], description="Every other argument of LLaMA-Factory's, by its name."
    )
    processes: int = Field(1, ge=1, le=1024, description="Trainer processes, one a GPU.")
    nodes: int = Field(
        0,
        ge=0,
        le=256,
        description="Machines that share them: Dask workers with the resource trainer; 0: the flow's own machine.",
    )
    state_every: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Updates between trainer states; those since the last are repeated after a kill.",
    )
    loader_workers: int = Field(
        1, ge=0, le=64, description="Threads of each process that prepare pictures during a pass; 0: between passes."
    )
    keep_policies: int = Field(
        0, ge=0, description="Newest policies that keep their weights, besides version 0; 0: all."
    )
    keep_best: bool = Field(True, description="With it, the version with the best evaluation keeps its weights too.")
    keep_states: int = Field(2, ge=2, le=1000, description="Trainer states that are kept, the newest ones.")
    silence: float = Field(
        60.0, ge=0, le=86_400, description="Seconds without progress after which a trainer is started again; 0: never."
    )
    torch_threads: int = Field(0, ge=0, le=256, description="CPU threads of each process; 0: torch decides.")

    def state_due(self, version: int, last: int) -> bool:
        """Whether a version's trainer state is written: each ``state_every`` updates, and that of the run's ``last``."""
        return version % self.state_every == 0 or version == last

    @property
    def adapter_rank(self) -> int:
        """Rank of the adapters that a run publishes; 0: it publishes whole weights."""
        return self.lora_rank if self.finetuning_type == "lora" and self.lora_export == "adapter" else 0
