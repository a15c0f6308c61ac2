"""Pipeline of one turn: encode the captured page in a thread, then generate.

Both overlap with the browser.

An episode that wants a turn while four pages wait to be encoded is held back, so that captured pages do not pile up before a slow encoder. What
waits for the policy is bounded by the slots: each has one turn in a batch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from envs.types import BrowserError
from tasks_lib.episode.actors import Actor, EncodedSituation, Situation, Turn
from tasks_lib.episode.pipeline import Pipeline, Stage
from training.ledger.store import RunStore
from training.policy.prompt import MEMORY_BUDGET, ObservationMode, user_text
from training.serving.engine import Picture

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer

EncodeStage = Stage[Situation, EncodedSituation]
TurnPipeline = Pipeline[Situation, Turn]


def encode_stage(
    renderer: Renderer,
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
        picture = Picture(now.frame.screenshot, picture_size(now.frame.screenshot), store.blob_path(screenshot))
        return EncodedSituation(now, prompt, renderer.encode(prompt, [picture.size]), (picture,), screenshot)

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
    """Turns of the episodes of an actor's ``slots``."""
    return Pipeline.of(encode).then(Stage("generate", actor.act, workers=slots))


def stage_metrics(turns: TurnPipeline) -> dict[str, dict[str, Any]]:
    """What the stages of a pipeline have done, by name."""
    return {stage.name: asdict(stage.metrics) for stage in turns.stages}
