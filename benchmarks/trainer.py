"""One update by the real trainer process: rows per second, start, publishing, and what it costs
over plain torch on the same rows.

Plain torch is the model's forward, a cross entropy, backward and AdamW over the same collated
micro-batches, as many passes as the update makes; it has no proximal pass, no policy loss, no
LLaMA-Factory and no DeepSpeed around it. Plain fine-tuning (`benchmarks.sft`) has the latter two.
"""

from __future__ import annotations

import io
import json
import random
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import Figure
from benchmarks.packing import input_figures, packing_figures
from benchmarks.rows import ROWS, make_spec, make_store, quickstart, write_batch
from benchmarks.sft import seconds_of_sft
from tasks_lib.config import TrainConfig
from training.ledger.store import RunStore
from training.trainer.control.launch import TrainerProcess

UPDATES = 3
"""The first one warms up (allocator, file cache) and is left out."""
PATIENCE = 600.0
WIDTH, HEIGHT = 1280, 768
"""Of the screenshots of real sites."""


def run() -> list[Figure]:
    """Figures of the mean update after the first."""
    config = quickstart()
    with tempfile.TemporaryDirectory(prefix="rollwright-trainer-") as folder:
        store = make_store(Path(folder) / "run", config)
        other = RunStore(shutil.copytree(store.root, Path(folder) / "one-step"))
        ready, parts = _updates(store, config)
        bare, sft = _plain_torch(store, config), seconds_of_sft(store)
        _, one = _updates(other, _one_step(config))
        one_sft = seconds_of_sft(other)
        window = _window(store, Path(folder) / "window")
        packing = packing_figures(Path(folder) / "packing")
        reading = input_figures(Path(folder) / "input")
    publish = parts["save_state"] + parts["save_policy"]
    update = sum(parts.values()) - publish
    return [
        Figure("start to ready", ready, "s", ""),
        Figure("update without publishing", update, "s", ""),
        Figure("rows per second of an update", ROWS / update, "rows/s", ""),
        Figure("publish (state and policy)", publish, "s", ""),
        Figure("plain torch, the same passes", bare, "s", ""),
        Figure("training passes / plain torch", parts["train"] / bare, "ratio", ""),
        Figure("whole update / plain torch", (update + publish) / bare, "ratio", ""),
        Figure("training passes / plain fine-tuning", parts["train"] / sft["steps"], "ratio", "<= 1.05"),
        Figure(
            "whole update / plain fine-tuning",
            (update + publish) / sft["whole"],
            "ratio",
            f"<= {1.05 + 1 / (3 * config.trainer.epochs):.4g}",
        ),
        Figure("whole update of one step / plain fine-tuning", sum(one.values()) / one_sft["whole"], "ratio", "<= 1.1"),
        *window,
        *packing,
        *reading,
    ]


def _one_step(config: TrainConfig) -> TrainConfig:
    """One optimiser step an update: the proximal log-probs are then the step's own, without a pass
    for them."""
    trainer = config.trainer.model_copy(update={"epochs": 1, "minibatch_rows": ROWS})
    return config.model_copy(update={"trainer": trainer})


def _updates(store: RunStore, config: TrainConfig) -> tuple[float, dict[str, float]]:
    """Seconds from start to ready, and mean seconds of the parts of an update."""
    started = time.perf_counter()
    with TrainerProcess.start(store.root, make_spec(store, config, UPDATES)) as trainer:
        trainer.wait_until_ready(PATIENCE)
        ready = time.perf_counter() - started
        measured = []
        for version in range(1, UPDATES + 1):
            write_batch(store, version)
            measured.append(trainer.wait_for_policy(version, PATIENCE)["seconds"])
    kept = measured[1:]
    return ready, {name: sum(seconds[name] for seconds in kept) / len(kept) for name in kept[0]}


def _plain_torch(store: RunStore, config: TrainConfig) -> float:
    """Seconds of the update's epochs over the rows of version 1, after one warm pass."""
    import torch

    from training.algorithms.losses import IGNORE_INDEX

    model, micros = load_model_and_micros(store, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.trainer.learning_rate)

    def epoch() -> None:
        for minibatch in micros:
            for micro in minibatch:
                logits = model(**micro.inputs).logits
                chosen = micro.targets[micro.targets != IGNORE_INDEX]
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), chosen)
                torch.autograd.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    epoch()
    started = time.perf_counter()
    for _ in range(config.trainer.epochs):
        epoch()
    return time.perf_counter() - started


def _window(store: RunStore, folder: Path) -> list[Figure]:
    """Of a row with a window of five screenshots of 1280 x 768 (drawn ones, of lines and boxes), at
    28 x 28 pixels a token."""
    from training.trainer.rows import TrainingRow
    from training.trainer.setup import build_trainer

    pictures = tuple(_drawn_page(number) for number in range(5))
    wide = RunStore(folder)
    shutil.copytree(store.policy_path(0), wide.policy_path(0))
    path = wide.policy_path(0) / "preprocessor_config.json"
    processor = json.loads(path.read_bytes())
    processor["size"]["longest_edge"] = processor["max_pixels"] = WIDTH * HEIGHT
    path.write_text(json.dumps(processor))
    collator = build_trainer(wide, make_spec(store, quickstart(), 1), 0).data_collator
    pad = collator.tokenizer.convert_tokens_to_ids(collator.template.mm_plugin.image_token)
    start, end = collator.tokenizer.convert_tokens_to_ids(["<|vision_start|>", "<|vision_end|>"])
    tokens = round(WIDTH / 28) * round(HEIGHT / 28)
    row = TrainingRow(
        prompt_ids=(start, *[pad] * tokens, end) * len(pictures),
        response_ids=(end,) * 64,
        behaviour=(-1.0,) * 64,
        screenshots=pictures,
        advantage=1.0,
    )
    seconds = []
    for _ in range(4):
        began = time.perf_counter()
        micro = collator.micro_batch([row], [True])
        seconds.append(time.perf_counter() - began)
    return [
        Figure("window of 5 screenshots, on disk", sum(map(len, pictures)) / 1e6, "MB", ""),
        Figure("window of 5 screenshots, collated", micro.nbytes() / 1e6, "MB", ""),
        Figure("window of 5 screenshots, to collate", 1000 * min(seconds[1:]), "ms", ""),
    ]


def _drawn_page(seed: int) -> bytes:
    """A JPEG with about as much on it as a page has."""
    from PIL import Image, ImageDraw

    rng, page = random.Random(seed), Image.new("RGB", (WIDTH, HEIGHT), "white")
    draw = ImageDraw.Draw(page)
    for top in range(8, HEIGHT - 12, 16):
        draw.text((rng.randrange(20, 300), top), " ".join(str(rng.getrandbits(40)) for _ in range(12)), fill="black")
    for _ in range(20):
        left, top = rng.randrange(WIDTH - 120), rng.randrange(HEIGHT - 40)
        colour = tuple(rng.randrange(256) for _ in range(3))
        draw.rectangle((left, top, left + 110, top + 30), fill=colour)
    buffer = io.BytesIO()
    page.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def load_model_and_micros(store: RunStore, config: TrainConfig) -> tuple[Any, list[list[Any]]]:
    """The policy of version 0, and the micro-batches of each minibatch as the trainer plans and
    collates them."""
    from training.quiet import quiet_model_libraries

    quiet_model_libraries()
    from training.trainer.plan import plan_minibatches
    from training.trainer.rows import read_rows
    from training.trainer.setup import build_trainer, set_threads

    spec = make_spec(store, config, UPDATES)
    trainer = build_trainer(store, spec, 0)
    set_threads(spec.trainer.torch_threads)
    rows = read_rows(store, write_batch(store, 1), spec.banned_ids)
    settings = config.trainer
    plan = plan_minibatches(
        [len(row) for row in rows], settings.minibatch_rows, settings.micro_batch_rows, 1, spec.seed, 1
    )
    collate = trainer.data_collator.micro_batch
    micros = [
        [collate([rows[slot.row] for slot in slots], [slot.counts for slot in slots]) for slots in minibatch]
        for minibatch in plan
    ]
    return trainer.model.train(), micros
