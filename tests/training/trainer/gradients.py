"""``python -m tests.training.trainer.gradients RUN FOLDER WAY…`` on each rank: weights and metrics
of one update for each way to divide it; before them `check_numbers` and `check_reduction`, if
`NUMBERS` or `REDUCTION` is among the ways."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.ledger.store import RunStore
from training.quiet import quiet_model_libraries
from training.trainer.rows import read_batch_file, read_rows
from training.trainer.spec import TrainerSpec
from training.trainer.update import Stopwatch, run_update

from .conftest import make_spec

SCALE = 3.0
"""Of the advantages, so that steps are large beside the rounding of the weights that they are added
to."""
LONG = 600
"""Tokens of a micro-batch: several rows."""
SHORT = 100
"""Each row alone."""
METRICS = "metrics.json"
NUMBERS, REDUCTION = "numbers", "reduction"
MICROS = 32
"""Micro-batches of one step: enough for sums in bfloat16 to be off, and a power of two, by which
division is exact."""
CONTROL = "control"
"""One row's advantage is a thousandth larger."""
WAYS: dict[str, dict[str, Any]] = {
    "one": {"micro_batch_rows": 16},
    "rows": {"micro_batch_rows": 2},
    "long": {"micro_batch_tokens": LONG},
    "short": {"micro_batch_tokens": SHORT},
    CONTROL: {"micro_batch_rows": 2},
    "zero0": {"micro_batch_rows": 2, "zero_stage": 0},
    "zero3": {"micro_batch_rows": 2, "zero_stage": 3},
}
"""Divisions of one optimiser step; ZeRO 2 unless a stage is named. The last one leaves transformers
in its mode."""


def spec_of(way: str) -> TrainerSpec:
    """A step of Adam that is smooth in the gradient (its epsilon is as large), so that it shows how
    large that is."""
    smooth = {"learning_rate": 1.0, "max_grad_norm": 1e9, "llamafactory": {"adam_epsilon": 1.0}}
    return make_spec(total_updates=1, trainer={**smooth, **WAYS[way]})


def main(run: Path, folder: Path, ways: list[str]) -> None:
    quiet_model_libraries()
    from training.trainer.setup import build_trainer, set_threads

    store = RunStore(run)
    batch, _ = read_batch_file(store, 1)
    for way in ways:
        trainer = build_trainer(store, spec_of(way), 0)
        set_threads(1)
        assert trainer.is_deepspeed_enabled
        rows = [replace(row, advantage=SCALE * row.advantage) for row in read_rows(store, batch)]
        if way == CONTROL:
            rows[0] = replace(rows[0], advantage=1.001 * rows[0].advantage)
        metrics = run_update(trainer, batch, rows, Stopwatch())
        (folder / way).mkdir(exist_ok=True)
        if trainer.args.should_save:
            (folder / way / METRICS).write_text(json.dumps(metrics))
        trainer.save_weights(folder / way)


def check_numbers(run: Path, folder: Path) -> None:
    """Write gradient norms of `MICROS` micro-batches in bfloat16, and whether gradients moved
    weights that are not finite. The rate is too low to change a weight in bfloat16."""
    quiet_model_libraries()
    import torch

    from training.trainer.setup import build_trainer, set_threads

    store, found = RunStore(run), dict[str, Any]()
    batch, _ = read_batch_file(store, 1)
    rows = read_rows(store, batch)
    for stage, bf16 in ((2, True), (1, True), (3, True), (0, False), (1, False), (2, False), (3, False)):
        settings = {"zero_stage": stage, "bf16": bf16, "max_grad_norm": 1e9, "learning_rate": 1e-12}
        # Without which LLaMA-Factory refuses bfloat16 on a CPU.
        settings |= {"llamafactory": {"use_cpu": True}} if bf16 else {}
        trainer = build_trainer(store, make_spec(trainer=settings, algorithm={"proximal": "behaviour"}), 0)
        set_threads(1)
        micros = [trainer.data_collator.micro_batch([rows[index % len(rows)]], [True]) for index in range(MICROS)]
        weights = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
        if "expected" not in found:
            sums = [torch.zeros(weight.shape) for weight in weights]
            for micro in micros:
                loss = trainer.compute_loss(trainer.model.train(), {"micro": micro})
                for total, gradient in zip(sums, torch.autograd.grad(loss, weights), strict=True):
                    total += gradient.float()
            found["expected"] = float(torch.cat([total.flatten() for total in sums]).norm()) / MICROS
        # What this process holds of each, under ZeRO 3.
        held = [getattr(weight, "ds_tensor", weight) for weight in weights]
        before = [weight.detach().clone() for weight in held]
        for advantage in (math.nan, math.inf):
            poisoned = trainer.data_collator.micro_batch([replace(rows[1], advantage=advantage)], [True])
            try:
                trainer.optimizer_step([micros[0], poisoned], 2.0)
            except FloatingPointError:
                same = all(torch.equal(old, new) for old, new in zip(before, held, strict=True))
                found[f"{stage} {bf16} {advantage}"] = "refused, and moved nothing" if same else "moved weights"
            if not stage:
                trainer.model_wrapped.zero_grad()
        if bf16:
            found[f"norm {stage}"] = trainer.optimizer_step(micros, float(MICROS))[1]
            found[f"one {stage}"] = trainer.optimizer_step(micros[:1], 1.0)[1]
            found[f"copies {stage}"] = trainer.optimizer_step(micros[:1] * MICROS, float(MICROS))[1]
            found[f"masters {stage}"] = _load_one_changed_weight(trainer, folder / f"policy{stage}")
    (folder / METRICS).write_text(json.dumps(found))


def check_reduction(run: Path, folder: Path) -> None:
    """Write how far the gradient of two ranks' rows in bfloat16 is from the float32 sum of theirs,
    and how far a sum in bfloat16 is, as shares of its norm; by ZeRO stage."""
    quiet_model_libraries()
    import torch
    from deepspeed.utils import safe_get_full_fp32_param

    from training.trainer.setup import build_trainer, set_threads

    store, shares = RunStore(run), dict[str, list[float]]()
    batch, _ = read_batch_file(store, 1)
    rows = read_rows(store, batch)
    for stage in (1, 2):
        smooth = {"learning_rate": 1.0, "max_grad_norm": 1e9, "llamafactory": {"adam_epsilon": 1.0, "use_cpu": True}}
        spec = make_spec(total_updates=1, trainer={**smooth, "zero_stage": stage, "bf16": True, "processes": 2})
        trainer = build_trainer(store, spec, 0)
        set_threads(1)
        micro = trainer.data_collator.micro_batch([rows[trainer.args.process_index]], [True])
        weights = [parameter for parameter in trainer.model.parameters() if parameter.requires_grad]
        trainer._normaliser = 1.0
        own = torch.autograd.grad(trainer.compute_loss(trainer.model.train(), {"micro": micro}), weights)
        sums = [torch.cat([each.flatten() for each in own]).to(dtype) for dtype in (torch.float32, torch.bfloat16)]
        for each in sums:
            torch.distributed.all_reduce(each)
        for group in trainer.model_wrapped.optimizer.param_groups:
            group["lr"] = 1.0
        before = [safe_get_full_fp32_param(weight).clone() for weight in weights]
        trainer.optimizer_step([micro], 1.0)
        pairs = zip(before, map(safe_get_full_fp32_param, weights), strict=True)
        step = torch.cat([(old - new).double().flatten() for old, new in pairs])
        gradient = step / (1 - step.abs())  # of Adam's first step, whose rate and epsilon are 1
        exact = sums[0].double()
        factor = torch.dot(gradient, exact) / torch.dot(exact, exact)
        rounded = sums[1].double()
        gaps = (gradient / factor - exact, rounded - exact)
        shares[str(stage)] = [float(factor), *(float(gap.norm() / exact.norm()) for gap in gaps)]
    if trainer.args.should_save:
        (folder / METRICS).write_text(json.dumps(shares))


def _load_one_changed_weight(trainer: Any, folder: Path) -> str:
    """Load the trainer's own weights with one changed; what became of the float32 copies."""
    import torch
    from deepspeed.utils import safe_get_full_fp32_param, safe_set_full_fp32_param
    from safetensors.torch import load_file, save_file

    weights = {name: weight for name, weight in trainer.model.named_parameters() if weight.requires_grad}
    for weight in weights.values():  # by less than bfloat16 shows
        safe_set_full_fp32_param(weight, safe_get_full_fp32_param(weight) * (1 + 2**-12))
    masters = {name: safe_get_full_fp32_param(weight).clone() for name, weight in weights.items()}
    folder.mkdir()
    trainer.save_weights(folder)
    file = folder / "model.safetensors"
    stored = load_file(file)
    name = next(name for name in stored if "down_proj" in name)
    stored[name][0, 0] = changed = stored[name][0, 0] * 2
    save_file(stored, file, metadata={"format": "pt"})
    largest = trainer.load_weights(folder)
    assert largest == abs(float(changed)) / 2 > 0
    (ours,) = (own for own in masters if own.endswith(name.removeprefix("model.")))
    masters[ours][0, 0] = changed
    after = {own: safe_get_full_fp32_param(weight) for own, weight in weights.items()}
    wrong = [own for own, master in masters.items() if not torch.equal(master, after[own])]
    rounded = all(torch.equal(master, master.bfloat16().float()) for master in masters.values())
    return "kept" if not wrong and not rounded else f"{len(wrong)} of {len(masters)} differ: {wrong[:3]}"


if __name__ == "__main__":
    run, folder, ways = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
    if NUMBERS in ways:
        check_numbers(run, folder)
    if REDUCTION in ways:
        check_reduction(run, folder)
    main(run, folder, [way for way in ways if way not in (NUMBERS, REDUCTION)])
    import os

    sys.stdout.flush()
    os._exit(0)
