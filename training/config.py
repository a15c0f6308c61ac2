"""Settings of the model side: policy, sampling, algorithm and trainer."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from envs.prompts import ObservationMode, PromptName
from training.algorithms.choices import PRESETS, Aggregation, PolicyLoss
from training.policy.context import ContextPolicy
from training.settings import Settings
from training.trainer.options import ACCEPTED, refuse


class PolicyConfig(Settings):
    """The policy and how its turns are sampled."""

    checkpoint: str = Field(
        "datasets/policies/reader",
        description="Hugging Face checkpoint folder to start from, or a run's alias (runs/x@best).",
    )
    template: str = Field("", description="LLaMA-Factory chat template; empty: the checkpoint's.")
    observation: ObservationMode = Field(
        "text",
        description="Form of the page: numbered elements and text, marks on the screenshot, or the screenshot alone.",
    )
    context: ContextPolicy = Field(
        "present", description="Earlier rounds in the prompt: none, the last ones, or appended and dropped in blocks."
    )
    context_rounds: int = Field(4, ge=0, le=64, description="Most earlier rounds, each with its screenshot.")
    context_tokens: int = Field(
        0, ge=0, description="Largest prompt in tokens; the oldest rounds are dropped to fit. 0: the model's context."
    )
    image_pixels: int = Field(
        1280 * 768,
        ge=784,
        le=2**24,
        description="Largest screenshot in pixels; larger ones are scaled down when they are taken.",
    )
    prompt: PromptName = Field(
        "plain",
        description="System turn: the template's own, WebGym's short or long form of answers, or tools (docs/contexts.md).",
    )
    temperature: float = Field(1.0, gt=0, le=5, description="Sampling temperature in training.")
    max_new_tokens: int = Field(32, ge=1, le=8192, description="Largest number of tokens of a model turn.")

    @property
    def max_images(self) -> int:
        """Largest number of images in one prompt."""
        return 1 if self.context == "present" else self.context_rounds + 1

    @property
    def turn_tokens(self) -> int:
        """Largest number of tokens of a prompt and its turn; 0: as many as the model takes."""
        return self.context_tokens + self.max_new_tokens if self.context_tokens else 0


class AdvantageSettings(Settings):
    """Advantages of a group's steps, computed from its rewards."""

    name: Literal["grpo", "filtered_bc"] = Field(
        "grpo",
        description="Group advantages with a decoupled clipped loss, or cloning of successful steps (WebGym).",
    )
    preset: Literal[*PRESETS] | None = Field(  # type: ignore[valid-type]
        None, description="Published algorithm whose values apply where no other is given (docs/algorithms.md)."
    )
    advantages: str = Field(
        "grpo",
        examples=["my_algorithm:ranks"],
        description="grpo, dr_grpo, rloo, raft (successes only), or a function of your own (docs/extending.md).",
    )
    loss: str = Field(
        "",
        examples=["my_algorithm:reinforce"],
        description="Your own loss of each token: module:function, or an installed one (docs/extending.md); empty: none.",
    )
    length_cut: Literal["keep", "mask", "penalise"] = Field(
        "keep",
        description="Turns cut at policy.max_new_tokens: keep them, leave them out, or lower the episode's score.",
    )
    length_penalty: float = Field(
        0.5, ge=0, le=1, description="penalise: subtracted from the score, times the share of cut turns."
    )
    group_size: int = Field(8, ge=2, le=64, description="Episodes of one task and seed in a group.")
    std_epsilon: float = Field(1e-4, gt=0, le=1, description="Added to the group's standard deviation.")
    step_normalizer: Literal["constant", "trajectory", "none"] = Field(
        "constant", description="Divisor of a step's advantage: a constant, the trajectory's number of steps, or none."
    )
    step_constant: float = Field(10.0, gt=0, le=1000, description="Value of the constant divisor (AsyncWebRL: 10).")


class AlgorithmConfig(PolicyLoss, AdvantageSettings):
    """The algorithm: from rewards to advantages and a loss."""

    aggregation: Aggregation = Field("token", description="Mean over tokens, over steps, or over episodes (sequence).")
    proximal: Literal["recompute", "behaviour"] = Field(
        "recompute",
        description="Source of the proximal log-probs: a forward pass before the update, or the rollout.",
    )
    replay_iterations: int = Field(
        1, ge=1, le=1000, description="Number of newest iterations whose episodes are trained on."
    )
    replay_steps: int = Field(0, ge=0, description="Largest number of steps of a batch, drawn by recency; 0: all.")
    replay_recency: float = Field(
        2.0, ge=0, le=10, description="Weight of a step in the draw: its rank by age, oldest 1, to this power."
    )
    skip_unchanged: bool = Field(False, description="Leave out steps that did not change the screenshot.")
    stale_limit: int | None = Field(
        None,
        ge=0,
        description="Largest staleness of an episode's oldest token; older ones are left out. null: pacing.staleness (mode=async).",
    )
    stale_decay: float = Field(
        1.0, gt=0, le=1, description="Factor of an episode's advantages per version of staleness of its oldest token."
    )
    entropy_coefficient: float = Field(0.0, ge=0, le=1, description="Weight of the entropy bonus.")
    entropy_floor: float = Field(0.25, ge=0, description="Mean token entropy (nats) below which the bonus acts.")

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, given: Any) -> Any:
        """Return the given values with the preset's values for the others."""
        name = given.get("preset") if isinstance(given, dict) else None
        return PRESETS[name] | given if isinstance(name, str) and name in PRESETS else given

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
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


class TrainerConfig(Settings):
    """The optimiser and the process group that runs it."""

    learning_rate: float = Field(1e-6, gt=0, le=1, description="Peak learning rate (AdamW).")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta 1.")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="AdamW beta 2.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW weight decay.")
    warmup_updates: int = Field(0, ge=0, description="Updates of linear warm-up to the peak learning rate.")
    scheduler: Literal["constant_with_warmup", "cosine", "linear"] = Field(
        "constant_with_warmup",
        description="Learning rate schedule; cosine and linear would reach zero after the last update.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm clip.")
    epochs: int = Field(1, ge=1, le=16, description="Passes over a batch.")
    minibatch_rows: int = Field(
        64, ge=1, le=65536, description="Rows (steps) of one optimiser step, over all processes."
    )
    micro_batch_rows: int = Field(
        32,
        ge=1,
        le=4096,
        description="Rows of one forward pass of one process; steps whose prompts continue one another are one row.",
    )
    micro_batch_tokens: int = Field(
        0, ge=0, description="Largest forward pass in tokens; there is no padding. 0: bounded by rows alone."
    )
    finetuning_type: Literal["full", "lora"] = Field("full", description="Train all weights, or LoRA adapters.")
    lora_rank: int = Field(16, ge=1, le=1024, description="Rank of the adapters.")
    lora_export: Literal["adapter", "merged"] = Field(
        "adapter", description="Content of a policy that a LoRA run publishes: the adapter alone, or merged weights."
    )
    train_vision_tower: bool | None = Field(
        None,
        description="Train the image encoder and projector too; null: only in models of at most 100 million parameters.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations: slower, less memory.")
    zero_stage: int = Field(2, ge=0, le=3, description="DeepSpeed ZeRO stage.")
    bf16: bool | None = Field(None, description="Train in bfloat16; null: if there is a CUDA device.")
    llamafactory: dict[str, Any] = Field(
        {},
        examples=[{"flash_attn": "fa2"}],
        description=f"Further arguments of LLaMA-Factory: {', '.join(sorted(ACCEPTED))}.",
    )
    processes: int = Field(1, ge=1, le=1024, description="Number of trainer processes, one per GPU.")
    nodes: int = Field(
        0,
        ge=0,
        le=256,
        description="Machines that run the processes: Dask workers with the resource trainer; 0: the flow's own machine.",
    )
    state_every: int = Field(
        1,
        ge=1,
        le=10_000,
        description="Updates from one trainer state to the next; after a kill, updates since the last one are repeated.",
    )
    loader_workers: int = Field(
        1, ge=0, le=64, description="Threads per process that prepare images during a pass; 0: between passes."
    )
    keep_policies: int = Field(
        0, ge=0, description="Number of newest policies that keep their weights, besides version 0; 0: all."
    )
    keep_best: bool = Field(True, description="Keep the weights of the best evaluated version too (see keep_policies).")
    keep_states: int = Field(2, ge=2, le=1000, description="Number of newest trainer states that are kept.")
    silence: float = Field(
        60.0, ge=0, le=86_400, description="Seconds without progress after which a trainer is restarted; 0: never."
    )
    torch_threads: int = Field(0, ge=0, le=256, description="CPU threads of each process; 0: torch's default.")

    @model_validator(mode="after")
    def _check_options(self) -> Self:
        for name in self.llamafactory:
            named = name in type(self).model_fields
            reason = f"set trainer.{name}" if named else refuse(name, lora=self.finetuning_type == "lora")
            if reason:
                raise ValueError(f"llamafactory: {name} is refused: {reason}; it takes {', '.join(sorted(ACCEPTED))}")
        return self

    def state_due(self, version: int, last: int) -> bool:
        """Return True if a version's trainer state is written.

        That is each ``state_every`` updates, and for the run's ``last`` version.
        """
        return version % self.state_every == 0 or version == last

    @property
    def adapter_rank(self) -> int:
        """Rank of the adapters that a run publishes; 0: it publishes whole weights."""
        return self.lora_rank if self.finetuning_type == "lora" and self.lora_export == "adapter" else 0
