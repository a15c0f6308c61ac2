"""Learning rate of each update of a run. Pure."""

from __future__ import annotations

import math

from training.config import TrainerConfig


def learning_rate_factor(settings: TrainerConfig, update: int, updates: int) -> float:
    """Return an update's share of the peak learning rate, in (0, 1].

    Before update ``warmup_updates`` the rate rises linearly; that update has the peak (without a
    warm-up the first one has). Afterwards ``linear`` falls linearly and ``cosine`` by half a cosine
    period (Loshchilov and Hutter 2017). Both reach zero one update *after* the last, because a last
    update at rate zero would waste its batch.

    Args:
        update: Number of the update; update 1 makes version 1.
        updates: Number of updates of the whole run.
    """
    peak = max(1, settings.warmup_updates)
    if update < peak:
        return update / peak
    if settings.scheduler == "constant_with_warmup":
        return 1.0
    # No update beyond `updates` is trained, but transformers asks for one when it makes the
    # scheduler.
    left = max(0, updates + 1 - update) / max(1, updates + 1 - peak)
    return left if settings.scheduler == "linear" else (1 - math.cos(math.pi * left)) / 2
