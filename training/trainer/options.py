"""Arguments of LLaMA-Factory that ``trainer.llamafactory`` takes, and why it refuses the others.

LLaMA-Factory knows some 350 arguments. Its parser, model loader, adapters and optimizer are used,
but its data sets, losses and training loop are not, so most arguments would change nothing, or a
run would publish another model than the one it trained.
"""

from __future__ import annotations

from fnmatch import fnmatchcase

ADAPTER_OPTIONS = frozenset({"lora_target", "lora_alpha", "lora_dropout", "use_rslora", "loraplus_lr_ratio"})
"""Accepted arguments of LoRA adapters."""
ACCEPTED = ADAPTER_OPTIONS | {
    "adam_epsilon",
    "ddp_timeout",
    "flash_attn",
    "full_determinism",
    "use_cpu",
    "use_reentrant_gc",
}
NO_EFFECT = "it has no effect in this trainer"
REASONS = {
    "rows are packed already": "packing neat_packing",
    "it replaces AdamW, of which rate and state are kept": (
        "optim* use_galore galore_* use_apollo apollo_* use_badam badam_* use_adam_mini use_muon"
    ),
    "it changes the weights that adapters are added to, and those are not published": (
        "pissa_* quantization_* double_quantization export_quantization_* resize_vocab add_tokens "
        "add_special_tokens new_special_tokens_config init_special_tokens"
    ),
    "merged weights and servers would leave out its magnitudes": "use_dora",
    "servers load adapters of linear layers alone": "additional_target loraplus_lr_embedding",
    "servers would compute other numbers than the trainer": (
        "rope_scaling shift_attn mixture_of_depths moe_aux_loss_coef upcast_* fp16 fp8* tf32 pure_bf16 use_kt kt_* "
        "use_unsloth enable_liger_kernel use_liger_kernel liger_kernel_config use_v1_kernels neftune_noise_alpha"
    ),
    "pictures are trained as they were served; set policy.image_pixels": (
        "image_* crop_to_patches video_* use_audio_in_video audio_* use_fast_tokenizer"
    ),
    "tokens are trained as they were sampled; set policy.template and policy.prompt": (
        "template tool_format default_system enable_thinking preserve_thinking split_special_tokens train_on_prompt "
        "mask_history ignore_pad_token_for_loss"
    ),
    "policy.checkpoint names the folder that a run starts from": (
        "model_name_or_path model_revision trust_remote_code train_from_scratch adapter_name_or_path adapter_folder "
        "create_new_adapter cache_dir *_hub_token"
    ),
    "batches are the run's own; set policy.context_tokens, iterations or trainer.epochs": (
        "cutoff_len max_steps num_train_epochs max_samples dataset* eval_dataset media_dir streaming tokenized_path "
        "mix_strategy interleave_probs label_names remove_unused_columns"
    ),
    "set trainer.micro_batch_rows, micro_batch_tokens or minibatch_rows": (
        "per_device_train_batch_size gradient_accumulation_steps auto_find_batch_size torch_empty_cache_steps"
    ),
    "set trainer.scheduler and trainer.warmup_updates": "lr_scheduler_* warmup_*",
    "set trainer.gradient_checkpointing, and use_reentrant_gc here": (
        "disable_gradient_checkpointing gradient_checkpointing_kwargs use_unsloth_gc"
    ),
    "set trainer.train_vision_tower": "freeze_vision_tower freeze_multi_modal_projector freeze_language_model",
    "set trainer.finetuning_type, and lora_target here": "freeze_* use_llama_pro oft_* module_dropout",
    "set algorithm": (
        "stage use_*_loss asft_alpha eaft_alpha label_smoothing_factor pref_* dpo_* kto_* simpo_* ppo_* ref_model* "
        "reward_model* ld_alpha"
    ),
    "set trainer.zero_stage, processes and nodes": (
        "deepspeed fsdp* ddp_* parallelism_config accelerator_config local_rank master_* ray_* use_mca use_hyper_* "
        "hyper_* torch_compile* low_cpu_mem_usage offload_folder"
    ),
    "set trainer.loader_workers": "dataloader_* preprocessing_*",
    "set trainer.state_every, keep_states and keep_policies": (
        "output_dir overwrite_output_dir save_* resume_from_checkpoint push_to_hub hub_* export_* enable_jit_checkpoint"
    ),
    "set seed": "seed data_seed",
    "set evaluation": (
        "do_* eval_* *_full_eval per_device_eval_batch_size val_size predict_with_generate compute_accuracy "
        "load_best_model_at_end metric_for_best_model greater_is_better early_stopping_steps"
    ),
    "set serving": "infer_* use_kv_cache use_cache vllm_* sglang_*",
    "set policy.temperature and policy.max_new_tokens": (
        "temperature top_p top_k num_beams max_length max_new_tokens repetition_penalty length_penalty generation_*"
    ),
    "a run's metrics, logs and traces are Rollwright's; set trackers": (
        "report_to run_name project trackio_* *swanlab* logging_* log_* plot_loss include_* disable_tqdm "
        "print_param_status enable_torch_profiler profile* skip_memory_metrics"
    ),
}
"""Patterns of names that are refused, by the reason; the first one that fits counts."""


def refuse(name: str, *, lora: bool) -> str:
    """Return why an argument is refused; empty if it is taken."""
    if name in ACCEPTED:
        return "" if lora or name not in ADAPTER_OPTIONS else "set trainer.finetuning_type to lora"
    fitting = (reason for reason, names in REASONS.items() if any(fnmatchcase(name, one) for one in names.split()))
    return next(fitting, NO_EFFECT)
