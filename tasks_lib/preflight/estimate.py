"""Estimates the memory, disk and hours of a run, by formulas and stated assumptions.

Nothing is measured here.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from envs.ends import FixedHorizon
from tasks_lib.config import TrainConfig, resolve_checkpoint
from training.ledger.checkpoint_files import count_parameters

GIB = 2**30
SMALL = 50e6
"""Parameters below which the needs of a run are too small to print."""
BROWSER_BYTES = 0.3e9
"""Memory in bytes of one page with its share of Chromium."""
STEP_SECONDS = 6.0
"""Seconds of one step on a live site: page, turn of a model with some 1e9 parameters, action."""
TOKENS_PER_SECOND = 15_000.0
"""Tokens trained per second on one GPU, for a model of one billion parameters.

Forward and backward pass, with recomputed activations.
"""
COPY_BYTES = 4e9
"""Bytes per second that one process copies from its GPU to host memory."""
WRITE_BYTES = 1e9
"""Bytes per second that all processes write to the run's storage."""
STEP_TOKENS = 3000
"""Tokens of prompt and response of a step whose screenshots have some 960 tokens each."""
ADAPTED_WIDTHS = 18
"""Sum of the inputs and outputs of a layer's seven matrices, in units of its width.

It is approximate, for an inner width of three.
"""
HORIZON = 20
"""Assumed horizon in steps of a training episode whose horizon its task decides."""
STEPS = 0.6
"""Assumed steps of an episode, as a share of its horizon."""


@dataclass(frozen=True)
class PolicySize:
    """Sizes of a policy."""

    parameters: float
    layers: int
    hidden: int
    vocabulary: int
    kv_width: int
    """Numbers in the keys of one token in one layer."""


def model_of(checkpoint: Path) -> PolicySize | None:
    """Return the sizes of a checkpoint from its configuration and weights.

    If the folder does not exist, the sizes are those of the Qwen3-VL model whose size its name
    holds; ``None`` if it holds none.
    """
    if (checkpoint / "config.json").exists():
        config = json.loads((checkpoint / "config.json").read_bytes())
        text = config.get("text_config", config)
        heads = int(text.get("num_attention_heads", 1))
        width = int(text.get("head_dim") or int(text["hidden_size"]) // heads)
        return PolicySize(
            count_parameters(checkpoint),
            int(text["num_hidden_layers"]),
            int(text["hidden_size"]),
            int(text["vocab_size"]),
            int(text.get("num_key_value_heads", heads)) * width,
        )
    named = re.search(r"(?<![\d.])(2|4|8)b\b", checkpoint.name, re.IGNORECASE)
    layers, hidden, parameters = {"2": (28, 2048, 2.1e9), "4": (36, 2560, 4.4e9), "8": (36, 4096, 8.8e9)}.get(
        named[1] if named else "", (0, 0, 0.0)
    )
    return PolicySize(parameters, layers, hidden, 151_936, 1024) if layers else None


def trainer_bytes(model: PolicySize, config: TrainConfig) -> float:
    """Return the largest memory of one trainer process in bytes.

    It is the sum of weights, gradients and Adam's state by ZeRO stage (Rajbhandari et al. 2020,
    section 3, with 2 + 4 + 12 bytes in bfloat16, as gradients add up in float32); of activations
    between the layers, times ten without recomputing; of logits with their gradient; and of the
    first policy if the loss needs it.
    """
    trainer = config.trainer
    item = 2 if trainer.bf16 else 4
    trained = trained_parameters(model, config)
    share = [1.0] * 3
    for stage, part in ((3, 0), (2, 1), (1, 2)):
        if trainer.zero_stage >= stage:
            share[part] = 1 / trainer.processes
    reference = item * model.parameters if config.algorithm.kl_coefficient and trained == model.parameters else 0
    state = reference + item * model.parameters * share[0] + 4 * trained * share[1] + 12 * trained * share[2]
    tokens = micro_batch_tokens(config)
    activations = item * tokens * model.hidden * model.layers * (1 if trainer.gradient_checkpointing else 10)
    responses = min(tokens, trainer.micro_batch_rows * config.policy.max_new_tokens)
    return state + activations + 4 * item * responses * model.vocabulary


def trained_parameters(model: PolicySize, config: TrainConfig) -> float:
    """Return the number of trained parameters: all, or those of the adapters of seven matrices."""
    if config.trainer.finetuning_type == "full":
        return model.parameters
    return ADAPTED_WIDTHS * config.trainer.lora_rank * model.hidden * model.layers


def state_bytes(model: PolicySize, config: TrainConfig) -> tuple[float, float]:
    """Return the bytes of a trainer state, and of the largest share that one process writes.

    12 bytes a trained parameter, weight and Adam's two moments in float32, are divided between
    processes from ZeRO 1 on. With ZeRO 1 and 2 the first process writes the weights as they are
    computed with too.
    """
    trainer = config.trainer
    trained = trained_parameters(model, config)
    weights = (2 if trainer.bf16 else 4) * trained if trainer.zero_stage in (1, 2) else 0.0
    moments = 12 * trained
    return moments + weights, moments / (trainer.processes if trainer.zero_stage else 1) + weights


def micro_batch_tokens(config: TrainConfig) -> int:
    """Return the number of tokens of a forward pass."""
    longest = config.policy.context_tokens or STEP_TOKENS * config.policy.max_images
    return config.trainer.micro_batch_tokens or config.trainer.micro_batch_rows * longest


def server_bytes(model: PolicySize, config: TrainConfig) -> tuple[float, float]:
    """Return the bytes on one GPU of a server: weights, and KV cache of all concurrent turns."""
    serving = config.serving
    turn = (config.policy.context_tokens or STEP_TOKENS * config.policy.max_images) + config.policy.max_new_tokens
    cache = 2 * 2 * model.kv_width * model.layers * turn * serving.max_turns
    return 2 * model.parameters / serving.tensor_parallel, cache / serving.tensor_parallel


def hours(model: PolicySize, config: TrainConfig) -> tuple[float, float]:
    """Return the hours of all rollouts and of all updates."""
    episodes = config.rollout.groups_per_iteration * config.episodes_per_group
    horizon = config.rollout.horizon
    steps = STEPS * (horizon.train if isinstance(horizon, FixedHorizon) else HORIZON) * episodes
    browsers = config.rollout.concurrency * config.cluster.workers
    tokens = steps * STEP_TOKENS * config.policy.max_images * config.trainer.epochs
    rate = TOKENS_PER_SECOND * config.trainer.processes / (model.parameters / 1e9)
    return config.iterations * steps * STEP_SECONDS / browsers / 3600, config.iterations * tokens / rate / 3600


def estimate(config: TrainConfig) -> list[str]:
    """Return a line on the needs of each process.

    Returns no lines for small policies, and for those of unknown size.
    """
    model = model_of(resolve_checkpoint(config.policy.checkpoint))
    if model is None or model.parameters < SMALL:
        return []
    weights, cache = server_bytes(model, config)
    version = 2 if config.trainer.bf16 else 4
    trained = trained_parameters(model, config)
    disk = version * (trained if config.trainer.adapter_rank else model.parameters)
    rolling, training = hours(model, config)
    browsers = config.rollout.concurrency
    versions, every = config.trainer.keep_policies, config.trainer.state_every
    # The newest ones, the first, the best, and one for each state.
    kept = min(versions + 2 + config.trainer.keep_states, config.iterations + 1) if versions else config.iterations + 1
    lines = [
        f"estimated for {model.parameters / 1e9:.1f} billion parameters, by formulas and not measured:",
        f"each of {config.trainer.processes} trainer processes: {trainer_bytes(model, config) / GIB:.0f} GiB",
    ]
    if config.serving.engine == "vllm":
        lines.append(
            f"each GPU of {config.serving.replicas} servers x {config.serving.tensor_parallel}: {weights / GIB:.0f} GiB of weights, "
            f"{cache / GIB:.0f} GiB for {config.serving.max_turns} turns"
        )
    state, share = state_bytes(model, config)
    writing, between = state / WRITE_BYTES, every * training * 3600 / config.iterations
    return [
        *lines,
        f"each of {config.cluster.workers} rollout workers: {browsers} pages, {browsers * BROWSER_BYTES / GIB:.0f} GiB of host memory",
        f"disk: {disk / GIB:.2f} GiB a version, {kept} of them; trainer state {state / GIB:.1f} GiB, "
        f"{config.trainer.keep_states} of them, one every {every} updates",
        f"each trainer state: {share / GIB:.1f} GiB of host memory of a process; training stands still for "
        f"{share / COPY_BYTES:.1f} s (a copy at {COPY_BYTES / 1e9:g} GB/s); written beside it in {writing:.0f} s "
        f"({WRITE_BYTES / 1e9:g} GB/s), {writing / between:.1%} of the time to the next",
        f"time: {rolling:.0f} h of rollouts at {STEP_SECONDS:g} s a step, {training:.0f} h of updates at "
        f"{TOKENS_PER_SECOND:.0f} tokens/s a GPU and billion parameters",
    ]
