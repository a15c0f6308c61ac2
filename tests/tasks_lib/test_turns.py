"""The way of a turn: pages are encoded beside the event loop, few wait, and a slow model and a slow
encoder overlap."""

from __future__ import annotations

import asyncio
import builtins
import io
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from envs.browser import PageStep
from envs.types import BrowserError, Click, Observation, Step, WebTask
from tasks_lib.worker.actors import EncodedSituation, Situation, Turn
from tasks_lib.worker.pipeline import QUEUE
from tasks_lib.worker.turns import PromptEncoder, encode_stage, picture_size, stage_metrics, turn_pipeline
from tests.turns import Letters
from training.config import PolicyConfig
from training.ledger.store import RunStore
from training.policy.context import Message
from training.policy.rendered import RenderedPrompt
from training.records.groups import GroupSpec

SLOTS = 12
SLOW = 0.02
"""Seconds of one encoding, and of one turn of the model."""


class SlowEngine(Letters):
    """Encodes and answers slowly, one at a time, and knows the threads that it was called in."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()
        self.fails = False
        self.seconds: dict[str, list[tuple[float, float]]] = {"encode": [], "act": []}

    @contextmanager
    def busy(self, what: str) -> Iterator[None]:
        """When it was done, from when to when."""
        begun = time.perf_counter()
        yield
        self.seconds[what].append((begun, time.perf_counter()))

    def encode_conversation(
        self, messages: Sequence[Message], sizes: Sequence[tuple[int, int]], system: str = "", tools: str = ""
    ) -> RenderedPrompt:
        self.threads.add(threading.get_ident())
        with self.busy("encode"):
            time.sleep(SLOW)
        if self.fails:
            raise ValueError("no such word")
        ids = (len(messages[-1].text), *sizes[-1])
        return RenderedPrompt(ids, ids, ())


class SlowActor:
    """Answers one after the other."""

    policy_version = 3

    def __init__(self, engine: SlowEngine) -> None:
        self._one, self._engine = asyncio.Lock(), engine

    def session(self, name: str) -> AbstractAsyncContextManager[None]:
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
    picture = io.BytesIO()
    Image.new("RGB", (160 + sample, 210)).save(picture, "JPEG")
    frame = PageStep(seen, picture.getvalue(), done=False)
    return Situation(GroupSpec(group_id="i000000-g0000", task=task, seeds=(0,)), sample, frame, [])


async def play(engine: SlowEngine, store: RunStore) -> tuple[list[Turn], dict[str, dict[str, float]]]:
    """Turns of twelve slots, and what the stages did."""
    with ThreadPoolExecutor(1) as threads:
        turns = turn_pipeline(encode_stage(engine, store, PolicyConfig(), threads), SlowActor(engine), SLOTS)
        made = await asyncio.gather(*(turns.run(situation(sample)) for sample in range(SLOTS)))
        return made, stage_metrics(turns)


async def test_encoding_and_generation_overlap_and_few_pages_wait(tmp_path: Path) -> None:
    engine, store = SlowEngine(), RunStore(tmp_path)
    made, metrics = await play(engine, store)
    assert [turn.asked.situation.sample for turn in made] == list(range(SLOTS))
    assert engine.threads and threading.get_ident() not in engine.threads
    for turn in made:
        assert store.blob(turn.asked.screenshot) == turn.asked.situation.frame.screenshot
        (picture,) = turn.asked.pictures
        assert picture.path is not None and picture.path.read_bytes() == picture.jpeg, "a server may read the blob"
        assert picture.size == (160 + turn.asked.situation.sample, 210)
        assert turn.asked.rendered.ids == (len(turn.asked.prompt), 160 + turn.asked.situation.sample, 210)
    assert metrics["encode"]["most_queued"] == QUEUE
    assert metrics["encode"]["done"] == metrics["generate"]["done"] == SLOTS
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
    """So that it becomes an abstention, and not an error of the engine with the turns of a whole
    batch."""
    with pytest.raises(BrowserError, match=rf"screenshot of {len(picture)} bytes is no picture"):
        picture_size(picture)


def played(store: RunStore, count: int) -> list[Step]:
    """Steps with screenshots of their own, each as wide as its index says."""
    return [
        make_step(index).model_copy(
            update={"screenshot": store.put_blob(situation(index).frame.screenshot), "response": "click(1)"}
        )
        for index in range(count)
    ]


def make_step(index: int) -> Step:
    seen = Observation(instruction="Click.", elements=(), url="", viewport=(160, 210))
    return Step(
        index=index,
        observation=seen,
        screenshot="",
        prompt="Task: Click.",
        prompt_ids=(),
        response="",
        response_ids=(),
        logprobs=(),
        policy_version=0,
        action=Click(element=1),
    )


def test_the_prompt_has_the_pictures_of_its_rounds(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    encoder = PromptEncoder(Letters(), store, PolicyConfig(context="window", context_rounds=2), 1000)  # type: ignore[arg-type]
    steps = played(store, 3)
    asked = encoder.encode(replace(situation(9), steps=steps))
    assert [picture.size[0] for picture in asked.pictures] == [161, 162, 169]
    assert [store.blob(name) for message in asked.context for name in message.pictures] == [
        picture.jpeg for picture in asked.pictures[:-1]
    ]
    assert asked.prompt.startswith("Page:") and "Done:" not in asked.prompt and asked.cut_rounds == 0


def test_rounds_are_cut_to_the_budget_of_tokens_and_counted(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    steps = played(store, 4)
    sizes = {}
    for tokens in (0, 900, 450, 300, 1):
        policy = PolicyConfig(context="window", context_rounds=4, context_tokens=tokens)
        asked = PromptEncoder(Letters(100), store, policy, 1000).encode(replace(situation(9), steps=steps))  # type: ignore[arg-type]
        sizes[tokens] = (len(asked.pictures), asked.cut_rounds)
        assert len(asked.pictures) + asked.cut_rounds == 5
        assert not tokens or len(asked.rendered.ids) <= tokens or len(asked.pictures) == 1
    assert sizes[0] == sizes[900] == (5, 0) and sizes[1] == (1, 4)
    assert len({*sizes.values()}) >= 3


def test_a_large_picture_is_scaled_down_before_it_is_kept(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    asked = PromptEncoder(Letters(fitted=(80, 104)), store, PolicyConfig(image_pixels=160 * 210), 1000).encode(
        situation(9)
    )  # type: ignore[arg-type]
    (picture,) = asked.pictures
    assert picture.size == (80, 104) and store.blob(asked.screenshot) == picture.jpeg
    with Image.open(io.BytesIO(picture.jpeg)) as image:
        assert image.size == (80, 104)
    asked = PromptEncoder(Letters(), store, PolicyConfig(), 1000).encode(situation(9))  # type: ignore[arg-type]
    assert asked.pictures[0].jpeg == situation(9).frame.screenshot


def count_look_ups(folder: Path, patch: pytest.MonkeyPatch) -> list[str]:
    """The list that each look-up below a folder is added to: reads, and writes whose folder is
    missing."""
    asked: list[str] = []

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *args: Any, **options: Any) -> Any:
            is_written = function is plain_open and args[:1] == ("wb",)
            try:
                return function(path, *args, **options)
            except FileNotFoundError:
                is_written = False
                raise
            finally:
                asked.extend([str(path)] * (str(path).startswith(str(folder)) and not is_written))

        return call

    plain_open = open
    looking = (os, ("stat", "lstat", "access", "scandir", "listdir")), (io, ("open",)), (builtins, ("open",))
    for module, names in looking:
        for name in names:
            patch.setattr(module, name, counted(getattr(module, name)))
    return asked


def test_a_screenshot_costs_at_most_two_look_ups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On shared storage each is a request, and 10,000 episodes take 2,500 screenshots a second."""
    store = RunStore(tmp_path)
    encoder = PromptEncoder(Letters(), store, PolicyConfig(context="window", context_rounds=4), 1000)  # type: ignore[arg-type]
    store.put_blob(situation(100).frame.screenshot)
    steps: list[Step] = []
    asked = count_look_ups(tmp_path, monkeypatch)
    for index in range(6):
        turn = encoder.encode(replace(situation(index), steps=tuple(steps)))
        assert len(turn.pictures) == min(index + 1, 5)
        assert 1 <= len(asked) <= 2, asked
        asked.clear()
        steps.append(make_step(index).model_copy(update={"screenshot": turn.screenshot}))
    assert len({store.blob(step.screenshot) for step in steps}) == 6 == len(asked), "a picture is read in one call"
    asked.clear()
    store.put_blob(situation(0).frame.screenshot)
    assert len(asked) == 1, "what is there is looked up once"


def test_pictures_of_every_episode_under_way_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_again(kept: int) -> int:
        """How often a picture of an earlier round was read, in three episodes that take turns."""
        store = RunStore(tmp_path / str(kept))
        encoder = PromptEncoder(Letters(), store, PolicyConfig(context="window", context_rounds=2), 1000, kept)  # type: ignore[arg-type]
        read: list[str] = []

        def blob(name: str) -> bytes:
            read.append(name)
            return RunStore(store.root).blob(name)

        monkeypatch.setattr(store, "blob", blob)
        steps: list[list[Step]] = [[], [], []]
        for index in range(4):
            for episode, earlier in enumerate(steps):
                turn = encoder.encode(replace(situation(10 * episode + index), steps=tuple(earlier)))
                earlier.append(make_step(index).model_copy(update={"screenshot": turn.screenshot}))
        return len(read)

    assert read_again(3) == 0 < read_again(1)
