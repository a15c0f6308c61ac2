"""Pre-trains a tiny random Qwen2-VL to match words and copy quoted text.

It learns to read: to match the words of a task to a label.

    python -m training.warm_start.pretrain OUT    # the shipped recipe: 11 to 15 minutes of a core
    python -m training.warm_start.pretrain OUT --recipe recipe.json --seed 3

Reinforcement learning cannot find these circuits by itself: without them every answer is a guess.
``OUT`` gets a checkpoint folder for each stage, ``stage-1`` and so on, with settings, held-out
scores and seconds in ``stage.json``. A folder gets its final name when it is complete, and an
existing stage is not trained again.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen2VLForConditionalGeneration

from envs.types import PolicyError
from training.ledger.checkpoint_files import commit_folder
from training.ledger.disk import temporary_name
from training.ledger.store import read_json, write_json
from training.quiet import quiet_model_libraries
from training.trainer.control.processes import start_watchdog
from training.warm_start.curriculum import GRID, Batch, batches, chat_segments, collate, random_patches
from training.warm_start.reading_heads import write_reading_heads
from training.warm_start.recipe import PretrainStage, Recipe, stage_path
from training.warm_start.synthetic import SKILLS
from training.warm_start.tiny_checkpoint import (
    NUMBER_TOKENS,
    TinyShape,
    build_model,
    build_tokenizer,
    save_checkpoint,
)

logger = logging.getLogger(__name__)

REPORT_STEPS = 50
"""Number of steps between two lines of the log."""

Scores = dict[str, dict[str, float]]
"""Scores as ``{skill: {greedy, sampled}}``, see `evaluate_skills`."""


def pre_train(recipe: Recipe, folder: Path, seed: int = 0) -> Path:
    """Train the missing stages and return the last one's checkpoint.

    Raises:
        PolicyError: A stage in ``folder`` has other settings.
    """
    torch.set_num_threads(recipe.threads)
    for number, stage in enumerate(recipe.stages, 1):
        target = stage_path(folder, number)
        made_with = {"recipe": recipe.model_dump(mode="json"), "stage": number, "seed": seed}
        if (target / "stage.json").exists():
            known = read_json(target / "stage.json")
            if any(known[name] != value for name, value in made_with.items()):
                raise PolicyError(f"{target} was made with another recipe or seed; give another folder")
            continue
        model, tokenizer = initial_policy(seed)
        if number > 1:
            model = load_model(stage_path(folder, number - 1))
        started = time.perf_counter()
        for step, accuracy in train_stage(model, tokenizer, recipe, stage, seed):
            logger.info(
                "stage %d step %d  %.0f s  token accuracy %s", number, step, time.perf_counter() - started, accuracy
            )
        seconds = time.perf_counter() - started
        held_out = {
            name: evaluate_skills(model, tokenizer, recipe.held_out, image=name == "image")
            for name in ("text", "image")
        }
        logger.info("stage %d held out: %s", number, json.dumps(held_out))
        temporary = temporary_name(target)
        save_checkpoint(model, tokenizer, temporary)
        write_json(temporary / "stage.json", {**made_with, "held_out": held_out, "seconds": seconds})
        shutil.rmtree(target, ignore_errors=True)
        commit_folder(temporary, target)
    return stage_path(folder, len(recipe.stages))


def initial_policy(seed: int = 0) -> tuple[Any, Any]:
    """Return model and tokenizer before the first step: random weights with reading heads."""
    shape = TinyShape(seed=seed)
    tokenizer = build_tokenizer(shape.letter_merges_below)
    model = build_model(shape, tokenizer)
    write_reading_heads(
        model.model.language_model, tokenizer.convert_tokens_to_ids(NUMBER_TOKENS), shape.rope_theta, shape.seed
    )
    return model, tokenizer


def load_model(checkpoint: Path) -> Any:
    """Load the model of a ``save_checkpoint`` folder; every stage has the same tokenizer."""
    return Qwen2VLForConditionalGeneration.from_pretrained(checkpoint, dtype=torch.float32)


def train_stage(
    model: Any, tokenizer: Any, recipe: Recipe, stage: PretrainStage, seed: int = 0
) -> Iterator[tuple[int, dict[str, float]]]:
    """Train a stage; yield its progress every 50 steps and at the end.

    Progress is (steps taken, accuracy of answer tokens by kind of batch).
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=stage.learning_rate, betas=(0.9, 0.98), weight_decay=0.01)
    recent: defaultdict[str, list[float]] = defaultdict(list)
    for step, (kind, batch) in enumerate(batches(tokenizer, recipe, stage, seed)):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, stage)
        losses, correct, weights = token_losses(model, batch)
        loss = (losses * weights).sum() / weights.sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent[kind].append(correct[weights == 1.0].float().mean().item())
        if (step + 1) % REPORT_STEPS == 0 or step + 1 == stage.steps:
            yield step + 1, {name: round(sum(values) / len(values), 3) for name, values in sorted(recent.items())}
            recent.clear()


def learning_rate(step: int, stage: PretrainStage) -> float:
    """Return the rate of a step: linear warm-up, then a cosine down to a twentieth."""
    if step < stage.warm_up:
        return stage.learning_rate * (step + 1) / stage.warm_up
    progress = (step - stage.warm_up) / max(1, stage.steps - stage.warm_up)
    return stage.learning_rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * progress)))


def hidden_states(model: Any, batch: Batch) -> Tensor:
    """Return the last hidden states ``[batch, length, hidden]``.

    Padding is on the right, so the causal mask alone hides it.
    """
    if batch.patches is None:
        text: Tensor = model.model.language_model(input_ids=batch.ids, use_cache=False).last_hidden_state
        return text
    model.model.rope_deltas = None  # the offset of an earlier call would shift these positions
    hidden: Tensor = model.model(
        input_ids=batch.ids,
        pixel_values=batch.patches,
        image_grid_thw=torch.tensor([GRID] * len(batch.ids)),
        mm_token_type_ids=(batch.ids == model.config.image_token_id).int(),
        use_cache=False,
    ).last_hidden_state
    return hidden


def token_losses(model: Any, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Return cross-entropy, correctness and weight of all tokens with a positive weight.

    The three tensors are flat, in the order of rows.
    """
    counted = batch.weights[:, 1:] > 0
    hidden = hidden_states(model, batch)[:, :-1][counted]
    targets = batch.ids[:, 1:][counted]
    logits = model.lm_head(hidden)
    losses = functional.cross_entropy(logits, targets, reduction="none")
    return losses, logits.argmax(-1) == targets, batch.weights[:, 1:][counted]


@torch.no_grad()
def evaluate_skills(model: Any, tokenizer: Any, per_skill: int, image: bool = False) -> Scores:
    """Measure each skill on fresh samples, which training draws from other seeds.

    ``greedy`` is the share of exactly right greedy answers; ``sampled`` is the mean probability of
    the whole right answer when sampled at T = 1. Teacher forcing gives both exactly: greedy
    decoding is right when every token of the answer is the argmax, and the probability of an answer
    is the product of its tokens' probabilities.
    """
    scores = {}
    for name, (make, _) in SKILLS.items():
        rng = random.Random(f"held-out-{name}")
        rows = [chat_segments([make(rng)], 0.0, image) for _ in range(per_skill)]
        generator = torch.Generator().manual_seed(7)
        batch = collate(tokenizer, rows, random_patches(generator, per_skill) if image else None)
        losses, correct, _ = token_losses(model, batch)
        lengths = (batch.weights[:, 1:] > 0).sum(1).tolist()
        greedy = sum(float(part.all()) for part in torch.split(correct, lengths)) / per_skill
        sampled = sum(math.exp(-float(part.sum())) for part in torch.split(losses, lengths)) / per_skill
        scores[name] = {"greedy": round(greedy, 3), "sampled": round(sampled, 3)}
    return scores


def main(arguments: list[str]) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m training.warm_start.pretrain")
    parser.add_argument("out", type=Path, help="folder of the stages")
    parser.add_argument("--recipe", type=Path, help="JSON file of a Recipe; the shipped one when absent")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--owner-pid", type=int, help="end when this process is gone")
    parser.add_argument("--owner-started", type=float, help="its start time (psutil), against reuse of the pid")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", force=True)
    if options.owner_pid is not None:
        start_watchdog(options.owner_pid, options.owner_started)
    quiet_model_libraries()
    recipe = Recipe.model_validate(read_json(options.recipe)) if options.recipe else Recipe()
    try:
        logger.info("checkpoint: %s", pre_train(recipe, options.out, options.seed))
    except PolicyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
