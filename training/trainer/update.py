"""One update: proximal scoring of a batch's rows, then the epochs of minibatches."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from envs.types import TrainingError
from training.algorithms.losses import NOT_OF_CLONING, NOT_OF_EXTENSIONS, LossMetrics, entropy_bonus
from training.algorithms.policy_loss import aggregation_weights
from training.records.batches import TrainingBatch
from training.records.groups import StepShape
from training.trainer.collate import MicroBatch
from training.trainer.plan import Slot, plan_minibatches
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.rows import TrainingRow

CACHE_BYTES = 2**30
"""Memory for collated micro-batches that a process keeps between passes. Others are collated again
on each pass."""


@dataclass
class Stopwatch:
    """Measures wall seconds by part of an update."""

    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    _inner: list[float] = field(default_factory=list)
    """Seconds of the inner parts of each open part."""

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Add the block's time to a part, without the time of its inner parts."""
        start = time.perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            taken = time.perf_counter() - start
            self.seconds[name] += taken - self._inner.pop()
            if self._inner:
                self._inner[-1] += taken


class MinibatchShare(Sequence[MicroBatch]):
    """Sequence of a process's micro-batches of one optimiser step, collated on access."""

    def __init__(self, micros: MicroBatches, minibatch: int) -> None:
        self._micros, self._minibatch = micros, minibatch

    def __len__(self) -> int:
        return len(self._micros.minibatches[self._minibatch])

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._micros.get((self._minibatch, index))


class MicroBatches:
    """Micro-batches of an update that this process trains on.

    They are collated once if memory allows, else again on each pass. Each thread collates one of
    the next micro-batches while one is computed; the result does not depend on timing.
    """

    def __init__(
        self,
        trainer: PolicyTrainer,
        rows: Sequence[TrainingRow],
        plan: list[list[list[Slot]]],
        watch: Stopwatch,
        cache_bytes: int,
        loaders: ThreadPoolExecutor | None = None,
    ) -> None:
        aggregation = trainer.spec.algorithm.aggregation
        self._weights, self.normalisers = [], []
        """Weight of each row's tokens, and divisor of the loss, for each minibatch."""
        for minibatch in plan:
            counted = [slot.row for micro in minibatch for slot in micro if slot.counts]
            weights, normaliser = aggregation_weights(
                aggregation, [rows[row].shape.response for row in counted], [rows[row].episode_id for row in counted]
            )
            self._weights.append(dict(zip(counted, weights, strict=True)))
            self.normalisers.append(normaliser)
        rank, world = trainer.args.process_index, trainer.args.world_size
        self.minibatches = [minibatch[rank::world] for minibatch in plan]
        self._order = [
            (minibatch, micro) for minibatch, micros in enumerate(self.minibatches) for micro in range(len(micros))
        ]
        self._places = {key: place for place, key in enumerate(self._order)}
        self._trainer, self._rows, self._watch = trainer, rows, watch
        self._room = cache_bytes
        self._loaders, self._ahead = loaders, trainer.spec.trainer.loader_workers
        self._making: dict[tuple[int, int], Future[MicroBatch]] = {}
        self._kept: dict[tuple[int, int], MicroBatch] = {}
        self._proximal: dict[tuple[int, int], torch.Tensor] = {}
        self._reference: dict[tuple[int, int], torch.Tensor] = {}

    @property
    def number(self) -> int:
        """Number of micro-batches of this process."""
        return len(self._order)

    def score(self) -> LossMetrics:
        """Set the proximal log-probabilities; return this process's sums of entropy and tokens."""
        total = LossMetrics()
        for minibatch, micros in enumerate(self.minibatches):
            for index in range(len(micros)):
                micro = self.get((minibatch, index))
                with self._watch.part("proximal"):
                    logprobs, entropy = self._trainer.score(micro)
                    micro.proximal = self._proximal[minibatch, index] = logprobs.cpu()
                    total += LossMetrics(tokens=float(micro.mask.sum()), entropy=float(entropy.cpu()[micro.mask].sum()))
        return total

    def sampled(self) -> LossMetrics:
        """Return this process's sums of tokens and of their log-probabilities when sampled."""
        slots = (slot for micros in self.minibatches for micro in micros for slot in micro if slot.counts)
        values = [value for slot in slots for value in self._rows[slot.row].behaviour]
        return LossMetrics(tokens=float(len(values)), logprob=sum(values))

    def score_reference(self) -> None:
        """Set the log-probabilities of all rows under the run's first policy."""
        for minibatch, micros in enumerate(self.minibatches):
            for index in range(len(micros)):
                micro = self.get((minibatch, index))
                with self._watch.part("reference"):
                    micro.reference = self._reference[minibatch, index] = self._trainer.score_reference(micro).cpu()

    def get(self, key: tuple[int, int]) -> MicroBatch:
        """Return the micro-batch of (minibatch, place), with the log-probabilities set so far."""
        if key in self._kept:
            return self._kept[key]
        with self._watch.part("collate"):
            future = self._making.pop(key, None)
            micro = self._make(key) if future is None else future.result()
        micro.proximal, micro.reference = self._proximal.get(key), self._reference.get(key)
        if micro.nbytes() <= self._room:
            self._room -= micro.nbytes()
            self._kept[key] = micro
        self._make_ahead(self._places[key])
        return micro

    def _make(self, key: tuple[int, int]) -> MicroBatch:
        slots = self.minibatches[key[0]][key[1]]
        micro: MicroBatch = self._trainer.data_collator.micro_batch(
            [self._rows[slot.row] for slot in slots],
            [slot.counts for slot in slots],
            [self._weights[key[0]][slot.row] for slot in slots],
        )
        return micro

    def _make_ahead(self, place: int) -> None:
        """Let threads collate the next micro-batches; after the last one the first is next."""
        if self._loaders is None:
            return
        for step in range(1, min(self._ahead, len(self._order) - 1) + 1):
            key = self._order[(place + step) % len(self._order)]
            if key not in self._kept and key not in self._making:
                self._making[key] = self._loaders.submit(self._make, key)


def plan_update(
    trainer: PolicyTrainer, version: int, shapes: Sequence[StepShape], episodes: Sequence[str]
) -> list[list[list[Slot]]]:
    """Return the plan of the update that makes ``version``, the same on every process."""
    settings = trainer.spec.trainer
    return plan_minibatches(
        [shape.prompt + shape.response for shape in shapes],
        settings.minibatch_rows,
        settings.micro_batch_rows,
        trainer.args.world_size,
        trainer.spec.seed,
        version,
        settings.micro_batch_tokens,
        [
            index if shape.sequence < 0 else (episode, shape.sequence)
            for index, (shape, episode) in enumerate(zip(shapes, episodes, strict=True))
        ],
        episodes,
    )


def own_rows(trainer: PolicyTrainer, version: int, shapes: Sequence[StepShape], episodes: Sequence[str]) -> set[int]:
    """Return the rows of an update that this process trains on, fillers included."""
    rank, world = trainer.args.process_index, trainer.args.world_size
    plan = plan_update(trainer, version, shapes, episodes)
    return {slot.row for minibatch in plan for micro in minibatch[rank::world] for slot in micro}


def run_update(
    trainer: PolicyTrainer,
    batch: TrainingBatch,
    rows: Sequence[TrainingRow],
    watch: Stopwatch,
    learning_rate: float | None = None,
) -> dict[str, Any]:
    """Train on a batch and return its metrics, equal on every process.

    The values are numbers and mappings of numbers. A batch without rows changes no weight.

    Args:
        learning_rate: Original rate of an update that is done again.

    Raises:
        TrainingError: the gradient norm of a minibatch is not finite. The trainer's weights must
            not be published then.
    """
    spec, settings = trainer.spec, trainer.spec.trainer
    learning_rate = trainer.begin_update(batch.version, learning_rate)
    plan = plan_update(trainer, batch.version, [row.shape for row in rows], [row.episode_id for row in rows])
    micros = MicroBatches(trainer, rows, plan, watch, CACHE_BYTES, trainer.loaders)
    trainer.cloning = batch.algorithm == "filtered_bc"
    # The single step starts from the weights of the proximal pass.
    trainer.is_own_proximal = len(plan) == settings.epochs == 1 and not spec.algorithm.entropy_coefficient
    trainer.entropy_coefficient = 0.0
    trainer.expect_passes(micros.number * (settings.epochs + _scoring_passes(trainer)))
    if not trainer.cloning and rows:
        entropy = _start_entropy(trainer, micros)
        trainer.entropy_coefficient = entropy_bonus(
            entropy, spec.algorithm.entropy_coefficient, spec.algorithm.entropy_floor
        )
        if spec.algorithm.kl_coefficient:
            micros.score_reference()

    total = LossMetrics()
    norms: list[float] = []
    losses: list[float] = []
    for epoch in range(settings.epochs):
        for index in range(len(plan)):
            share = MinibatchShare(micros, index)
            with watch.part("train"):
                try:
                    step, norm = trainer.optimizer_step(share, micros.normalisers[index])
                except FloatingPointError as error:
                    raise TrainingError(
                        f"update v{batch.version}: {error} in minibatch {index + 1} of {len(plan)}, epoch {epoch + 1} of"
                        f" {settings.epochs}; the step was not taken and v{batch.version} is not published. Start a run"
                        f" with another run_id and a lower trainer.learning_rate, from a policy of this one that still"
                        f" does well (policy.checkpoint: …/policies/v{batch.version - 1:06d} or before)"
                    ) from error
                step = sum_over_processes(trainer, step)
            total += step
            norms.append(norm)
            losses.append(step.loss)
    of_loss = NOT_OF_EXTENSIONS if spec.algorithm.loss else spec.algorithm.unmeasured
    unmeasured = NOT_OF_CLONING if trainer.cloning else of_loss
    return {
        **{name: value for name, value in total.means().items() if name not in unmeasured},
        "kl_by_images": total.kl_by_images(),
        "loss": _mean(losses),
        "grad_norm": _mean(norms),
        "grad_norm_max": max(norms, default=0.0),
        "learning_rate": learning_rate,
        "entropy_coefficient": trainer.entropy_coefficient,
        "rows": float(len(rows)),
        "optimizer_steps": float(len(norms)),
        "advantage_abs": _mean([abs(row.advantage) for row in rows]),
        "prompt_tokens": _mean([row.shape.prompt for row in rows]),
        "response_tokens": _mean([row.shape.response for row in rows]),
    }


def _scores_proximal(trainer: PolicyTrainer) -> bool:
    """Return True if a pass of its own gives the proximal log-probabilities."""
    return trainer.spec.algorithm.proximal == "recompute" and not trainer.is_own_proximal


def _scoring_passes(trainer: PolicyTrainer) -> int:
    """Return the number of passes over all rows before the first step."""
    if trainer.cloning:
        return 0
    return int(_scores_proximal(trainer)) + bool(trainer.spec.algorithm.kl_coefficient)


def _start_entropy(trainer: PolicyTrainer, micros: MicroBatches) -> float:
    """Return the mean entropy per token before the first step.

    It comes from the proximal pass, or is estimated by -log pi of the sampled tokens.
    """
    if _scores_proximal(trainer):
        return sum_over_processes(trainer, micros.score()).means()["entropy"]
    return -sum_over_processes(trainer, micros.sampled()).means()["logprob"]


def sum_over_processes(trainer: PolicyTrainer, metrics: LossMetrics) -> LossMetrics:
    """Return the metrics summed over all processes.

    ``loss`` is each process's part of one sum, so it adds up too.
    """
    if trainer.args.world_size == 1:
        return metrics
    values = torch.tensor(metrics.sums(), dtype=torch.float64, device=trainer.args.device)
    torch.distributed.all_reduce(values)
    return LossMetrics.of(values.tolist())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
