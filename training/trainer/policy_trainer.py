"""LLaMA-Factory's trainer with a policy loss, driven one optimiser step at a time.

``Trainer.train()`` is not used: its loader fetches a batch ahead and cannot wait for batches that
do not exist yet. Instead ``prepare`` runs transformers' own preparation once (optimizer, schedule,
DeepSpeed engine, resume), and ``optimizer_step`` repeats what its inner loop does.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from llamafactory.train.sft.trainer import CustomSeq2SeqTrainer
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME
from transformers.trainer_utils import set_seed

from training.algorithms.losses import (
    LossMetrics,
    behaviour_cloning_loss,
    named_policy_loss,
    packed_logprobs,
    sum_by_images,
)
from training.algorithms.policy_loss import policy_loss
from training.policy.adapters import ADAPTER_WEIGHTS, load_policy
from training.trainer.collate import MicroBatch
from training.trainer.control.heartbeat import Heartbeat, Phase
from training.trainer.control.link import LinkToOwner
from training.trainer.published_weights import merged_weights, save_adapter
from training.trainer.schedule import learning_rate_factor
from training.trainer.sender import WeightSender
from training.trainer.spec import TrainerSpec
from training.trainer.state_writer import Files, StateWriter, copy_to_host

ADAPTER_STATE = "adapter.pt"
"""File of the LoRA weights in a trainer state that DeepSpeed did not write."""


class PolicyTrainer(CustomSeq2SeqTrainer):  # type: ignore[misc]
    """Trainer of one process.

    Call ``prepare`` once, ``begin_update`` per batch and ``optimizer_step`` per minibatch.
    """

    def __init__(self, spec: TrainerSpec, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self.cloning = False
        """True if the loss is ``-log p`` instead of the policy loss."""
        self.entropy_coefficient = 0.0
        self.is_own_proximal = False
        """True for an update of one step, whose own pass gives the proximal log-probabilities."""
        self.reference_model: torch.nn.Module | None = None
        """Frozen copy of the run's first policy, for a KL term without LoRA."""
        self.heartbeat: Heartbeat | None = None
        """Heartbeat, in the first process of a run's trainer."""
        self.link: LinkToOwner | None = None
        """Link to a run's owner, which names the rank that hangs."""
        workers = spec.trainer.loader_workers
        self.loaders = ThreadPoolExecutor(workers, "loader") if workers else None
        """Threads that collate micro-batches while others are computed."""
        self.states: StateWriter
        """Writer of its states; ``prepare`` makes it."""
        self.sender: WeightSender | None = None
        """Broadcasts what it publishes, in the first process (``serving.weight_transfer``)."""
        self.is_compared = False
        """True once a published policy was compared with the model (`compare_published`)."""
        self._passes, self._passed = 0, 0
        """Forward passes of the update, proximal and reference ones included, and those done."""
        self._normaliser = 1.0
        self._metrics = LossMetrics()
        self._kept_norm: Tensor | None = None

    def beat(self, phase: Phase) -> None:
        """Record a sign of progress."""
        if self.heartbeat is not None:
            share = self._passed / self._passes if phase == "train" and self._passes else None
            self.heartbeat.beat(phase, share)
        if self.link is not None:
            self.link.count_step()

    # -- life cycle

    def prepare(self, state: Path | None) -> None:
        """Build optimizer, schedule and engine; load a state of ``copy_state``."""
        self._train_batch_size = self.args.train_batch_size
        self._init_training_state(self.spec.total_updates, self.spec.total_updates, 1, None, None)
        # `optimizer_step` sets the accumulation boundary itself.
        self.current_gradient_accumulation_steps = 1
        self._prepare_for_training(self.spec.total_updates, None, None if state is None else str(state))
        if self.is_deepspeed_enabled and self.spec.trainer.zero_stage == 0 and not self.args.bf16:
            self.model_wrapped.clip_fp32_gradients = self._clip_and_keep_norm
        if state is not None and self.lora and not self.is_deepspeed_enabled:
            set_peft_model_state_dict(self.model, torch.load(state / ADAPTER_STATE, weights_only=True))
        self.states = StateWriter(self.spec.trainer.keep_states)

    @property
    def lora(self) -> bool:
        """True if the model has LoRA adapters."""
        return self.spec.trainer.finetuning_type == "lora"

    @property
    def is_divided(self) -> bool:
        """True if the weights are divided between processes (ZeRO 3)."""
        return self.is_deepspeed_enabled and self.spec.trainer.zero_stage == 3

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> LRScheduler:
        """Return our schedule in place of transformers' one, whose last step has rate 0.

        It stays at update 0 until ``begin_update``.
        """
        self.lr_scheduler = LambdaLR(
            self.optimizer if optimizer is None else optimizer,
            lambda update: learning_rate_factor(self.spec.trainer, update, num_training_steps),
        )
        return self.lr_scheduler

    @property
    def trained_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(
            getattr(weight, "ds_numel", weight.numel()) for weight in self.model.parameters() if weight.requires_grad
        )

    def expect_passes(self, number: int) -> None:
        """Begin to count the ``number`` forward passes of this process in an update."""
        self._passes, self._passed = number, 0

    def begin_update(self, version: int, learning_rate: float | None = None) -> float:
        """Seed torch for an update, move the schedule to it and return its learning rate.

        Seed and rate depend on the version alone, so no generator's state is saved. The schedule
        moves once per update, regardless of the number of minibatches.

        Args:
            version: Version that the update makes.
            learning_rate: Original rate of an update that is done again; the schedule of a run that
                was made longer would give another one.

        Returns:
            The rate of most weights; LoRA+ trains its second matrices at a multiple of it.
        """
        set_seed(self.spec.seed * 1_000_003 + version)
        self.lr_scheduler.last_epoch = version - 1
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            self.lr_scheduler.step()
        peak, groups = self.spec.trainer.learning_rate, self.optimizer.param_groups
        if learning_rate is not None:
            for group in groups:
                group["lr"] = learning_rate * (group["initial_lr"] / peak)
        (rate,) = {group["lr"] for group in groups if group["initial_lr"] == peak}
        return float(rate)

    # -- forward passes

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss of ``inputs["micro"]``.

        It is scaled so that the mean over processes is the minibatch's loss.
        """
        micro: MicroBatch = inputs["micro"]
        logprobs, entropy = self._forward(model, micro, entropy_grad=self.entropy_coefficient > 0)
        algorithm, device = self.spec.algorithm, logprobs.device
        mask, behaviour, advantages = self._on_device(micro.mask, micro.behaviour, micro.advantages)
        proximal = behaviour if micro.proximal is None else micro.proximal.to(device)
        if self.is_own_proximal and algorithm.proximal == "recompute":
            proximal = logprobs.detach()
        summed: dict[str, Any] = {
            "normaliser": self._normaliser,
            "row_weights": micro.row_weights.to(device),
            "entropy": entropy,
        }
        if self.cloning:
            loss, metrics = behaviour_cloning_loss(logprobs, behaviour, mask, **summed)
        elif algorithm.loss:
            loss, metrics = named_policy_loss(
                algorithm.loss,
                logprobs,
                proximal,
                behaviour,
                advantages,
                mask,
                **summed,
                entropy_coefficient=self.entropy_coefficient,
            )
        else:
            loss, metrics = policy_loss(
                logprobs,
                proximal,
                behaviour,
                advantages,
                mask,
                algorithm,
                **summed,
                reference=None if micro.reference is None else micro.reference.to(device),
                entropy_coefficient=self.entropy_coefficient,
            )
        self._metrics += metrics + sum_by_images(logprobs, behaviour, mask, micro.images.to(device))
        self.beat("train")  # here, where it does not wait for others yet
        # DDP and DeepSpeed average gradients over processes, but these are parts of one sum.
        return loss * int(self.args.world_size)

    @torch.no_grad()
    def score(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return ``[B, C]`` log-probabilities and entropies of responses by the current weights."""
        self.beat("train")
        return self._forward(self.model_wrapped, micro, entropy_grad=False)

    @torch.no_grad()
    def score_reference(self, micro: MicroBatch) -> Tensor:
        """Return ``[B, C]`` log-probabilities of responses under the run's first policy.

        That is the base model of LoRA, else the frozen copy.
        """
        self.beat("train")
        if self.lora:
            with self.accelerator.unwrap_model(self.model_wrapped).disable_adapter():
                return self._forward(self.model_wrapped, micro, entropy_grad=False)[0]
        assert self.reference_model is not None, "build_trainer loads it where the loss needs it"
        return self._forward(self.reference_model, micro, entropy_grad=False)[0]

    def _forward(self, model: Any, micro: MicroBatch, *, entropy_grad: bool) -> tuple[Tensor, Tensor]:
        self._passed += 1
        with self.compute_loss_context_manager():
            logits = model(**self._prepare_inputs(micro.inputs)).logits
        (targets,) = self._on_device(micro.targets)
        return packed_logprobs(logits, targets, self.spec.temperature, self.spec.banned_ids, entropy_grad=entropy_grad)

    def _on_device(self, *tensors: Tensor) -> list[Tensor]:
        return [tensor.to(self.args.device) for tensor in tensors]

    # -- optimisation

    def optimizer_step(self, micros: Sequence[MicroBatch], normaliser: float) -> tuple[LossMetrics, float]:
        """Take one optimiser step on this process's share of a minibatch.

        Args:
            micros: Micro-batches of this process; every process has the same number.
            normaliser: Divisor of the minibatch's loss, over all processes (`aggregation_weights`).

        Returns:
            This process's part of the metrics, and the global gradient norm before clipping.

        Raises:
            FloatingPointError: the gradient norm is not finite; raised on every process, no weight
                was changed.
        """
        self._normaliser, self._metrics = normaliser, LossMetrics()
        for index, micro in enumerate(micros):
            self.beat("train")
            last = index == len(micros) - 1
            # DeepSpeed finds its boundary here; there it clips, steps and clears inside backward.
            self.accelerator.gradient_state._set_sync_gradients(last)
            with self._gradient_sync(last):
                self.training_step(self.model_wrapped, {"micro": micro})
        if not self.is_deepspeed_enabled:
            self._clip_and_keep_norm()
        norm = self.model_wrapped.get_global_grad_norm() if self._kept_norm is None else self._kept_norm
        # ZeRO steps inside backward, and has silently skipped a step with such a norm by now.
        _check_finite(norm)
        if not self.is_deepspeed_enabled:
            self.optimizer.step()
            self.model_wrapped.zero_grad()
        return self._metrics, float(norm)

    def _clip_and_keep_norm(self) -> None:
        """Clip the gradients and keep their norm.

        It also replaces DeepSpeed's clip in plain float32 without ZeRO, which discards the norm.
        """
        self._kept_norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_grad_norm)
        _check_finite(self._kept_norm)

    def _gradient_sync(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        if last or self.is_deepspeed_enabled:
            return contextlib.nullcontext()
        return self.accelerator.no_sync(model=self.model_wrapped)  # type: ignore[no-any-return]

    # -- loading and saving

    @torch.no_grad()
    def load_weights(self, folder: Path) -> float:
        """Load the trained weights of a published policy, and keep the optimizer's moments.

        ZeRO's float32 copies keep their value where the published weight is equal in the model's
        data type. Called on every process.

        Args:
            folder: Policy with a whole model, or with an adapter like this trainer's.

        Returns:
            The largest difference to the weights so far.
        """
        if self.lora:
            # PEFT leaves out the name of the adapter when it writes.
            adapter = load_file(folder / ADAPTER_WEIGHTS)
            names = {name: name.replace(".default", "") for name, _ in self.model.named_parameters()}
            values = {name: adapter[stored] for name, stored in names.items() if stored in adapter}
        else:
            dtype = next(self.model.parameters()).dtype
            values = dict(load_policy(folder, dtype).named_parameters())
        largest = 0.0
        for name, weight in self.model.named_parameters():
            if weight.requires_grad:
                with self.gathered(weight, values[name]):
                    value = values[name].detach().to(weight, copy=True)
                    differs = weight != value
                    largest = max(largest, float((weight - value).abs().max()))
                    weight.copy_(value)
                if differs.any():
                    self._change_master(weight, value, differs)
        return largest

    def _change_master(self, weight: Tensor, value: Tensor, differs: Tensor) -> None:
        """Change the elements of a weight's float32 copy that differ, if ZeRO has one."""
        if not (self.is_deepspeed_enabled and self.spec.trainer.zero_stage):
            return
        from deepspeed.utils import safe_get_full_fp32_param, safe_set_full_fp32_param

        master = safe_get_full_fp32_param(weight)
        safe_set_full_fp32_param(weight, torch.where(differs.to(master.device), value.to(master), master))

    def gathered(self, *weights: Tensor) -> contextlib.AbstractContextManager[Any]:
        """Return a context with whole weights, which ZeRO 3 divides between processes."""
        if not self.is_divided:
            return contextlib.nullcontext()
        import deepspeed

        divided = [weight for weight in weights if hasattr(weight, "ds_id")]
        return deepspeed.zero.GatheredParameters(divided, modifier_rank=0)  # type: ignore[no-any-return]

    def copy_state(self, folder: Path) -> Files:
        """Return this process's files of what ``prepare`` needs to continue exactly.

        Their tensors are copies in host memory. DeepSpeed writes the small files that have none to
        ``folder``. Called on every process.
        """
        files: Files = {}
        if self.is_deepspeed_enabled:
            engine = self.model_wrapped.checkpoint_engine
            engine.save = lambda state_dict, path: files.update({Path(path): copy_to_host(state_dict)})
            try:
                self._save_optimizer_and_scheduler(str(folder))
            finally:
                del engine.save
        elif self.args.should_save:
            files[folder / OPTIMIZER_NAME] = copy_to_host(self.optimizer.state_dict())
            files[folder / SCHEDULER_NAME] = copy_to_host(self.lr_scheduler.state_dict())
            if self.lora:
                files[folder / ADAPTER_STATE] = copy_to_host(get_peft_model_state_dict(self.model))
        return files

    def save_weights(self, folder: Path) -> tuple[Any, Mapping[str, Tensor]]:
        """Write config and weights as a Hugging Face checkpoint.

        With LoRA it writes the adapter in PEFT's format, or merged weights. Called on every
        process; the first one writes.

        Returns:
            The model that was written whole and its tensors by name; no tensors where none was.
        """
        state = self.accelerator.get_state_dict(self.model_wrapped) if self.is_divided else self.model.state_dict()
        # Tied weights are written once, as in the first checkpoint: modules list a shared parameter
        # under its first name only.
        names = {name for name, _ in chain(self.model.named_parameters(), self.model.named_buffers())}
        weights = {name: value for name, value in (state or {}).items() if name in names}
        is_merged = self.lora and self.spec.trainer.lora_export == "merged"
        merged = merged_weights(self, weights) if is_merged else {}
        if not self.args.should_save:
            return self.model, {}
        if self.lora and not is_merged:
            save_adapter(self.model, weights, folder)
            return self.model, {}
        model, written = (self.model.get_base_model(), merged) if is_merged else (self.model, weights)
        model.save_pretrained(folder, state_dict=written)
        return model, written


def _check_finite(norm: Tensor | float) -> None:
    if not math.isfinite(norm):
        raise FloatingPointError(f"the gradient norm is {float(norm)}")
