"""The way of a turn: pages are encoded beside the event loop, few wait, and a slow model and a slow encoder overlap."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from envs.browser import PageStep
from envs.types import BrowserError, Observation, WebTask
from tasks_lib.episode.actors import EncodedSituation, Situation, Turn
from tasks_lib.episode.pipeline import QUEUE
from tasks_lib.episode.turns import encode_stage, picture_size, stage_metrics, turn_pipeline
from training.groups import GroupSpec
from training.inference.engine import Generation, GenerationRequest
from training.ledger.store import RunStore

SLOTS = 12
SLOW = 0.02
"""Seconds of one encoding, and of one turn of the model."""


class SlowEngine:
    """Encodes and answers slowly, one at a time, and knows the threads that it was called in."""

    policy_version = 3

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.fails = False
        self.seconds: dict[str, list[tuple[float, float]]] = {"encode": [], "act": []}

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """When it was done, from when to when."""
        begun = time.perf_counter()
        yield
        self.seconds[what].append((begun, time.perf_counter()))

    def load(self, version: int, checkpoint: Path) -> None:
        """Nothing to load."""

    def encode(self, text: str, image_size: tuple[int, int]) -> list[int]:
        self.threads.add(threading.get_ident())
        with self.busy("encode"):
            time.sleep(SLOW)
        if self.fails:
            raise ValueError("no such word")
        return [len(text), *image_size]

    def encode_response(self, text: str) -> list[int]:
        return [1]

    def generate(self, requests: list[GenerationRequest]) -> list[Generation]:
        raise NotImplementedError


class SlowActor:
    """Answers one after the other."""

    policy_version = 3

    def __init__(self, engine: SlowEngine) -> None:
        self._one, self._engine = asyncio.Lock(), engine

    def slot(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def act(self, asked: EncodedSituation) -> Turn:
        async with self._one:
            with self._engine.busy("act"):
                await asyncio.sleep(SLOW)
        return Turn(asked, "", (1,), (0.0,), self.policy_version)


def situation(sample: int) -> Situation:
    """A page whose screenshot is ``sample`` wider than its viewport."""
    task = WebTask(task_id="t", site="miniwob", kind="click-test", path="/", difficulty=1, horizon=2, seeds={})
    seen = Observation(instruction=f"Click {sample}.", elements=(), url="", viewport=(160, 210))
    picture = BytesIO()
    Image.new("RGB", (160 + sample, 210)).save(picture, "JPEG")
    frame = PageStep(seen, picture.getvalue(), done=False)
    return Situation(GroupSpec(group_id="i000000-g0000", task=task, seeds=(0,)), sample, frame, [])


async def play(engine: SlowEngine, store: RunStore) -> tuple[list[Turn], dict[str, dict[str, float]]]:
    """Turns of twelve slots, and what the stages did."""
    with ThreadPoolExecutor(1) as threads:
        turns = turn_pipeline(encode_stage(engine, store, "text", threads), SlowActor(engine), SLOTS)
        made = await asyncio.gather(*(turns.run(situation(sample)) for sample in range(SLOTS)))
        return made, stage_metrics([turns, turns])


async def test_encoding_and_generation_overlap_and_few_pages_wait(tmp_path: Path) -> None:
    engine, store = SlowEngine(), RunStore(tmp_path)
    made, metrics = await play(engine, store)
    assert [turn.asked.situation.sample for turn in made] == list(range(SLOTS))
    assert engine.threads and threading.get_ident() not in engine.threads
    for turn in made:
        assert store.blob(turn.asked.screenshot) == turn.asked.situation.frame.screenshot
        assert turn.asked.prompt_ids == (len(turn.asked.prompt), 160 + turn.asked.situation.sample, 210)
    assert metrics["encode"]["most_queued"] == QUEUE
    assert metrics["encode"]["done"] == metrics["generate"]["done"] == SLOTS, "a stage was counted twice"
    acts = engine.seconds["act"]
    overlap = [any(begun < end and other < until for other, until in acts) for begun, end in engine.seconds["encode"]]
    assert sum(overlap) > SLOTS / 2, "pages are encoded while the model answers"


async def test_what_cannot_be_encoded_is_said_to_its_episode(tmp_path: Path) -> None:
    engine = SlowEngine()
    engine.fails = True
    with pytest.raises(ValueError, match="no such word"):
        await play(engine, RunStore(tmp_path))


@pytest.mark.parametrize("picture", [b"", b"<html>", b"\xff\xd8\xff"])
def test_a_screenshot_that_is_no_picture_is_the_browser_s_fault(picture: bytes) -> None:
    """So that it becomes an abstention, and not an error of the engine with the turns of a whole batch."""
    with pytest.raises(BrowserError, match=rf"screenshot of {len(picture)} bytes is no picture"):
        picture_size(picture)
