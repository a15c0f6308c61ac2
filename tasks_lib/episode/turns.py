"""Pipeline of one turn: encode the captured page in a thread, then generate.

Both overlap with the browser.

An episode that wants a turn while four pages wait to be encoded is held back, so that captured pages do not pile up before a slow encoder. What
waits for the policy is bounded by the slots: each has one turn in a batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from io import BytesIO
from typing import Any

from PIL import Image, UnidentifiedImageError

from envs.types import BrowserError
from tasks_lib.episode.actors import Actor, EncodedSituation, Situation, Turn
from tasks_lib.episode.pipeline import Pipeline, Stage
from training.inference.engine import InferenceEngine
from training.ledger.store import RunStore
from training.policy.prompt import MEMORY_BUDGET, ObservationMode, user_text

EncodeStage = Stage[Situation, EncodedSituation]
TurnPipeline = Pipeline[Situation, Turn]


def encode_stage(
    engine: InferenceEngine,
    store: RunStore,
    mode: ObservationMode,
    threads: ThreadPoolExecutor,
    memory_budget: int = MEMORY_BUDGET,
) -> EncodeStage:
    """Keeps the screenshot as a blob, writes the prompt, and makes token ids of it: one at a time, tokenizers are not shared by threads."""

    def encode(now: Situation) -> EncodedSituation:
        screenshot = store.put_blob(now.frame.screenshot)
        prompt = user_text(
            now.frame.observation,
            [step.response for step in now.steps],
            mode,
            memory=now.memory,
            memory_budget=memory_budget,
        )
        return EncodedSituation(
            now, prompt, tuple(engine.encode(prompt, picture_size(now.frame.screenshot))), screenshot
        )

    return Stage.in_threads("encode", encode, threads)


def picture_size(picture: bytes) -> tuple[int, int]:
    """Width and height in the picture's own pixels, from its header: they are not the page's CSS pixels at every device scale.

    Raises:
        BrowserError: the browser gave no picture.
    """
    try:
        with Image.open(BytesIO(picture)) as image:
            size: tuple[int, int] = image.size
            return size
    except UnidentifiedImageError as error:
        raise BrowserError(f"the browser's screenshot of {len(picture)} bytes is no picture") from error


def turn_pipeline(encode: EncodeStage, actor: Actor, slots: int) -> TurnPipeline:
    """Turns of the episodes of an actor's ``slots``. The encoder may be shared with other actors."""
    return Pipeline.of(encode).then(Stage("generate", actor.act, workers=slots))


def stage_metrics(pipelines: Iterable[TurnPipeline]) -> dict[str, dict[str, Any]]:
    """What the stages have done: sums over pipelines, by name of the stage; ``most_queued`` is a maximum."""
    stages = {id(stage): stage for pipeline in pipelines for stage in pipeline.stages}
    found: dict[str, dict[str, Any]] = {}
    for stage in stages.values():
        values = asdict(stage.metrics)
        before = found.get(stage.name)
        if before is not None:
            most = max(values["most_queued"], before["most_queued"])
            values = {name: value + before[name] for name, value in values.items()} | {"most_queued": most}
        found[stage.name] = values
    return found
