"""Retries a turn with backoff while the engine fails."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from envs.types import EngineError
from training.serving.engine import Engine, Generation, GenerationRequest

FIRST_PAUSE = 0.1
"""Seconds before the first retry; each further pause is twice as long."""
LONGEST_PAUSE = 10.0
"""Longest pause in seconds. A restarting server, which needs a minute or more, is noticed this late
at most."""


async def generate_patiently(
    engine: Engine, request: GenerationRequest, patience: float, delayed: Callable[[float], None] = lambda seconds: None
) -> Generation:
    """Generate one turn, with retries while the engine fails or aborts it.

    Args:
        patience: Seconds from the first request after which no retry starts. A running turn may
            take longer.
        delayed: Called after each failure with the seconds that it costs: those of the request, and
            of the pause before the next one.

    Raises:
        EngineError: the engine failed until ``patience`` was over.
    """
    loop = asyncio.get_running_loop()
    until, pause, attempts = loop.time() + patience, FIRST_PAUSE, 0
    while True:
        attempts, began = attempts + 1, loop.time()
        try:
            turn = await engine.generate(request)
            if turn.finish_reason != "aborted":
                return turn
            failure = EngineError("it aborted the turn")
        except EngineError as error:
            failure = error
        left = until - loop.time()
        if left <= 0:
            raise EngineError(
                f"the inference engine failed {attempts} times in {patience:g} s (serving.patience), at last: {failure}"
            ) from failure
        # Jitter spreads the retries of the many episodes that wait for one engine.
        seconds = min(left, pause * random.uniform(0.5, 1.0))
        delayed(loop.time() - began + seconds)
        await asyncio.sleep(seconds)
        pause = min(2 * pause, LONGEST_PAUSE)
