"""System turns: the actions that the policy may take, and the form of its answers.

``plain`` has none: a policy that was trained on the page and task alone knows its actions.
``vanilla`` and ``complete`` ask for WebGym's answers: one sentence and a tool call, or memory,
progress and intention before them. ``tools`` describes the actions as a function in the chat
template's own form of tools.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Literal

from envs.prompts.user_turn import ObservationMode
from envs.types import Action, format_action
from envs.types.action_text import ActionFormat

PromptName = Literal["plain", "vanilla", "complete", "tools"]

TOOL = "browser"
"""Name of the function that does all actions."""

_TARGETS: dict[ObservationMode, tuple[str, dict[str, Any], str]] = {
    "text": ("element", {"type": "integer", "description": "Number of an element of the page."}, "3"),
    "set_of_marks": ("mark", {"type": "integer", "description": "Number of a mark on the screenshot."}, "7"),
    "coordinates": (
        "at",
        {
            "type": "array",
            "items": {"type": "number"},
            "minItems": 2,
            "maxItems": 2,
            "description": "Point: x and y, 0 to 1000 from the left and from the top of the screenshot.",
        },
        "[500, 250]",
    ),
}
"""Form of an action's target in each mode: key, schema, example."""

_ACTIONS = (
    ("click", "click the target"),
    ("type", "replace the text of the target (or of what has the focus) by `text`; `enter`: press Enter after it"),
    ("select", "choose the option `text` of the list that is the target"),
    ("hover", "move the mouse to the target"),
    ("press", "press `key`, as Enter or Control+a"),
    ("scroll", "scroll the target, or the page: `direction` up, down, left or right"),
    ("goto", "open `url`"),
    ("back", "go back one page"),
    ("wait", "wait for `seconds`"),
    ("answer", "give the answer `text` and end"),
    ("terminate", "end with `status` success or failure"),
)
"""Actions that every site takes, each with its effect."""

_ROLE = "You use a web browser to carry out a task. Each turn you see the page and do one thing."

_PARTS = {
    "vanilla": (
        "Answer with two parts, in this order:",
        "Action: one sentence that says what you do now.",
    ),
    "complete": (
        "Answer with five parts, in this order:",
        'Memory: a JSON object with facts that later turns need; keep what was there and add to it, as {"price": "12.50"}.',
        'Progress: a JSON object of sub-tasks, each "finished" or "open".',
        "Intention: which sub-task you work on now.",
        "Action: one sentence that says what you do now.",
    ),
}


def system_text(prompt: PromptName, mode: ObservationMode) -> str:
    """Return the system turn; empty where the chat template's own is used."""
    if prompt == "plain":
        return ""
    if prompt == "tools":
        return f"{_ROLE} Call the function {TOOL} once."
    key, _, example = _TARGETS[mode]
    first, *parts = _PARTS[prompt]
    actions = [f"- {name}: {effect}" for name, effect in _ACTIONS]
    call = json.dumps({"name": TOOL, "arguments": {"action": "click", key: json.loads(example)}})
    return "\n".join(
        [
            _ROLE,
            f"The target of an action is `{key}`, as {example}. The actions:",
            *actions,
            "",
            first,
            *parts,
            f"Then the action as a call: <tool_call>\n{call}\n</tool_call>",
        ]
    )


def call_text(action: Action, prompt: PromptName) -> str:
    """Write the turn of a scripted policy in the form that the system turn asks for.

    The prose that ``vanilla`` and ``complete`` ask for before the call is left out: a script has no
    words for what it does.
    """
    if prompt == "plain":
        return format_action(action)
    arguments = format_action(action, ActionFormat.JSON)
    return f'<tool_call>\n{{"name": "{TOOL}", "arguments": {arguments}}}\n</tool_call>'


def tools_text(prompt: PromptName, mode: ObservationMode) -> str:
    """Return the tools of the chat template as JSON; empty where there are none."""
    return json.dumps(tool_schemas(mode)) if prompt == "tools" else ""


def tool_schemas(mode: ObservationMode) -> Sequence[dict[str, Any]]:
    """Return the schema of the one function that does all actions.

    OpenAI and Qwen describe tools in this form.
    """
    key, target, _ = _TARGETS[mode]
    effects = "; ".join(f"{name}: {effect}" for name, effect in _ACTIONS)
    properties = {
        "action": {"type": "string", "enum": [name for name, _ in _ACTIONS], "description": effects},
        key: target,
        "text": {"type": "string"},
        "enter": {"type": "boolean"},
        "key": {"type": "string"},
        "direction": {"type": "string", "enum": ["up", "down", "left", "right"]},
        "url": {"type": "string"},
        "seconds": {"type": "number"},
        "status": {"type": "string", "enum": ["success", "failure"]},
    }
    function = {
        "name": TOOL,
        "description": "Does one thing in the web browser.",
        "parameters": {"type": "object", "properties": properties, "required": ["action"]},
    }
    return [{"type": "function", "function": function}]
