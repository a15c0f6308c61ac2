"""Settings of the model side: the policy, how it is sampled, the algorithm and the trainer.

Shallow pydantic models with bounds and descriptions: they become the parameter form of a Prefect deployment. Unknown keys are refused.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from training.policy.prompt import ObservationMode


class Settings(BaseModel):
    """Base of all settings: immutable, validated, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PolicyConfig(Settings):
    """The policy and how its turns are sampled."""

    checkpoint: str = Field(
        "datasets/policies/reader",
        description="Hugging Face checkpoint folder to start from (relative to the project, or absolute).",
    )
    template: str = Field("", description="LLaMA-Factory chat template; empty: derived from the checkpoint.")
    observation: ObservationMode = Field(
        "text",
        description="text: numbered elements and words; set_of_marks: numbers drawn on the screenshot; coordinates: the screenshot alone.",
    )
    temperature: float = Field(1.0, gt=0, le=5, description="Sampling temperature of training rollouts.")
    max_new_tokens: int = Field(32, ge=1, le=8192, description="Longest model turn, in tokens.")


class AlgorithmConfig(Settings):
    """How rewards become a loss."""

    name: Literal["grpo", "filtered_bc"] = Field(
        "grpo",
        description="grpo: group advantages, decoupled clipped loss. filtered_bc: WebGym's cloning of successful steps.",
    )
    group_size: int = Field(8, ge=2, le=64, description="K: episodes of one task and seed in a group.")
    std_epsilon: float = Field(1e-4, gt=0, le=1, description="Added to the group's standard deviation.")
    step_normalizer: Literal["constant", "trajectory", "none"] = Field(
        "constant", description="Divide a step's advantage by a constant k, by its trajectory's steps, or by nothing."
    )
    step_constant: float = Field(10.0, gt=0, le=1000, description="k of the constant step normaliser (AsyncWebRL: 10).")
    clip_low: float = Field(0.2, gt=0, lt=1, description="Lower clip of the importance ratio: 1 - clip_low.")
    clip_high: float = Field(0.28, gt=0, le=10, description="Upper clip of the importance ratio: 1 + clip_high.")
    dual_clip: float = Field(
        3.0, gt=1, le=100, description="Bound of the loss for negative advantages, in units of |A|."
    )
    behaviour_cap: float = Field(5.0, gt=1, description="Tokens with pi_proximal / pi_behaviour above it are masked.")
    proximal: Literal["recompute", "behaviour"] = Field(
        "recompute",
        description="Where the proximal log-probs come from: a forward pass before the update, or the rollout.",
    )
    entropy_coefficient: float = Field(0.0, ge=0, le=1, description="Weight of the entropy bonus.")
    entropy_floor: float = Field(
        0.25, ge=0, description="The bonus acts only while mean token entropy (nats) is below it."
    )


class TrainerConfig(Settings):
    """The optimiser and the process group that runs it."""

    learning_rate: float = Field(1e-6, gt=0, le=1, description="Peak learning rate (AdamW).")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="AdamW beta 1.")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="AdamW beta 2.")
    weight_decay: float = Field(0.0, ge=0, le=1, description="AdamW weight decay.")
    warmup_updates: int = Field(
        0, ge=0, description="Updates over which the learning rate rises to its peak, in equal parts."
    )
    scheduler: Literal["constant_with_warmup", "cosine", "linear"] = Field(
        "constant_with_warmup",
        description="Learning rate over the updates of the run; the falling ones would reach zero after the last update.",
    )
    max_grad_norm: float = Field(1.0, gt=0, description="Gradient norm clip.")
    epochs: int = Field(1, ge=1, le=16, description="Passes over a batch in one update.")
    minibatch_rows: int = Field(
        64, ge=1, le=65536, description="Rows (steps) of one optimiser step, over all processes."
    )
    micro_batch_rows: int = Field(32, ge=1, le=4096, description="Rows of one forward pass of one process.")
    finetuning_type: Literal["full", "lora"] = Field("full", description="Train all weights, or LoRA adapters.")
    lora_rank: int = Field(16, ge=1, le=1024, description="Rank of the LoRA adapters.")
    train_vision_tower: bool = Field(True, description="Train the image encoder and its projector too.")
    gradient_checkpointing: bool = Field(
        False, description="Recompute activations in the backward pass: slower, less memory."
    )
    zero_stage: int = Field(2, ge=0, le=3, description="DeepSpeed ZeRO stage.")
    bf16: bool = Field(False, description="Train in bfloat16 (GPUs).")
    processes: int = Field(1, ge=1, le=1024, description="Trainer processes (one a GPU; one on a laptop).")
    torch_threads: int = Field(0, ge=0, le=256, description="CPU threads of each process; 0 leaves it to torch.")
