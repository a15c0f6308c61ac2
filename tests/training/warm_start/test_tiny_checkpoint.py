"""The tiny checkpoint: a tokenizer that loses nothing, and sizes that the rest of the system counts
on."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoTokenizer

from envs.types import PolicyError
from envs.types.action_text import format_action
from training.policy.bans import banned_ids
from training.policy.renderer import Renderer
from training.warm_start import synthetic
from training.warm_start.curriculum import ASSISTANT, chat_segments, collate
from training.warm_start.reading_heads import write_reading_heads
from training.warm_start.synthetic import VIEWPORT
from training.warm_start.tiny_checkpoint import (
    INTERFACE_WORDS,
    NUMBER_TOKENS,
    SPECIAL_TOKENS,
    TinyShape,
    build_model,
    build_tokenizer,
    save_checkpoint,
)

SHAPE = TinyShape()
PROJECT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer(SHAPE.letter_merges_below)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, tokenizer) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "checkpoint"
    save_checkpoint(build_model(SHAPE, tokenizer), tokenizer, folder)
    return folder


@pytest.fixture(scope="module")
def renderer(checkpoint: Path) -> Renderer:
    return Renderer(checkpoint, "qwen2_vl")


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=60)


@given(TEXT)
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back(tokenizer, text):
    from unicodedata import normalize  # Qwen's tokenizer folds to NFC first

    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == normalize("NFC", text)


def test_numbers_and_control_tokens_are_one_token(tokenizer):
    for word in [*NUMBER_TOKENS, *SPECIAL_TOKENS]:
        assert len(tokenizer.encode(word, add_special_tokens=False)) == 1, word
    longer = [word for word in INTERFACE_WORDS if len(tokenizer.encode(word, add_special_tokens=False)) > 1]
    assert longer == ["helpful", "labeled", "TWO"]


def test_the_tokenizer_is_the_shipped_reader_s(checkpoint):
    shipped = PROJECT / "datasets" / "policies" / "reader" / "tokenizer.json"
    assert json.loads((checkpoint / "tokenizer.json").read_text()) == json.loads(shipped.read_text())


@given(st.from_regex(r"[A-Za-z][A-Za-z0-9]{0,12}", fullmatch=True))
@settings(max_examples=100, deadline=None)
def test_a_label_has_the_same_tokens_wherever_it_stands(tokenizer, label):
    """Matching words is matching tokens: after a quote, after a space and alone."""
    alone = tokenizer.encode(label, add_special_tokens=False)
    for before in ('"', " "):
        assert tokenizer.encode(before + label, add_special_tokens=False)[-len(alone) :] == alone


def test_the_checkpoint_loads_and_is_small(checkpoint):
    model = AutoModelForImageTextToText.from_pretrained(checkpoint)
    assert sum(parameter.numel() for parameter in model.parameters()) < 5_000_000
    vocabulary = model.config.get_text_config().vocab_size
    assert vocabulary % 64 == 0 and vocabulary >= len(AutoTokenizer.from_pretrained(checkpoint))
    assert set(banned_ids(checkpoint)) >= {model.config.image_token_id, model.config.video_token_id}


def test_equal_seeds_give_equal_weights(tokenizer):
    one, two, other = (build_model(TinyShape(seed=seed), tokenizer) for seed in (0, 0, 1))
    for name, value in one.state_dict().items():
        assert value.equal(two.state_dict()[name]), name
    assert not one.lm_head.weight.equal(other.lm_head.weight)


def test_a_page_is_48_image_tokens_and_is_not_resized(renderer):
    ids = renderer.encode("Page:", [VIEWPORT]).ids
    assert ids.count(renderer.tokenizer.convert_tokens_to_ids("<|image_pad|>")) == 48
    buffer = io.BytesIO()
    Image.new("RGB", VIEWPORT, "white").save(buffer, "JPEG")
    inputs = renderer.image_inputs([buffer.getvalue()])
    width, height = VIEWPORT
    assert inputs["image_grid_thw"].tolist() == [[1, height // 14, width // 14]], "resized"


def test_training_prompts_are_those_of_rollouts_token_for_token(renderer):
    """Segments that are tokenized apart, in our constants, against LLaMA-Factory's template over
    the whole prompt."""
    samples = synthetic.samples("chat")
    for _ in range(200):
        sample = next(samples)
        batch = collate(renderer.tokenizer, [chat_segments([sample], 0.1, image=True)])
        prompt = [*renderer.encode("".join(synthetic.render_sample(sample)), [VIEWPORT]).ids]
        answer = [
            *renderer.tokenizer.encode(format_action(sample.action), add_special_tokens=False),
            renderer.tokenizer.eos_token_id,
        ]
        assert batch.ids[0].tolist() == prompt + answer
        assert batch.weights[0].tolist().count(1.0) == len(answer)
    assert ASSISTANT in renderer.tokenizer.decode(prompt)


def test_reading_heads_refuse_a_shape_that_they_do_not_fit(tokenizer):
    model = build_model(TinyShape(layers=1), tokenizer)
    with pytest.raises(PolicyError, match="1 layers of 4 heads"):
        write_reading_heads(model.model.language_model, [0], SHAPE.rope_theta, 0)
