"""The learning rate of each update of a run. Pure."""

from __future__ import annotations

import math

from training.config import TrainerConfig


def learning_rate_factor(settings: TrainerConfig, update: int, updates: int) -> float:
    """Share of the peak learning rate that an update is trained with, in (0, 1].

    Update ``warmup_updates`` has the peak (without a warm-up the first one); before it the rate rises in equal parts. After it ``linear``
    falls in equal parts and ``cosine`` by half a wave (Loshchilov and Hutter 2017), to a zero that lies one update *after* the last: a
    schedule that ends at zero throws its last batch away.

    Args:
        update: 1 for the update that makes version 1.
        updates: Of the whole run.
    """
    peak = max(1, settings.warmup_updates)
    if update < peak:
        return update / peak
    if settings.scheduler == "constant_with_warmup":
        return 1.0
    # Updates beyond `updates` are not trained; transformers asks for one when its scheduler is made.
    left = max(0, updates + 1 - update) / max(1, updates + 1 - peak)
    return left if settings.scheduler == "linear" else (1 - math.cos(math.pi * left)) / 2
