"""The Tinker adapter with the real ``tinker`` types and renderers that make real tokens."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
import pickle
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import tinker
from PIL import Image

from envs import Split, StepRenderer, TaskError
from envs.adapters import close_hosts, shared_host
from envs.adapters.tinker import TinkerEnv, TinkerGroupBuilder
from envs.adapters.tinker_dataset import TinkerDataset, TinkerDatasetBuilder
from envs.adapters.tinker_types import TinkerNoPrompt, TinkerStep
from envs.registry import find_task
from envs.types import ConfigError
from training.policy.context import Message
from training.policy.renderer import Renderer
from training.warm_start.tiny_checkpoint import build_tokenizer

from ...training.vision_models import make_checkpoint
from .reference import CANARY, SCRIPTS, digest, reference

IMAGE_TOKENS = 12


class ChatTemplateRenderer:
    """Renders messages with a Hugging Face tokenizer's chat template."""

    def __init__(self) -> None:
        self.tokenizer = build_tokenizer(10**9)
        self.image_id = self.tokenizer.convert_tokens_to_ids("<|image_pad|>")

    def get_stop_sequences(self) -> list[int]:
        return [self.tokenizer.eos_token_id]

    def build_generation_prompt(self, messages: list[Any]) -> tinker.ModelInput:
        text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return chunked(self.tokenizer.encode(text), pictures(messages), self.image_id, IMAGE_TOKENS)


class TrainingRenderer:
    """Renders messages with the renderer of our own training (LLaMA-Factory's templates)."""

    def __init__(self, renderer: Renderer) -> None:
        self.renderer, self.tokenizer = renderer, renderer.tokenizer

    def get_stop_sequences(self) -> list[int]:
        return [self.tokenizer.eos_token_id]

    def build_generation_prompt(self, messages: list[Any]) -> tinker.ModelInput:
        system = "".join(text_of(message) for message in messages if message["role"] == "system")
        turns = [
            Message(message["role"], text_of(message), tuple(map(str, range(len(pictures([message]))))))
            for message in messages
            if message["role"] != "system"
        ]
        images = pictures(messages)
        sizes = [Image.open(BytesIO(image)).size for image in images]
        prompt = self.renderer.encode_conversation(turns, sizes, system)
        length = prompt.image_places[0][1] if images else 0
        return chunked(prompt.short_ids, images, self.renderer.image_token_id, length)


def text_of(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


def pictures(messages: list[Any]) -> list[bytes]:
    parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
    return [base64.b64decode(part["image"].partition(",")[2]) for part in parts if part["type"] == "image"]


def chunked(ids: Sequence[int], images: list[bytes], image_id: int, length: int) -> tinker.ModelInput:
    """Ids with one placeholder for each image as chunks. Image bytes are changed, as the cookbook
    does when it compresses anew."""
    chunks: list[Any] = []
    run: list[int] = []
    unused = iter(images)
    for token in [*ids, None]:
        if token is None or token == image_id:
            chunks.append(tinker.EncodedTextChunk(tokens=run))
            run = []
            if token is not None:
                image = tinker.types.ImageChunk(data=next(unused) + b"x", format="png", expected_tokens=length)
                chunks.append(image)
        else:
            run.append(token)
    return tinker.ModelInput(chunks=chunks)


@pytest.fixture(scope="module")
def renderer() -> Iterator[ChatTemplateRenderer]:
    yield ChatTemplateRenderer()
    close_hosts()


def flat(prompt: tinker.ModelInput) -> list[Any]:
    return [
        element
        for chunk in prompt.chunks
        for element in (chunk.tokens if isinstance(chunk, tinker.EncodedTextChunk) else [chunk])
    ]


def tokens(renderer: Any, text: str, end: bool = True) -> list[int]:
    """A turn's ids as a model may sample them: not the ones that the tokenizer makes of its
    text."""
    ids = [token for letter in text for token in renderer.tokenizer.encode(letter, add_special_tokens=False)]
    assert ids != renderer.tokenizer.encode(text, add_special_tokens=False)
    return [*ids, renderer.tokenizer.eos_token_id] if end else ids


@dataclass
class Turn:
    """``tinker_cookbook.rl.types.Transition``."""

    reward: float
    metrics: dict[str, float | int]


@dataclass
class Rollout:
    """``tinker_cookbook.rl.types.Trajectory``, with the prompts and ids beside it."""

    transitions: list[Turn] = field(default_factory=list)
    prompts: list[tinker.ModelInput] = field(default_factory=list)
    turns: list[list[int]] = field(default_factory=list)


async def play(env: TinkerEnv, renderer: Any, texts: Sequence[str]) -> Rollout:
    """The cookbook's rollout loop; the last text is repeated until the end."""
    rollout = Rollout()
    initial = await env.initial_observation()
    if isinstance(initial, TinkerNoPrompt):
        rollout.transitions.append(Turn(initial.reward, initial.metrics))
        return rollout
    prompt, stop = initial
    assert stop == renderer.get_stop_sequences()
    for number in range(20):
        rollout.prompts.append(prompt)
        ids = tokens(renderer, texts[min(number, len(texts) - 1)])
        rollout.turns.append(ids)
        step = await env.step(ids, extra={"stop_reason": "stop"})
        assert isinstance(step, TinkerStep)
        rollout.transitions.append(Turn(step.reward, step.metrics))
        if step.episode_done:
            return rollout
        prompt = step.next_observation
    raise AssertionError("the episode does not end")


@pytest.mark.parametrize("task", SCRIPTS)
async def test_an_episode_is_the_reference(task: str, renderer: ChatTemplateRenderer) -> None:
    expected, shown = reference(task), StepRenderer(mode="coordinates")
    env = TinkerEnv(task, renderer, shown=shown, seed=expected.seed)
    rollout = await play(env, renderer, expected.texts)
    assert env.trajectory is not None and env.abstained is None
    assert digest(env.trajectory) == digest(expected.trajectory)
    assert sum(turn.reward for turn in rollout.transitions) == expected.reward
    for prompt, step, screenshot in zip(rollout.prompts, expected.steps, expected.screenshots, strict=False):
        *_, image, page = prompt.chunks
        assert shown.text(step) in renderer.tokenizer.decode(page.tokens)
        assert hashlib.sha256(image.data).hexdigest() == screenshot and image.format == "jpeg"


@pytest.mark.parametrize("end", [True, False], ids=["stop token", "cut"])
async def test_sampled_ids_go_into_later_prompts_unchanged(renderer: ChatTemplateRenderer, end: bool) -> None:
    env = TinkerEnv("bundled/shop-open/200000/0", renderer)
    (prompt, stop), eos = await env.initial_observation(), renderer.tokenizer.eos_token_id
    for text in SCRIPTS["bundled/shop-open/200000/0"][1][:3]:
        ids = tokens(renderer, text, end)
        step = await env.step(ids)
        shorter, longer = flat(prompt), flat(step.next_observation)
        assert longer[: len(shorter) + len(ids)] == [*shorter, *ids]
        rest = renderer.tokenizer.decode(longer[len(shorter) + len(ids) :])
        assert rest.startswith(("" if end else "<|im_end|>") + "\n<|im_start|>user\nPage:")
        assert rest.endswith("<|im_end|>\n<|im_start|>assistant\n") and rest.count("<|im_start|>") == 2
        assert stop == [eos] and all(chunk.tokens for chunk in step.next_observation.chunks)
        prompt = step.next_observation
    await env.close()


async def test_the_renderer_of_our_training_fits(tmp_path: Path) -> None:
    renderer = TrainingRenderer(Renderer(make_checkpoint("qwen2_vl", tmp_path), "qwen2_vl"))
    expected = reference("bundled/tracker-open/200000/0")
    env = TinkerEnv(expected.task, renderer, shown=StepRenderer(mode="set_of_marks"))
    rollout = await play(env, renderer, expected.texts)
    assert (
        env.trajectory is not None
        and digest(env.trajectory) != ""
        and rollout.transitions[-1].reward == expected.reward
    )
    first, second = rollout.prompts
    assert flat(second)[: len(flat(first)) + len(rollout.turns[0])] == [*flat(first), *rollout.turns[0]]
    assert second.length > first.length > 200
    assert renderer.tokenizer.decode(second.chunks[-1].tokens).endswith("<|im_start|>assistant\n")


async def test_an_episode_always_ends(renderer: ChatTemplateRenderer) -> None:
    rollout = await play(TinkerEnv("miniwob/click-test", renderer, horizon=3), renderer, ["I think", "so", "what"])
    assert [turn.metrics for turn in rollout.transitions] == [{}, {}, {"stop/max_turns": 1.0, "abstained": 0.0}]
    env = TinkerEnv("miniwob/click-test", renderer)
    with pytest.raises(TaskError, match="initial_observation"):
        await env.step([1])


async def test_a_dead_browser_does_not_fail_the_group_and_is_not_trained_on(renderer: ChatTemplateRenderer) -> None:
    group = TinkerGroupBuilder("bundled/shop-open/200000/0", renderer, group_size=2)
    texts = [SCRIPTS["bundled/shop-open/200000/0"][1], ('{"action": "terminate"}',)]
    envs = await group.make_envs()
    rollouts = await asyncio.gather(*(play(env, renderer, text) for env, text in zip(envs, texts, strict=True)))
    good, bad = (sum(turn.reward for turn in rollout.transitions) for rollout in rollouts)
    assert good > bad

    own = {"max_sessions": 1}
    broken = TinkerEnv("bundled/shop-open/200000/0", renderer, pool_options=own)
    await broken.initial_observation()
    first = await broken.step(tokens(renderer, "click [1]"))
    pool = shared_host(**own, **StepRenderer().pool_options).host.pool
    os.kill(pool.browser_pids()[0], signal.SIGKILL)
    last = await broken.step(tokens(renderer, "click [2]"))
    assert last.episode_done and last.reward == 0.0
    assert last.metrics == {"stop/browser_error": 1.0, "abstained": 1.0, "parse_error_masked": 1.0}
    assert last.logs["abstained"] and broken.abstained == last.logs["abstained"]

    rollouts.append(Rollout([Turn(first.reward, first.metrics), Turn(last.reward, last.metrics)]))
    rewards = await group.compute_group_rewards(rollouts, [*envs, broken])
    assert rewards[:2] == [(0.0, {"group_abstained": 0.0})] * 2
    assert rewards[2] == (pytest.approx((good + bad) / 2), {"group_abstained": 1.0})
    assert [turn.metrics.get("parse_error_masked") for turn in rollouts[2].transitions] == [1.0, 1.0]
    assert not any("parse_error_masked" in turn.metrics for rollout in rollouts[:2] for turn in rollout.transitions)
    await group.cleanup()
    await group.cleanup()


async def test_an_episode_that_was_cut_off_is_not_trained_on(renderer: ChatTemplateRenderer) -> None:
    group = TinkerGroupBuilder("miniwob/click-test", renderer, group_size=1)
    (env,) = await group.make_envs()
    await env.initial_observation()
    cut = Rollout([Turn(0.0, {})])
    assert await group.compute_group_rewards([cut], [env]) == [(0.0, {"group_abstained": 1.0})]
    assert cut.transitions[0].metrics == {"parse_error_masked": 1.0}
    await group.cleanup()
    with pytest.raises(TaskError):
        await env.step([1])


async def test_a_prompt_too_long_abstains(renderer: ChatTemplateRenderer) -> None:
    first = TinkerEnv("miniwob/click-test", renderer, max_tokens=5)
    assert await play(first, renderer, ["click [99]"]) == Rollout(
        [Turn(0.0, {"stop/context_overflow": 1.0, "abstained": 1.0, "parse_error_masked": 1.0})]
    )
    assert first.abstained is not None and "max_tokens is 5" in first.abstained
    env = TinkerEnv("bundled/tracker-open/200000/0", renderer)
    prompt, _ = await env.initial_observation()
    await env.close()
    env = TinkerEnv("bundled/tracker-open/200000/0", renderer, max_tokens=prompt.length)
    rollout = await play(env, renderer, ["click [99]"])
    assert [turn.metrics for turn in rollout.transitions] == [
        {"stop/context_overflow": 1.0, "abstained": 1.0, "parse_error_masked": 1.0}
    ]


async def test_sessions_share_nothing(renderer: ChatTemplateRenderer) -> None:
    group = TinkerGroupBuilder(CANARY, renderer, group_size=2)
    first, second = await group.make_envs()

    def seen(prompt: tinker.ModelInput) -> str:
        return renderer.tokenizer.decode(flat(prompt)).rpartition("<|im_start|>user")[2]

    assert "found: nothing" in seen((await first.initial_observation())[0])
    await first.step(tokens(renderer, "click [1]"))
    page = (await first.step(tokens(renderer, '{"action": "refresh"}'))).next_observation
    assert "cookie,local,session,name" in seen(page).replace("k=", "")
    assert "found: nothing" in seen((await second.initial_observation())[0])
    await group.cleanup()


def test_groups_are_pickled(renderer: ChatTemplateRenderer) -> None:
    group = TinkerGroupBuilder("miniwob/click-test", renderer, group_size=2, seed=7)
    asyncio.run(group.make_envs())
    copy = pickle.loads(pickle.dumps(group))
    assert copy.task == group.task and len(asyncio.run(copy.make_envs())) == 2
    assert copy.logging_tags() == ["rollwright", "miniwob", "miniwob/click-test"]


def test_a_data_set_plays_all_tasks_with_seeds_of_its_split() -> None:
    tasks = [find_task(f"miniwob/{name}") for name in ("click-test", "enter-text", "click-dialog")]
    data: Any = TinkerDataset(tasks, None, groups_per_batch=2, group_size=4, batches=3)  # type: ignore[arg-type]
    groups = [group for index in range(len(data)) for group in data.get_batch(index)]
    played = [(group.task.kind, group.seed) for group in groups]
    first = tasks[0].seeds[Split.TRAIN].start
    assert sorted(played[:3]) == [(kind, first) for kind in ("click-dialog", "click-test", "enter-text")]
    assert sorted(played[3:]) == [(kind, first + 1) for kind in ("click-dialog", "click-test", "enter-text")]
    assert [group.seed for group in data.get_batch(1)] == [first, first + 1], "the same at each call"
    held_out: Any = TinkerDataset(tasks, None, groups_per_batch=2, group_size=1, split=Split.HELD_OUT)  # type: ignore[arg-type]
    assert len(held_out) == 2
    assert held_out.get_batch(0)[0].seed == tasks[0].seeds[Split.HELD_OUT].start
    with pytest.raises(TaskError, match="demo"):
        TinkerDataset([CANARY], None, groups_per_batch=1, group_size=1, split=Split.DEMO)  # type: ignore[arg-type]


async def test_without_the_cookbook_its_data_set_builder_says_so() -> None:
    builder = TinkerDatasetBuilder(tasks="miniwob", model_name="m", renderer_name="r", groups_per_batch=1, group_size=1)
    with pytest.raises(ConfigError, match="tinker-cookbook"):
        await builder()
