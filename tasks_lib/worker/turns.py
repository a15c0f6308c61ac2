"""Pipeline of one turn: encode the captured page in a thread, then generate.

Both overlap with the browser.

An episode waits with its turn while four pages are queued for encoding, so that captured pages do
not pile up before a slow encoder. The turns that wait for the policy are bounded by the slots: each
has one turn in a batch.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from io import BytesIO
from typing import TYPE_CHECKING, Any

from PIL import Image, UnidentifiedImageError

from envs.prompts import MEMORY_BUDGET, system_text, tools_text, user_text
from envs.types import BrowserError
from tasks_lib.worker.actors import Actor, EncodedSituation, Situation, Turn
from tasks_lib.worker.pipeline import Pipeline, Stage
from training.config import PolicyConfig
from training.ledger.blobs import blob_kind
from training.ledger.store import RunStore
from training.policy.context import make_conversation
from training.serving.engine import Picture

if TYPE_CHECKING:  # imports torch: seconds
    from training.policy.renderer import Renderer

EPISODES = 64
"""Episodes under way where their number is not given."""

JPEG_QUALITY = 90
"""JPEG quality of pictures that are scaled down, of 100."""

EncodeStage = Stage[Situation, EncodedSituation]
TurnPipeline = Pipeline[Situation, Turn]


def encode_stage(
    renderer: Renderer,
    store: RunStore,
    policy: PolicyConfig,
    threads: ThreadPoolExecutor,
    memory_budget: int = MEMORY_BUDGET,
    episodes: int = EPISODES,
) -> EncodeStage:
    """Return the stage that stores the screenshot as a blob, and writes and tokenizes the prompt.

    It works on one item at a time, because threads cannot share a tokenizer.
    """
    encoder = PromptEncoder(renderer, store, policy, memory_budget, episodes)
    return Stage.in_threads("encode", encoder.encode, threads)


class PromptEncoder:
    """Makes the prompts of one rollout.

    The pictures of ``episodes`` under way stay in memory, some 100 kB each.
    """

    def __init__(
        self, renderer: Renderer, store: RunStore, policy: PolicyConfig, memory_budget: int, episodes: int = EPISODES
    ) -> None:
        self._renderer, self._store, self._policy = renderer, store, policy
        self._memory_budget = memory_budget
        self._system = system_text(policy.prompt, policy.observation)
        self._tools = tools_text(policy.prompt, policy.observation)
        max_tokens = max(1, renderer.context_tokens - policy.max_new_tokens)
        self._limit = min(policy.context_tokens or max_tokens, max_tokens)
        self._pictures: dict[str, Picture] = {}
        """The pictures that were used last, by name."""
        self._most_pictures = episodes * policy.max_images

    def encode(self, situation: Situation) -> EncodedSituation:
        """Return a situation with its prompt, which has as many rounds as the limit allows."""
        policy = self._policy
        jpeg, size = fit_picture(situation.frame.screenshot, self._renderer, policy.image_pixels)
        screenshot = self._store.put_blob(jpeg)
        self._keep(screenshot, Picture(jpeg, size, self._store.blob_path(screenshot, blob_kind(jpeg))))
        text = user_text(
            situation.frame.observation,
            [step.response for step in situation.steps] if policy.context == "present" else [],
            policy.observation,
            memory=situation.memory,
            memory_budget=self._memory_budget,
        )
        dropped = 0
        while True:
            messages = make_conversation(
                policy.context, policy.context_rounds, situation.steps, text, screenshot, dropped
            )
            names = [name for message in messages for name in message.pictures]
            pictures = tuple(self._picture(name) for name in names)
            rendered = self._renderer.encode_conversation(
                messages, [picture.size for picture in pictures], self._system, self._tools
            )
            if len(rendered.ids) <= self._limit or len(messages) == 1:
                break
            dropped += 1
        return EncodedSituation(
            situation,
            text,
            rendered,
            pictures,
            screenshot,
            tuple(message.record() for message in messages[:-1]),
            dropped,
        )

    def _picture(self, name: str) -> Picture:
        """Return the picture of a step; it is read where it is not kept any more."""
        picture = self._pictures.pop(name, None)
        if picture is None:
            jpeg = self._store.blob(name)
            picture = Picture(jpeg, picture_size(jpeg), self._store.blob_path(name, blob_kind(jpeg)))
        return self._keep(name, picture)

    def _keep(self, name: str, picture: Picture) -> Picture:
        self._pictures[name] = picture
        if len(self._pictures) > self._most_pictures:
            del self._pictures[next(iter(self._pictures))]
        return picture


def fit_picture(jpeg: bytes, renderer: Renderer, pixels: int) -> tuple[bytes, tuple[int, int]]:
    """Scale a screenshot down to at most ``pixels``, and return it with its size.

    Engine, server, trainer and judge all get these bytes.

    Raises:
        BrowserError: the browser gave no picture.
    """
    size = picture_size(jpeg)
    fitted = renderer.fitting_size(size, pixels)
    if fitted == size:
        return jpeg, size
    with Image.open(BytesIO(jpeg)) as image, BytesIO() as smaller:
        image.convert("RGB").resize(fitted, Image.Resampling.LANCZOS).save(smaller, "JPEG", quality=JPEG_QUALITY)
        return smaller.getvalue(), fitted


def picture_size(picture: bytes) -> tuple[int, int]:
    """Return width and height in pixels, read from the picture's header.

    They are not the page's CSS pixels at every device scale.

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
    """Return the pipeline of turns of an actor with ``slots`` concurrent episodes."""
    return Pipeline.of(encode).then(Stage("generate", actor.act, workers=slots))


def stage_metrics(turns: TurnPipeline) -> dict[str, dict[str, Any]]:
    """Return the counters of a pipeline's stages, by name."""
    return {stage.name: asdict(stage.metrics) for stage in turns.stages}
