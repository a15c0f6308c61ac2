"""The policy loss, forward and backward, against the model's own forward and backward on the same
minibatch of the quickstart."""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import Figure
from benchmarks.rows import make_spec, make_store, quickstart
from benchmarks.trainer import load_model_and_micros
from training.algorithms.losses import loss_bytes, token_logprobs

TOKENS, VOCABULARY = 512, 151_936
"""Of the measurement of memory."""
ROUNDS = 7
"""Of each measurement in turn; medians are reported."""


def run() -> list[Figure]:
    """Medians over one minibatch (all its micro-batches)."""
    config = quickstart()
    with tempfile.TemporaryDirectory(prefix="rollwright-losses-") as folder:
        store = make_store(Path(folder), config)
        banned = make_spec(store, config, 1).banned_ids
        model, micros = load_model_and_micros(store, config)
    minibatch = micros[0]
    logits = [model(**micro.inputs).logits.detach() for micro in minibatch]

    def model_pass() -> None:
        for micro in minibatch:
            model(**micro.inputs).logits.mean().backward()
        model.zero_grad()

    def logprobs_pass() -> None:
        for micro, values in zip(minibatch, logits, strict=True):
            _logprobs(values, micro, banned)[1].sum().backward()

    def loss_pass() -> None:
        for micro, values in zip(minibatch, logits, strict=True):
            _loss(values, micro, banned).backward()

    model_s, logprobs_s, loss_s = _medians([model_pass, logprobs_pass, loss_pass])
    return [
        Figure("model, forward and backward", 1000 * model_s, "ms", ""),
        Figure("log-probabilities and decoupled loss", 1000 * loss_s, "ms", ""),
        Figure("log-probabilities and loss / model", loss_s / model_s, "ratio", ""),
        Figure("decoupled loss alone / model", (loss_s - logprobs_s) / model_s, "ratio", ""),
        *_memory(),
    ]


def _memory() -> list[Figure]:
    """Of log-probabilities, forward and backward, with the vocabulary of Qwen: measured in a
    process of its own, against the formula."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.apply(_peak_bytes)
    expected = loss_bytes(TOKENS, VOCABULARY, 4)
    return [
        Figure(f"memory of log-probabilities, {TOKENS} tokens of {VOCABULARY} ids", found / 1e6, "MB", ""),
        Figure("the same / formula (loss_bytes)", found / expected, "ratio", "<= 1.2"),
        Figure("formula (loss_bytes) / the same", expected / found, "ratio", "<= 1.2"),
    ]


def _peak_bytes() -> int:
    """How much the process grows at most while log-probabilities and their gradient are made."""
    import torch

    torch.set_num_threads(1)
    logits = torch.randn(1, TOKENS, VOCABULARY).requires_grad_()
    targets = torch.randint(0, VOCABULARY, (1, TOKENS))
    torch.autograd.backward(
        token_logprobs(logits[:, :4].detach().requires_grad_(), targets[:, :4])[0].sum()
    )  # loads libraries
    # Not getrusage's maximum: a process begins with that of the one that started it.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    torch.autograd.backward(token_logprobs(logits, targets)[0].sum())
    return _status("VmHWM") - before


def _status(name: str) -> int:
    """Bytes that the kernel says of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return 1024 * int(line.split()[1])


def _logprobs(logits: Any, micro: Any, banned: tuple[int, ...]) -> tuple[Any, Any]:
    from training.algorithms.losses import packed_logprobs

    leaf = logits.clone().requires_grad_()
    logprobs, _ = packed_logprobs(leaf, micro.targets, 1.0, banned)
    return leaf, logprobs


def _loss(logits: Any, micro: Any, banned: tuple[int, ...]) -> Any:
    from training.algorithms.policy_loss import policy_loss

    _, logprobs = _logprobs(logits, micro, banned)
    loss, _ = policy_loss(
        logprobs,
        logprobs.detach(),
        micro.behaviour,
        micro.advantages,
        micro.mask,
        normaliser=float(micro.mask.sum()),
    )
    return loss


def _medians(measured: list[Callable[[], None]]) -> list[float]:
    """Median seconds of each, taken in turn so that other load hits all alike; one round before is
    left out."""
    seconds: list[list[float]] = [[] for _ in measured]
    for _ in range(ROUNDS + 1):
        for index, action in enumerate(measured):
            started = time.perf_counter()
            action()
            seconds[index].append(time.perf_counter() - started)
    return [statistics.median(values[1:]) for values in seconds]
