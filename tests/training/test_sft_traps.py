"""Known traps of supervised training on tool turns: thoughts, null arguments, a template other than
the model's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from envs.actions import parse
from envs.prompts import PromptName, system_text, tools_text
from envs.types import Invalid
from training.policy.context import Message, make_conversation
from training.policy.renderer import Renderer

from .test_context import SIZE, make_steps
from .vision_models import FAMILIES, TEMPLATES

CALL = '<tool_call>\n{"name": "browser", "arguments": {"action": "click", "element": 3}}\n</tool_call>'
THOUGHT = "<think>\nThe button is there.\n</think>\n\n"
ALL_TEMPLATES = [*TEMPLATES.items(), ("qwen3_vl", "qwen3_vl")]
"""The last one is of thinking checkpoints."""


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("prompt", ["vanilla", "complete"])
def test_prompts_are_those_of_the_checkpoints_own_chat_template(
    family: str, prompt: PromptName, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """Rendered through LLaMA-Factory's template, and by the Jinja template in the checkpoint's
    folder."""
    renderer = Renderer(tiny_checkpoint(family), TEMPLATES[family])
    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint(family))
    system, image = system_text(prompt, "set_of_marks"), {"type": "image"}
    turns = ["Action: Click it.\n" + CALL, 'Action: Type.\n<tool_call>\n{"name": "browser"}\n</tool_call>']
    ours, theirs = [], [{"role": "system", "content": system}]
    for number, turn in enumerate(turns):
        said = f"Page {number}"
        ours += [Message("user", said, ("shot",)), Message("assistant", turn)]
        theirs += [{"role": "user", "content": [image, {"type": "text", "text": f"\n{said}"}]}]
        theirs += [{"role": "assistant", "content": turn}]
    ours.append(Message("user", "Page: now", ("shot",)))
    theirs.append({"role": "user", "content": [image, {"type": "text", "text": "\nPage: now"}]})
    text = tokenizer.apply_chat_template(theirs, tokenize=False, add_generation_prompt=True)
    expected = tuple(tokenizer.encode(text, add_special_tokens=False))
    assert renderer.encode_conversation(ours, [SIZE] * 3, system).short_ids == expected
    # A cloned turn, put after its prompt, is the conversation with that turn: nothing is trained on
    # that is never seen.
    closed = [*theirs, {"role": "assistant", "content": turns[0]}]
    whole = tokenizer.encode(tokenizer.apply_chat_template(closed, tokenize=False), add_special_tokens=False)
    assert [*expected, *renderer.encode_response(turns[0])] == whole[:-1]  # its last one is the line's end


@pytest.mark.parametrize(("family", "template"), ALL_TEMPLATES)
def test_the_thought_of_a_tool_turn_is_trained_on_and_not_shown_again(
    family: str, template: str, tiny_checkpoint: Callable[[str], Path]
) -> None:
    renderer = Renderer(tiny_checkpoint(family), template)
    system, tools = system_text("tools", "text"), tools_text("tools", "text")
    ids = renderer.encode_response(THOUGHT + CALL)
    assert renderer.tokenizer.decode(ids) == THOUGHT + CALL + "<|im_end|>"
    (step,) = make_steps(renderer, 1)

    def shown(response: str) -> str:
        said = step.model_copy(update={"response": response, "response_ids": tuple(renderer.encode_response(response))})
        messages = make_conversation("window", 2, [said], "Page: now", "now")
        return str(renderer.tokenizer.decode(renderer.encode_conversation(messages, [SIZE] * 2, system, tools).ids))

    assert shown(THOUGHT + CALL) == shown(CALL)
    assert f"<|im_start|>assistant\n{CALL}<|im_end|>\n" in shown(CALL)
    assert "<think>" not in shown(CALL), "not even an empty one"


def test_null_arguments_are_no_action_and_null_in_an_argument_says_nothing() -> None:
    def call(arguments: object) -> str:
        return f"<tool_call>\n{json.dumps({'name': 'browser', 'arguments': arguments})}\n</tool_call>"

    for nothing in (None, {}):
        assert isinstance(parse(call(nothing)).action, Invalid)
    plain = {"action": "click", "element": 3}
    assert parse(call({**plain, "text": None, "key": None})).action == parse(call(plain)).action
    assert not isinstance(parse(call(plain)).action, Invalid)
