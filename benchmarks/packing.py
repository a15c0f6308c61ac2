"""Training passes over packed rows against padded ones, and what a rank needs to read a batch.

The padded passes are what this trainer did before: LLaMA-Factory's collator over a row a step, a
mask of the padding, and logits at each column in which any row has a response token. Episodes have
13 steps in the proportions of real ones, at a sixteenth of their tokens, and the model in the
proportions of Qwen3-VL-4B, image encoder included, as far as two cores allow.
"""

from __future__ import annotations

import io
import multiprocessing
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import orjson

from benchmarks import Figure
from envs.types import write_ids
from training.ledger.store import RunStore, write_json
from training.records.batches import BatchRow, TrainingBatch
from training.records.groups import StepShape
from training.trainer.spec import TrainerSpec

STEPS, EPISODES, ROUNDS = 13, 2, 4
"""Of the passes; ``ROUNDS`` is the window's."""
PICTURE, TEXT, LINE, RESPONSE = (280, 168), 120, 8, 12
"""Pixels of a picture (60 tokens), and tokens of a page, of a line on an older step, and of a
response."""
MICRO_TOKENS = 2048
"""Of a micro-batch: a sixteenth of 32,768, as in the presets of real sizes."""
TURNS = 2
"""Measured passes of each kind, in turns, after one to warm up."""
INPUT_EPISODES, INPUT_IDS, RANKS = 1024, 8192, 8
"""Of the batch that is read."""
COLLATED = 50
"""Micro-batches that are collated for the mean of one."""
UPDATE_SECONDS = 60
"""Of the update that waits for its rows and its first micro-batch. Threads collate the others."""


def packing_figures(folder: Path) -> list[Figure]:
    """Seconds of forward and backward passes, padded over packed, of contexts that append and of
    windows; and logits for each response token."""
    figures = []
    trainer = _trainer(folder)
    for context, target in (("append", ">= 3"), ("window", ">= 1.3")):
        rows = [row for episode in range(EPISODES) for row in _rows(trainer, context, episode)]
        padded, packed = _padded(trainer, rows), _packed(trainer, rows)
        seconds: dict[str, list[float]] = {"padded": [], "packed": []}
        for _ in range(TURNS + 1):
            for name, passes in (("padded", padded), ("packed", packed)):
                began = time.perf_counter()
                places = passes()
                seconds[name].append(time.perf_counter() - began)
                trainer.model.zero_grad()
                responses = sum(len(row.response_ids) for row in rows)
                if name == "padded":
                    before = places / responses
        tokens, best = sum(map(len, rows)), {name: min(values[1:]) for name, values in seconds.items()}
        figures += [
            Figure(f"{context}: tokens a second, padded", tokens / best["padded"], "tokens/s", ""),
            Figure(f"{context}: tokens a second, packed", tokens / best["packed"], "tokens/s", ""),
            Figure(f"{context}: packed / padded", best["padded"] / best["packed"], "ratio", target),
            Figure(f"{context}: logits for each response token, padded", before, "ratio", ""),
            Figure(f"{context}: logits for each response token, packed", places / responses, "ratio", "<= 1.05"),
        ]
    return figures


def _trainer(folder: Path) -> Any:
    from training.quiet import quiet_model_libraries

    quiet_model_libraries()
    from training.trainer.setup import build_trainer, set_threads
    from training.warm_start.tiny_checkpoint import TinyShape, build_model, build_tokenizer, save_checkpoint

    shape = TinyShape(hidden=256, layers=4, heads=8, kv_heads=4, intermediate=768, vision_width=160, vision_heads=5)
    tokenizer = build_tokenizer(shape.letter_merges_below)
    save_checkpoint(build_model(shape, tokenizer), tokenizer, folder / "checkpoint")
    store = RunStore(folder / "run")
    store.publish_policy(0, folder / "checkpoint", {})
    trainer = build_trainer(store, TrainerSpec(total_updates=1), 0)
    set_threads(0)
    trainer.model.train()
    return trainer


def _rows(trainer: Any, context: str, episode: int) -> list[Any]:
    """Rows of one episode's steps."""
    from PIL import Image

    from training.trainer.rows import TrainingRow

    convert = trainer.data_collator.tokenizer.convert_tokens_to_ids
    pad, start, end = convert(["<|image_pad|>", "<|vision_start|>", "<|vision_end|>"])
    tokens = PICTURE[0] * PICTURE[1] // 28**2
    seen = (start, *[pad] * tokens, end)
    rows, pictures = list[TrainingRow](), list[bytes]()
    for step in range(STEPS):
        buffer = io.BytesIO()
        Image.new("RGB", PICTURE, (step, episode, 200)).save(buffer, "JPEG")
        pictures.append(buffer.getvalue())
    for step in range(STEPS):
        page = tuple(10 + (step + index) % 200 for index in range(TEXT))
        answer = tuple(20 + (7 * step + index) % 200 for index in range(RESPONSE))
        first = 0 if context == "append" else max(0, step - ROUNDS)
        if context == "append":
            before = (*rows[-1].prompt_ids, *rows[-1].response_ids) if rows else ()
        else:
            rounds = [(*seen, *page[:LINE], *rows[index].response_ids) for index in range(first, step)]
            before = (*page[:LINE] * first, *(token for each in rounds for token in each))
        rows.append(
            TrainingRow(
                prompt_ids=(*before, *seen, *page),
                response_ids=answer,
                behaviour=(-1.0,) * RESPONSE,
                screenshots=tuple(pictures[first : step + 1]),
                advantage=1.0,
                episode_id=f"e{episode}",
                sequence=0 if context == "append" else step,
            )
        )
    return rows


def _plan(rows: Sequence[Any], sequences: Sequence[Any] | None) -> list[list[Any]]:
    from training.trainer.plan import plan_minibatches

    (minibatch,) = plan_minibatches(
        [len(row) for row in rows], len(rows), 4, 1, 0, 1, MICRO_TOKENS, sequences, [row.episode_id for row in rows]
    )
    return [[rows[slot.row] for slot in micro] for micro in minibatch]


def _packed(trainer: Any, rows: Sequence[Any]) -> Callable[[], int]:
    """Passes over packed rows; they return the number of logits' places."""
    import torch

    from training.algorithms.losses import packed_logprobs

    plan = _plan(rows, [(row.episode_id, row.sequence) for row in rows])
    micros = [trainer.data_collator.micro_batch(each, [True] * len(each)) for each in plan]

    def passes() -> int:
        places = 0
        for micro in micros:
            logits = trainer.model(**micro.inputs).logits
            torch.autograd.backward(packed_logprobs(logits, micro.targets)[0].sum())
            places += logits.shape[:-1].numel()
        return places

    return passes


def _padded(trainer: Any, rows: Sequence[Any]) -> Callable[[], int]:
    """The same over padded rows, with torch's attention under a mask."""
    import torch
    from llamafactory.data import SFTDataCollatorWith4DAttentionMask

    from training.algorithms.losses import IGNORE_INDEX, token_logprobs
    from training.trainer.collate import features_of

    collator, micros = trainer.data_collator, []
    for each in _plan(rows, None):
        inputs = SFTDataCollatorWith4DAttentionMask.__call__(collator, [features_of(row) for row in each])
        labels = inputs.pop("labels")[:, 1:]
        columns = (labels != IGNORE_INDEX).any(0).nonzero()[:, 0]
        micros.append(({**inputs, "logits_to_keep": columns, "use_cache": False}, labels[:, columns]))
    config = trainer.model.config.get_text_config()

    def passes() -> int:
        places, packed = 0, config._attn_implementation
        config._attn_implementation = "sdpa"
        for inputs, targets in micros:
            logits = trainer.model(**inputs).logits
            torch.autograd.backward(token_logprobs(logits, targets)[0].sum())
            places += logits.shape[:-1].numel()
        config._attn_implementation = packed
        return places

    return passes


def input_figures(folder: Path) -> list[Figure]:
    """Seconds and memory of the first of eight ranks that reads its rows of a batch."""
    store = RunStore(folder)
    _write_input(store)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        read, grown, collate = pool.apply(_read_share, (folder,))
    name = f"{INPUT_EPISODES} episodes x {STEPS} steps x {INPUT_IDS} ids, one of {RANKS} ranks"
    return [
        Figure(f"{name}: to read", read, "s", ""),
        Figure(f"{name}: to collate a micro-batch", 1000 * collate, "ms", ""),
        Figure(
            f"{name}: wait for input / an update of {UPDATE_SECONDS} s",
            (read + collate) / UPDATE_SECONDS,
            "ratio",
            "<= 0.03",
        ),
        Figure(f"{name}: largest memory", grown / 1e6, "MB", "<= 766"),
    ]


def _write_input(store: RunStore) -> None:
    rows = []
    for number in range(INPUT_EPISODES):
        name = f"e{number:04d}"
        steps = [
            {
                "prompt_ids": write_ids(
                    [1000 + (31 * number + 17 * step + index * index) % 150_000 for index in range(INPUT_IDS)]
                ),
                "response_ids": [number % 100 + index for index in range(64)],
                "logprobs": [-0.5 - index / 7 for index in range(64)],
                "screenshot": "",
                "context": [],
            }
            for step in range(STEPS)
        ]
        path = store.trajectory_path(name, "")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps({"episode_id": name, "steps": steps}))
        rows += [
            BatchRow(episode_id=name, step=step, advantage=1.0, shape=StepShape(INPUT_IDS, 64, step))
            for step in range(STEPS)
        ]
    batch = TrainingBatch(
        version=1,
        policy_version_before=0,
        algorithm="grpo",
        rows=tuple(rows),
        group_ids=tuple(f"g{number}" for number in range(INPUT_EPISODES // 8)),
        versions=((0, 0),) * len(rows),
        zero_variance_groups=0,
        episodes=INPUT_EPISODES,
    )
    write_json(store.batch_path(1), batch)


def _read_share(folder: Path) -> tuple[float, float, float]:
    """Seconds of one rank to read its rows and plan its micro-batches, the most that its process
    grows meanwhile, and seconds to collate a micro-batch."""
    from training.trainer.plan import Slot, plan_minibatches
    from training.trainer.rows import read_batch_file, read_rows

    def own(shapes: Sequence[StepShape], episodes: Sequence[str]) -> list[list[Slot]]:
        lengths = [shape.prompt + shape.response for shape in shapes]
        plan = plan_minibatches(lengths, 400, 4, RANKS, 0, 1, 16_384, [*zip(episodes, shapes, strict=True)])
        return [micro for minibatch in plan for micro in minibatch[::RANKS]]

    store = RunStore(folder)
    Path("/proc/self/clear_refs").write_text("5")
    before, began = _bytes("VmRSS"), time.perf_counter()
    batch, _ = read_batch_file(store, 1)
    rows = read_rows(store, batch, own=lambda *named: {slot.row for micro in own(*named) for slot in micro})
    micros = own([row.shape for row in rows], [row.episode_id for row in rows])
    seconds, grown = time.perf_counter() - began, _bytes("VmHWM") - before
    assert RANKS * sum(bool(row.prompt_ids) for row in rows) >= len(rows)
    collator = _trainer(folder / "model").data_collator
    began = time.perf_counter()
    for micro in micros[:COLLATED]:
        collator.micro_batch([rows[slot.row] for slot in micro], [slot.counts for slot in micro])
    return seconds, float(grown), (time.perf_counter() - began) / COLLATED


def _bytes(name: str) -> int:
    """Memory of this process, as the kernel says it."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])
