"""Waits for an engine that fails for the moment, with backoff."""

from __future__ import annotations

import asyncio
import random

from envs.types import EngineError
from training.serving.engine import Engine, Generation, GenerationRequest

FIRST_PAUSE = 0.1
"""Seconds before the first time that an engine is asked again; each further pause is twice as long."""
LONGEST_PAUSE = 10.0
"""Seconds; a server that restarts needs a minute or more and is found at most this late."""


async def generate_patiently(engine: Engine, request: GenerationRequest, patience: float) -> Generation:
    """One turn, asked for again while the engine fails or gives it up.

    Args:
        patience: Seconds from the first request after which nothing is asked for again. A turn under way may take longer.

    Raises:
        EngineError: the engine failed until the end.
    """
    loop = asyncio.get_running_loop()
    until, pause, asked = loop.time() + patience, FIRST_PAUSE, 0
    while True:
        asked += 1
        try:
            turn = await engine.generate(request)
            if turn.finish_reason != "aborted":
                return turn
            failure = EngineError("it gave the turn up")
        except EngineError as error:
            failure = error
        left = until - loop.time()
        if left <= 0:
            raise EngineError(
                f"the inference engine failed {asked} times in {patience:g} s (serving.patience), at last: {failure}"
            ) from failure
        # Jitter: many episodes wait for the same engine.
        await asyncio.sleep(min(left, pause * random.uniform(0.5, 1.0)))
        pause = min(2 * pause, LONGEST_PAUSE)
