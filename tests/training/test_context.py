"""Prompts with several rounds: what is shown, what a prefix cache can keep, and that the trainer
trains on exactly that."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from envs.types import Click, Observation, PolicyError, Step
from training.ledger.store import RunStore
from training.policy.context import ContextPolicy, first_round, make_conversation, without_thought
from training.policy.rendered import RenderedPrompt
from training.policy.renderer import Renderer
from training.serving.engine import Generation, GenerationRequest, Picture
from training.serving.local import LocalModel
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.rows import TrainingRow
from training.trainer.setup import build_trainer

from .trainer.conftest import make_spec
from .vision_models import FAMILIES, TEMPLATES, change_json, picture

SIZE = (96, 130)


def make_steps(renderer: Renderer | None, count: int, error_at: int = -1) -> list[Step]:
    """Steps on pages with titles; each screenshot is new, but for step 1 after step 0."""
    steps = []
    for index in range(count):
        response = f"click({index})"
        ids = tuple(renderer.encode_response(response)) if renderer else (index,)
        seen = Observation(
            instruction="Buy a pen.",
            elements=(),
            url="",
            viewport=SIZE,
            title=f"Page {index}",
            error="there is no element 7" if index == error_at + 1 and error_at >= 0 else None,
        )
        steps.append(
            Step(
                index=index,
                observation=seen,
                screenshot=f"shot{max(index, 1)}",
                prompt=f"Page:\nTask: Buy a pen. (at {index})",
                prompt_ids=(),
                response=response,
                response_ids=ids,
                logprobs=(0.0,) * len(ids),
                policy_version=0,
                action=Click(element=index),
                error="unknown_element" if index == error_at else None,
            )
        )
    return steps


def talk(
    context: ContextPolicy, rounds: int, steps: Sequence[Step], dropped: int = 0
) -> list[tuple[str, str, tuple[str, ...]]]:
    made = make_conversation(context, rounds, steps, "Page: now", "now", dropped)
    return [(message.role, message.text, message.pictures) for message in made]


def test_the_present_alone() -> None:
    assert talk("present", 4, make_steps(None, 3)) == [("user", "Page: now", ("now",))]


def test_a_window_shows_the_last_rounds_and_older_steps_as_lines() -> None:
    assert talk("window", 2, make_steps(None, 4, error_at=2)) == [
        (
            "user",
            "Step 1 on [Page 0]: click(0) -> page unchanged\n"
            "Step 2 on [Page 1]: click(1) -> page changed\n"
            "Task: Buy a pen.",
            ("shot2",),
        ),
        ("assistant", "click(2)", ()),
        ("user", "Error: there is no element 7", ("shot3",)),
        ("assistant", "click(3)", ()),
        ("user", "Page: now", ("now",)),
    ]
    assert talk("window", 2, []) == [("user", "Page: now", ("now",))]
    cut = talk("window", 2, make_steps(None, 4, error_at=2), dropped=2)
    assert len(cut) == 1 and cut[0][1].splitlines()[2:] == [
        "Step 3 on [Page 2]: click(2) -> not carried out (unknown_element)",
        "Step 4 on [Page 3]: click(3) -> page changed",
        "Page: now",
    ]


@given(st.integers(0, 40), st.integers(0, 9), st.sampled_from(["window", "append"]))
def test_no_more_rounds_than_asked_and_the_newest_ones(steps: int, rounds: int, context: ContextPolicy) -> None:
    first = first_round(context, rounds, steps)
    assert 0 <= first <= steps and steps - first <= rounds
    if context == "window":
        assert steps - first == min(steps, rounds)
    if steps:
        assert first_round(context, rounds, steps - 1) <= first


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("<think>where is it?</think>\nclick(3)", "click(3)"),
        ("where is it?</think>\n\nclick(3)", "click(3)"),
        ("<think>cut before its end", ""),
        ("click(3)", "click(3)"),
        ("<think>a</think>b<think>c</think>d", "bd"),
    ],
)
def test_thoughts_are_not_shown_again(said: str, shown: str) -> None:
    assert without_thought(said) == shown


@pytest.fixture(scope="module")
def renderer_of(tiny_checkpoint: Callable[[str], Path]) -> Callable[[str], Renderer]:
    return cache(lambda family: Renderer(tiny_checkpoint(family), TEMPLATES[family]))


def encoded(
    renderer: Renderer, context: ContextPolicy, rounds: int, steps: Sequence[Step], text: str
) -> RenderedPrompt:
    messages = make_conversation(context, rounds, steps, text, f"shot{len(steps)}")
    count = sum(len(message.pictures) for message in messages)
    return renderer.encode_conversation(messages, [SIZE] * count)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_message_is_the_prompt_of_today(family: str, renderer_of: Callable[[str], Renderer]) -> None:
    renderer = renderer_of(family)
    assert encoded(renderer, "present", 4, [], "Task: a b") == renderer.encode("Task: a b", [SIZE])


@pytest.mark.parametrize("family", FAMILIES)
def test_a_conversation_is_the_chat_format(family: str, renderer_of: Callable[[str], Renderer]) -> None:
    renderer = renderer_of(family)
    prompt = encoded(renderer, "window", 2, make_steps(renderer, 1), "Page: now")
    system = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n" if family != "qwen3_vl" else ""
    image = "<|vision_start|><|image_pad|><|vision_end|>"
    assert renderer.tokenizer.decode(prompt.short_ids) == (
        f"{system}<|im_start|>user\n{image}\nTask: Buy a pen.<|im_end|>\n<|im_start|>assistant\nclick(0)<|im_end|>\n"
        f"<|im_start|>user\n{image}\nPage: now<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_an_appended_prompt_begins_with_the_one_before_and_its_turn(
    family: str, renderer_of: Callable[[str], Renderer]
) -> None:
    renderer, rounds, kept = renderer_of(family), 4, 0
    steps = make_steps(renderer, 9)
    for count in range(len(steps)):
        before = encoded(renderer, "append", rounds, steps[:count], steps[count].prompt).ids
        after = encoded(renderer, "append", rounds, steps[: count + 1], "Page: now").ids
        begins = (
            after[: len(before)] == before
            and after[len(before) :][: len(steps[count].response_ids)] == steps[count].response_ids
        )
        same_block = first_round("append", rounds, count) == first_round("append", rounds, count + 1)
        assert begins == same_block
        kept += begins
    assert kept == 6, "of nine, with a block of two dropped at steps 5, 7 and 9"


def test_turns_go_in_as_they_were_sampled(renderer_of: Callable[[str], Renderer]) -> None:
    """Ids that no tokenizer would make of the text stay as they are."""
    renderer = renderer_of("qwen2_vl")
    letters = tuple(renderer.tokenizer.convert_tokens_to_ids(list("click")))
    assert letters != tuple(renderer.tokenizer.encode("click"))
    (step,) = make_steps(renderer, 1)
    step = step.model_copy(update={"response": "click", "response_ids": letters})
    ids = encoded(renderer, "window", 2, [step], "Page: now").ids
    assert any(ids[start : start + len(letters)] == letters for start in range(len(ids)))
    thought = step.model_copy(update={"response": "<think>a</think>click"})
    assert "<think>" not in renderer.decode(encoded(renderer, "window", 2, [thought], "Page: now").ids)


def test_earlier_turns_of_a_thinking_model_have_no_thought(
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    renderer = Renderer(tiny_checkpoint("qwen3_vl"), "qwen3_vl")
    (step,) = make_steps(renderer, 1)
    thought = step.model_copy(update={"response": "<think>where?</think>\n\nclick(0)"})
    plain, stripped = (encoded(renderer, "window", 2, [each], "Page: now").ids for each in (step, thought))
    assert plain == stripped
    assert "think" not in renderer.tokenizer.decode(plain)


# -- the trainer scores what the engine generated, with several pictures

TOKENS = 6


@pytest.fixture(scope="module")
def trainers(
    tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], PolicyTrainer]:
    def make(family: str, finetuning: str) -> PolicyTrainer:
        store = RunStore(tmp_path_factory.mktemp("run"))
        store.publish_policy(0, tiny_checkpoint(family), {})
        spec = make_spec(template=TEMPLATES[family], trainer={"finetuning_type": finetuning, "lora_rank": 4})
        return build_trainer(store, spec, 0)

    return cache(make)


def trained_scores(trainer: PolicyTrainer, request: GenerationRequest, turn: Generation) -> torch.Tensor:
    row = TrainingRow(
        prompt_ids=request.prompt.ids,
        response_ids=turn.token_ids,
        behaviour=turn.logprobs,
        screenshots=tuple(each.jpeg for each in request.pictures),
        advantage=1.0,
    )
    micro = trainer.data_collator.micro_batch([row], [True])
    return trainer.score(micro)[0][micro.mask]


@pytest.mark.parametrize("images", [1, 2, 5])
@pytest.mark.parametrize("finetuning", ["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probs_over_several_pictures_are_the_trainer_s(
    family: str,
    finetuning: str,
    images: int,
    renderer_of: Callable[[str], Renderer],
    trainers: Callable[[str, str], PolicyTrainer],
    tiny_checkpoint: Callable[[str], Path],
) -> None:
    renderer, trainer = renderer_of(family), trainers(family, finetuning)
    renderer.banned_ids = []
    engine = LocalModel(renderer, "cpu")
    engine.load(0, tiny_checkpoint(family))
    steps = make_steps(renderer, images - 1)
    prompt = encoded(renderer, "window", 4, steps, "Page: now")
    assert len(prompt.image_places) == images
    pictures = tuple(Picture(picture(SIZE, number), SIZE) for number in range(images))
    request = GenerationRequest(prompt, pictures, "k", "e", 1, TOKENS, 1.0)
    (turn,) = engine.generate([request])
    recorded = torch.tensor(turn.logprobs)
    assert (trained_scores(trainer, request, turn) - recorded).abs().max() < 1e-4
    moved = replace(request, pictures=(*pictures[:-1], Picture(picture(SIZE, 99), SIZE)))
    assert (trained_scores(trainer, moved, turn) - recorded).abs().max() > 1e-3
    if images > 1:
        swapped = replace(request, pictures=(pictures[1], pictures[0], *pictures[2:]))
        assert (trained_scores(trainer, swapped, turn) - recorded).abs().max() > 1e-4


def test_a_prompt_with_another_number_of_pictures_is_refused(renderer_of: Callable[[str], Renderer]) -> None:
    renderer = renderer_of("qwen2_vl")
    messages = make_conversation("window", 2, make_steps(renderer, 2), "Page: now", "now")
    with pytest.raises(PolicyError, match="names 3 pictures, and 2 sizes are given"):
        renderer.encode_conversation(messages, [SIZE] * 2)


@pytest.mark.parametrize(
    ("family", "size", "fitted", "tokens"),
    [
        ("qwen3_vl", (1280, 768), (1280, 768), 960),  # WebGym's
        ("qwen3_vl", (2560, 1536), (1280, 768), 960),
        ("qwen2_vl", (2560, 1536), (1260, 756), 45 * 27),
        ("qwen2_5_vl", (1000, 3000), (560, 1708), 20 * 61),
    ],
)
def test_pictures_are_fitted_once_for_all(
    family: str,
    size: tuple[int, int],
    fitted: tuple[int, int],
    tokens: int,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    folder = shutil.copytree(tiny_checkpoint(family), tmp_path / "large")
    limit = 2**24
    change_json(
        folder / "preprocessor_config.json",
        max_pixels=limit,
        size={"shortest_edge": 3136, "longest_edge": limit},
    )
    renderer = Renderer(folder, TEMPLATES[family])
    assert renderer.fitting_size(size, 1280 * 768) == fitted
    prompt = renderer.encode("Task: x", [fitted])
    assert prompt.image_places[0][1] == tokens
    pixels = renderer.image_inputs([picture(fitted, 0)])
    assert int(pixels["image_grid_thw"].prod()) == 4 * tokens
    patch = 14 if family != "qwen3_vl" else 16
    assert [int(side) * patch for side in pixels["image_grid_thw"][0, 1:]] == [fitted[1], fitted[0]], (
        "nothing is scaled again"
    )
