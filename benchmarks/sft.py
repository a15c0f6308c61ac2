"""Plain fine-tuning by LLaMA-Factory on the rows of an update: its own trainer, collator and
DeepSpeed, in a process of its own.

It is what an update is compared with: the same tokens in the same micro-batches, a cross entropy,
no proximal pass, nothing published.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from training.ledger.store import RunStore
from training.trainer.control.launch import group_environment
from training.trainer.control.processes import project_root
from training.trainer.spec import read_spec


def seconds_of_sft(store: RunStore) -> dict[str, float]:
    """Seconds of the epochs of the store's trainer over the batch of version 1: of its ``steps``
    alone, and with collating (``whole``)."""
    import os

    variables = group_environment(read_spec(store))
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.sft", str(store.root)],
        env={**os.environ, **variables},
        cwd=project_root(),
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise RuntimeError(f"plain fine-tuning failed:\n{ended.stderr[-2000:]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main(root: Path) -> dict[str, float]:
    """Train one epoch to warm up, then those that are measured."""
    from training.quiet import quiet_model_libraries

    quiet_model_libraries()
    from llamafactory.data import SFTDataCollatorWith4DAttentionMask, get_template_and_fix_tokenizer
    from llamafactory.hparams import get_train_args
    from llamafactory.model import load_model, load_tokenizer
    from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
    from transformers import TrainerCallback

    from training.algorithms.losses import IGNORE_INDEX
    from training.trainer.collate import features_of
    from training.trainer.plan import plan_minibatches
    from training.trainer.rows import read_batch_file, read_rows
    from training.trainer.setup import llamafactory_arguments, prepare_deepspeed, set_threads

    store = RunStore(root)
    spec = read_spec(store)
    settings = spec.trainer
    rows = read_rows(store, read_batch_file(store, 1)[0])
    plan = plan_minibatches(
        [len(row) for row in rows], settings.minibatch_rows, settings.micro_batch_rows, 1, spec.seed, 1
    )
    ordered = [rows[slot.row] for minibatch in plan for micro in minibatch for slot in micro]

    class Rows:
        def __len__(self) -> int:
            return len(ordered)

        def __getitem__(self, index: int) -> dict[str, Any]:
            return features_of(ordered[index])

    class Clock(TrainerCallback):  # type: ignore[misc]
        began = steps = epochs_began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step > len(plan):
                self.steps += time.perf_counter() - self.began
            if state.global_step == len(plan):
                self.epochs_began = time.perf_counter()

    prepare_deepspeed()
    arguments = llamafactory_arguments(store, spec, 0) | {
        "gradient_accumulation_steps": len(plan[0]),
        "max_steps": len(plan) * (settings.epochs + 1),
        "disable_shuffling": True,
    }
    model_args, data_args, training_args, finetuning_args, _ = get_train_args(arguments)
    module = load_tokenizer(model_args)
    template = get_template_and_fix_tokenizer(module["tokenizer"], data_args)
    model = load_model(module["tokenizer"], model_args, finetuning_args, is_trainable=True)
    collator = SFTDataCollatorWith4DAttentionMask(
        template=template,
        model=model,
        label_pad_token_id=IGNORE_INDEX,
        block_diag_attn=model_args.block_diag_attn,
        attn_implementation=getattr(model.config, "_attn_implementation", None),
        compute_dtype=model_args.compute_dtype,
        **module,
    )
    clock = Clock()
    trainer = CustomSeq2SeqTrainer(
        model=model,
        args=training_args,
        finetuning_args=finetuning_args,
        data_collator=collator,
        train_dataset=Rows(),
        callbacks=[clock],
        **module,
    )
    set_threads(settings.torch_threads)
    trainer.train()
    return {"steps": clock.steps, "whole": time.perf_counter() - clock.epochs_began}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))), flush=True)
