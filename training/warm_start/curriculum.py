"""Batches of pre-training: samples become token ids, loss weights and images.

Each of four phases keeps the earlier ones in the mix, because the circuits of reading appear
suddenly, after many varied examples:

0. repeated random tokens (copying), and lookups: a page, then many of its labels with their numbers
   (matching);
1. more lookups, and pages with many tasks in the true chat format: many answers per token of page;
2. the true format, one task per page, all skills;
3. the same with an image in a share of the prompts, so that reading does not depend on where the
   text begins.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from envs.prompts import element_line
from envs.types import format_action
from training.warm_start import synthetic
from training.warm_start.recipe import PretrainStage, Recipe
from training.warm_start.synthetic import VIEWPORT, Sample

# Text that LLaMA-Factory's template qwen2_vl puts around the turns; tests compare it with
# training.policy.renderer, token by token.
SYSTEM = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
USER, ASSISTANT, END = "<|im_start|>user\n", "<|im_start|>assistant\n", "<|im_end|>"

PATCH = 14
"""Side of a patch in pixels. The model merges 2 x 2 patches into one token."""
GRID = (1, VIEWPORT[1] // PATCH, VIEWPORT[0] // PATCH)
"""Size of a screenshot in patches: time, height, width."""
IMAGE = "<|vision_start|>" + "<|image_pad|>" * (GRID[1] * GRID[2] // 4) + "<|vision_end|>\n"
"""Text of an image: one placeholder per merged patch."""
PATCH_VALUES = 3 * 2 * PATCH * PATCH
"""Number of values of a patch: colours x frames (an image counts twice) x pixels."""

SHARES = ((0.6, 0.3, 0.1, 0.0), (0.15, 0.35, 0.4, 0.1), (0.05, 0.15, 0.15, 0.65), (0.03, 0.1, 0.12, 0.75))
"""Shares of repeated tokens, lookups, many-task pages and single prompts in each phase. With a
share of 0.2 of repeats in phase 0 copying did not form."""

Segment = tuple[str, float]
"""Text, and the loss weight of its tokens."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Token ids and loss weights of one step, padded on the right."""

    ids: Tensor
    """``[batch, length]`` int64 token ids."""
    weights: Tensor
    """``[batch, length]`` float32 loss weights."""
    patches: Tensor | None = None
    """``[batch * patches, PATCH_VALUES]`` pixels; ``None`` for prompts without an image."""


def batches(tokenizer: Any, recipe: Recipe, stage: PretrainStage, seed: int = 0) -> Iterator[tuple[str, Batch]]:
    """Yield the kind and batch of each step of a stage.

    ``seed`` is the run's and is added to the stage's.
    """
    seed += stage.seed
    rng = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    single, many = synthetic.samples(seed), synthetic.many_tasks(seed)
    vocabulary = range(len(tokenizer) - len(tokenizer.all_special_tokens))
    for step in range(stage.steps):
        progress = step / stage.steps
        phase = sum(progress >= end for end in stage.phase_ends)
        kind = rng.choices(["repeat", "lookup", "many", "single"], SHARES[phase])[0]
        if kind == "repeat":
            yield kind, repeated_tokens(rng, vocabulary)
        elif kind == "lookup":
            rows = [lookup_segments(rng, tasks) for tasks in itertools.islice(many, 10)]
            yield kind, collate(tokenizer, rows)
        elif kind == "many":
            rows = [chat_segments(tasks, recipe.prompt_weight) for tasks in itertools.islice(many, 8)]
            yield kind, collate(tokenizer, rows)
        else:
            image = phase == len(stage.phase_ends) and rng.random() < recipe.image_share
            rows = [chat_segments([sample], recipe.prompt_weight, image) for sample in itertools.islice(single, 32)]
            yield kind, collate(tokenizer, rows, random_patches(generator, 32) if image else None)


def chat_segments(samples: Sequence[Sample], prompt_weight: float, image: bool = False) -> list[Segment]:
    """Return one conversation: the page once, then a task and its answer for every sample."""
    page, task = synthetic.render_sample(samples[0])
    segments = [(SYSTEM + USER + (IMAGE if image else "") + page, 0.0)]
    for index, sample in enumerate(samples):
        if index:
            segments.append((f"\n{USER}", 0.0))
            task = synthetic.render_sample(sample)[1]
        segments += [(task, prompt_weight), (f"{END}\n{ASSISTANT}", 0.0), (format_action(sample.action) + END, 1.0)]
    return segments


def lookup_segments(rng: random.Random, tasks: Sequence[Sample], queries: int = 12) -> list[Segment]:
    """Return a page, then many of its labels, each followed by its number.

    The distance from the page grows. This teaches the pointer from a label to its number.
    """
    page, _ = synthetic.render_sample(tasks[0])
    elements = tasks[0].observation.elements
    role = element_line(elements[0]).split()[1]
    segments = [(SYSTEM + USER + page, 0.0)]
    for _ in range(queries):
        element = elements[rng.randint(1, len(elements)) - 1]
        before, after = rng.choice(
            [("", ""), ("", "\n"), ('the "', '"'), ('"', '" '), (" ", "."), ('on "', f'" {role}.\n')]
        )
        number = element_line(element).split()[0]
        segments += [(before + element.text + after, 0.0), (number, 1.0), ("\n", 0.0)]
    return segments


def repeated_tokens(rng: random.Random, vocabulary: Sequence[int], rows: int = 24, length: int = 96) -> Batch:
    """Make random segments that repeat after random gaps; only the predictable repeats count."""
    ids, weights = [], []
    for _ in range(rows):
        segment = rng.choices(vocabulary, k=rng.randint(4, 32))
        row, weight = list(segment), [0.0] * len(segment)
        while len(row) < length:
            gap = rng.choices(vocabulary, k=rng.randint(0, 12))
            row += gap + segment
            weight += [0.0] * (len(gap) + 1) + [1.0] * (len(segment) - 1)
        ids.append(row[:length])
        weights.append(weight[:length])
    return Batch(torch.tensor(ids), torch.tensor(weights))


def collate(tokenizer: Any, rows: Sequence[Sequence[Segment]], patches: Tensor | None = None) -> Batch:
    """Tokenize segments one by one and pad the rows.

    The borders of segments are token borders in rollouts too.
    """
    encoded = iter(tokenizer([text for row in rows for text, _ in row]).input_ids)
    ids, weights = [], []
    for row in rows:
        parts = [(next(encoded), weight) for _, weight in row]
        ids.append(torch.tensor([token for part, _ in parts for token in part]))
        weights.append(torch.tensor([weight for part, weight in parts for _ in part]))
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True, padding_value=tokenizer.pad_token_id)
    return Batch(padded, torch.nn.utils.rnn.pad_sequence(weights, batch_first=True), patches)


def random_patches(generator: torch.Generator, rows: int) -> Tensor:
    """Return meaningless images, ``[rows * patches, PATCH_VALUES]``: flat, striped or noisy.

    With them the policy learns to read whatever the picture is.
    """
    patches = GRID[1] * GRID[2]
    flat = torch.randn(rows, 1, 1, generator=generator) + torch.zeros(rows, patches, PATCH_VALUES)
    per_patch = torch.randn(rows, patches, 1, generator=generator) * torch.rand(rows, 1, 1, generator=generator)
    noise = torch.randn(rows, patches, PATCH_VALUES, generator=generator) * torch.rand(rows, 1, 1, generator=generator)
    return (flat + per_patch + noise).reshape(rows * patches, PATCH_VALUES)
