"""System turns say what the parser reads, and the chat template shows the tools."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from envs.actions import parse
from envs.prompts import ObservationMode, PromptName, system_text, tool_schemas, tools_text
from envs.types import Invalid
from training.policy.context import Message
from training.policy.renderer import Renderer

from .vision_models import FAMILIES, TEMPLATES

MODES: tuple[ObservationMode, ...] = get_args(ObservationMode)
TARGETS = {"text": {"element": 3}, "set_of_marks": {"mark": 7}, "coordinates": {"at": [500, 250]}}
ARGUMENTS = {
    "click": {},
    "hover": {},
    "type": {"text": "pen", "enter": True},
    "select": {"text": "Blue"},
    "press": {"key": "Enter"},
    "scroll": {"direction": "down"},
    "goto": {"url": "http://shop.test/"},
    "back": {},
    "wait": {"seconds": 1},
    "answer": {"text": "12.50"},
    "terminate": {"status": "failure"},
}
"""What each action needs besides its target."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("prompt", ["vanilla", "complete"])
def test_the_example_of_a_prompt_is_a_click(prompt: PromptName, mode: ObservationMode) -> None:
    text = system_text(prompt, mode)
    example = text[text.index("Then the action as a call: ") + len("Then the action as a call: ") :]
    answer = {"vanilla": "", "complete": 'Memory: {"price": "12.50"}\nProgress: {"find": "open"}\nIntention: find\n'}
    read = parse(f"{answer[prompt]}Action: Click the button.\n{example}")
    expected = parse(json.dumps({"action": "click", **TARGETS[mode]}))
    assert read.action == expected.action and not isinstance(read.action, Invalid)
    assert read.form == "tool_call"


@pytest.mark.parametrize("mode", MODES)
def test_every_action_that_is_offered_can_be_called(mode: ObservationMode) -> None:
    (tool,) = tool_schemas(mode)
    properties = tool["function"]["parameters"]["properties"]
    offered = properties["action"]["enum"]
    assert offered == re.findall(r"^- (\w+):", system_text("vanilla", mode), re.MULTILINE)
    assert set(offered) == ARGUMENTS.keys()
    for name in offered:
        targeted = name in ("click", "hover", "type", "select")
        arguments = {"action": name, **(TARGETS[mode] if targeted else {}), **ARGUMENTS[name]}
        assert arguments.keys() <= properties.keys(), name
        call = json.dumps({"name": tool["function"]["name"], "arguments": arguments})
        read = parse(f"<tool_call>\n{call}\n</tool_call>")
        assert not isinstance(read.action, Invalid), (name, read.action)
        assert read.action == parse(json.dumps(arguments)).action


@pytest.mark.parametrize("family", FAMILIES)
def test_the_chat_template_shows_them(family: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    renderer = Renderer(tiny_checkpoint(family), TEMPLATES[family])
    messages = [Message("user", "Task: x")]

    def shown(prompt: PromptName) -> str:
        encoded = renderer.encode_conversation(messages, [], system_text(prompt, "text"), tools_text(prompt, "text"))
        return str(renderer.tokenizer.decode(encoded.ids))

    for prompt in get_args(PromptName):
        assert shown(prompt).endswith("<|im_start|>user\nTask: x<|im_end|>\n<|im_start|>assistant\n")
        assert shown(prompt).count("<|im_start|>system") == (family != "qwen3_vl" or prompt != "plain")
    assert "# Tools" in shown("tools") and '"enum": ["click"' in shown("tools")
    assert "Progress:" in shown("complete") and "Progress:" not in shown("vanilla")
