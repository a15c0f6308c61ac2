"""``python -m tests.training.trainer.gradients RUN FOLDER`` on each rank: weights and metrics of
one update, for each way to divide it."""

from __future__ import annotations

import json
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


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:] or [*WAYS])
    import os

    sys.stdout.flush()
    os._exit(0)
