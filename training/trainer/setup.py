"""Builds the trainer from LLaMA-Factory's arguments, template, model loader and collator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from llamafactory.data import get_template_and_fix_tokenizer
from llamafactory.hparams import get_train_args
from llamafactory.model import load_model, load_tokenizer
from peft.tuners.lora import LoraLayer
from transformers.utils.logging import disable_progress_bar

from envs.types import ConfigError
from training.algorithms.losses import IGNORE_INDEX
from training.ledger.store import RunStore
from training.policy.adapters import load_policy
from training.policy.renderer import UNBOUNDED_PIXELS
from training.trainer.attention import attend_to_rows
from training.trainer.collate import PolicyCollator
from training.trainer.pictures import encode_pictures_once
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.resume import state_path
from training.trainer.spec import TrainerSpec


def build_trainer(store: RunStore, spec: TrainerSpec, version: int) -> PolicyTrainer:
    """Build a trainer that holds ``version`` of the run, ready for its next update.

    Weights and state are those of `find_resume_point`, which has checked them.
    """
    state = state_path(store, version) if version else None
    disable_progress_bar()
    prepare_deepspeed()
    arguments = llamafactory_arguments(store, spec, version)
    try:
        model_args, data_args, training_args, finetuning_args, _ = get_train_args(arguments)
    except ValueError as error:
        raise ConfigError(f"trainer.llamafactory: LLaMA-Factory refuses its arguments: {error}") from error
    tokenizer_module = load_tokenizer(model_args)
    template = get_template_and_fix_tokenizer(tokenizer_module["tokenizer"], data_args)
    try:
        model = load_model(tokenizer_module["tokenizer"], model_args, finetuning_args, is_trainable=True)
    except ValueError as error:
        if "lora_target" not in spec.trainer.llamafactory:
            raise
        target = spec.trainer.llamafactory["lora_target"]
        raise ConfigError(f"trainer.llamafactory: lora_target {target!r} cannot be used: {error}") from error
    refuse_tied_adapters(model)
    attend_to_rows(model)
    encode_pictures_once(model)
    collator = PolicyCollator(
        template=template,
        model=model,
        label_pad_token_id=IGNORE_INDEX,
        compute_dtype=model_args.compute_dtype,
        **tokenizer_module,
    )
    trainer = PolicyTrainer(
        spec=spec,
        model=model,
        args=training_args,
        finetuning_args=finetuning_args,
        data_collator=collator,
        **tokenizer_module,
    )
    if spec.algorithm.kl_coefficient and not trainer.lora:
        trainer.reference_model = _load_reference(trainer, store.policy_path(0))
    trainer.prepare(state)
    return trainer


def refuse_tied_adapters(model: torch.nn.Module) -> None:
    """Refuse adapters on weights that two modules share, such as tied embeddings.

    An adapter changes only one of the two modules. When it is published, merged or alone, it is
    loaded onto both, which gives another model than the trained one.

    Raises:
        ConfigError: an adapter is on shared weights; the message names the modules.
    """
    owners: dict[int, list[str]] = {}
    adapted: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, LoraLayer):
            adapted[id(module.get_base_layer().weight)] = name
        elif isinstance(weight := getattr(module, "weight", None), torch.nn.Parameter):
            owners.setdefault(id(weight), []).append(name.removesuffix(".base_layer"))
    for weight_id, name in adapted.items():
        others = [owner for owner in owners[weight_id] if owner != name]
        if others:
            raise ConfigError(
                f"trainer.llamafactory: lora_target puts an adapter on {name}, whose weights are those of "
                f"{', '.join(others)} too (tied embeddings), so what is published would be another model than the one "
                "trained; leave it out of lora_target"
            )


def _load_reference(trainer: PolicyTrainer, folder: Path) -> Any:
    """Load a frozen copy of the run's first policy, with the trained model's data type."""
    model = load_policy(folder, next(trainer.model.parameters()).dtype)
    attend_to_rows(model)
    encode_pictures_once(model)
    return model.to(trainer.args.device).eval().requires_grad_(False)


def llamafactory_arguments(store: RunStore, spec: TrainerSpec, version: int) -> dict[str, Any]:
    """Return the arguments that ``llamafactory-cli train`` would read from its YAML file.

    Its parser requires ``dataset`` and the batch sizes, but they are unused: batches come from the
    run's folder.
    """
    settings = spec.trainer
    lora = settings.finetuning_type == "lora"
    # Adapters belong to the run's first weights; full fine-tuning continues from the latest ones.
    checkpoint = store.policy_path(0) if lora else store.policy_path(version)
    arguments = {
        "model_name_or_path": str(checkpoint),
        "stage": "sft",
        "do_train": True,
        "dataset": "unused",
        "template": spec.template,
        "image_max_pixels": UNBOUNDED_PIXELS,
        "finetuning_type": settings.finetuning_type,
        "freeze_vision_tower": settings.train_vision_tower is False,
        "freeze_multi_modal_projector": settings.train_vision_tower is False,
        "disable_gradient_checkpointing": not settings.gradient_checkpointing,
        "output_dir": str(store.trainer_path),
        "overwrite_output_dir": True,
        "per_device_train_batch_size": settings.micro_batch_rows,
        "max_steps": spec.total_updates,
        "learning_rate": settings.learning_rate,
        "adam_beta1": settings.adam_beta1,
        "adam_beta2": settings.adam_beta2,
        "weight_decay": settings.weight_decay,
        "max_grad_norm": settings.max_grad_norm,
        "optim": "adamw_torch",
        "bf16": bool(settings.bf16),
        "seed": spec.seed,
        "report_to": "none",
        "save_strategy": "no",
        "disable_tqdm": True,
    }
    if lora:
        arguments |= {"lora_rank": settings.lora_rank, "lora_target": "all", "lora_dropout": 0.0}
    # DeepSpeed needs a process group, which every trainer process has (`launch.group_environment`).
    # A trainer that is built outside of one is plain torch.
    if "RANK" in os.environ:
        arguments["deepspeed"] = deepspeed_config(settings.zero_stage, bool(settings.bf16))
    return arguments | settings.llamafactory


def deepspeed_config(stage: int, bf16: bool) -> dict[str, Any]:
    """Return DeepSpeed's settings for a ZeRO stage; transformers fills in "auto".

    Gradients are added and reduced in float32, also those of a bfloat16 model.

    Raises:
        ConfigError: stage 0 in bfloat16, where DeepSpeed can only add gradients in bfloat16.
    """
    if bf16 and stage == 0:
        raise ConfigError(
            "trainer.zero_stage: 0 would add the gradients of micro-batches in bfloat16 (trainer.bf16), which loses "
            "about a percent of them; use 1, 2 or 3"
        )
    gpu = torch.cuda.is_available()
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        # torch's AdamW; DeepSpeed's own for the CPU is compiled at the first start (90 s).
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        "zero_optimization": {
            "stage": stage,
            "contiguous_gradients": True,
            # gloo has no second stream and only a slow reduce-scatter.
            "overlap_comm": gpu,
            "reduce_scatter": gpu,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
    }


def prepare_deepspeed() -> None:
    """Keep DeepSpeed from preparing what no run uses, which takes seconds of each start.

    Its Muon optimizer, imported whatever the optimizer is, decorates functions with torch.compile,
    which loads Inductor. Its shared-memory all-reduce for CPUs serves only tensor-parallel
    inference, and takes a minute of g++; no setting prevents that, so this function changes
    DeepSpeed's table of compatible ops.
    """
    import deepspeed
    from deepspeed.runtime import compiler

    compiler.compile = lambda: lambda function: function
    if not torch.cuda.is_available():
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def set_threads(threads: int) -> None:
    """Set the CPU threads of this process; 0: an equal share of the machine's cores."""
    share = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.set_num_threads(threads or max(1, share))
