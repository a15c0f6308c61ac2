"""Rewrites other chat templates' marks of thoughts and tool calls as ``<think>`` and
``<tool_call>``.

They are Kimi's sections, Mistral's ``[TOOL_CALLS]``, gpt-oss's channels (harmony), GLM's boxes and
keys, the XML of Qwen3-Coder and of Anthropic and MiniMax, and Llama's ``<|python_tag|>``. A turn
that is an action without rewriting is read unchanged: a text that an action types is never changed.
"""

from __future__ import annotations

import json
import re

_PLAIN = {
    "◁think▷": "<think>",
    "◁/think▷": "</think>",
    "[THINK]": "<think>",
    "[/THINK]": "</think>",
    "<|channel>thought": "<think>",
    "<channel|>": "</think>",
    "<|begin_of_box|>": "<action>",
    "<|end_of_box|>": "</action>",
    "<|python_tag|>": "\n<tool_call>",
}
_OPENERS = re.compile(
    r"<\|tool_call_begin\|>|\[TOOL_CALLS\]|to=functions\.|<\|channel\|>|<function=|<invoke |<parameter|<tool_call>|<arg_key>"
)
MAX_OPENERS = 64
"""Maximum number of marks in a turn that is rewritten: for each, the end of the turn is searched.
"""
_BOX_END = "<|end_of_box|>"
_MARKS = re.compile("|".join(map(re.escape, _PLAIN)))

_NAMED_JSON = (
    re.compile(
        r"<\|tool_call_begin\|>\s*(?:functions\.)?(?P<name>[\w-]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>(?P<json>.*?)<\|tool_call_end\|>",
        re.DOTALL,
    ),
    re.compile(
        r"\[TOOL_CALLS\](?P<name>[\w-]+)(?:\[CALL_ID\][\w-]+)?(?:\[ARGS\])?(?P<json>\{.*?\})\s*(?=\[TOOL_CALLS\]|</s>|\Z)",
        re.DOTALL,
    ),
    re.compile(
        r"(?:<\|start\|>assistant)?(?:<\|channel\|>\w+)?[ ]{0,3}to=functions\.(?P<name>[\w-]+)\s*(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?"
        r"(?:json)?\s*<\|message\|>(?P<json>.*?)<\|call\|>",
        re.DOTALL,
    ),
)
_ANALYSIS = re.compile(r"(?:<\|start\|>assistant)?<\|channel\|>analysis<\|message\|>(.*?)<\|end\|>", re.DOTALL)
_LEFT_OVER = re.compile(
    r"<\|tool_calls_section_(?:begin|end)\|>|<\|start\|>assistant|<\|channel\|>(?:commentary|final)|<\|(?:message|end|return)\|>"
    r"|</?(?:function_calls|minimax:tool_call)>"
)
_MISTRAL_LIST = re.compile(r"\[TOOL_CALLS\](?=\s*\[)")
_XML = re.compile(
    r"""(?:<tool_call>\s*)?(?:<function=(?P<function>[\w-]+)>|<invoke[ ]name="(?P<invoke>[\w-]+)">)(?P<inside>.*?)
    </(?:function|invoke)>(?:\s*</tool_call>)?
    |<tool_call>\s*(?P<glm>[\w-]+)\s*(?P<keys>(?:<arg_key>.*?</arg_value>\s*)*)</tool_call>""",
    re.DOTALL | re.VERBOSE,
)
_PARAMETER = re.compile(
    r"""<(?:parameter=(?P<key>[\w-]+)|parameter[ ]name="(?P<name>[\w-]+)")>(?P<value>.*?)</parameter>
    |<arg_key>(?P<arg>[\w-]+)</arg_key>\s*<arg_value>(?P<its>.*?)</arg_value>""",
    re.DOTALL | re.VERBOSE,
)
_TEXTS = frozenset(
    {"answer", "code", "content", "html", "key", "label", "message", "option", "reason", "text", "url", "value"}
)
"""Arguments whose value is always a text."""


def rewrite(turn: str) -> str:
    """Return the turn with thoughts and tool calls in our marks, unchanged if it has no other
    marks."""
    if len(_OPENERS.findall(turn)) > MAX_OPENERS:
        return turn
    for form in _NAMED_JSON:
        turn = form.sub(
            lambda match: (
                f'\n<tool_call>{{"name": "{match["name"]}", "arguments": {match["json"].strip()}}}</tool_call>'
            ),
            turn,
        )
    if turn.count(_BOX_END) == 1:  # GLM writes notes after it
        turn = turn[: turn.index(_BOX_END) + len(_BOX_END)]
    turn = _ANALYSIS.sub(r"<think>\1</think>", turn)
    turn = _MISTRAL_LIST.sub("\n<tool_call>", _LEFT_OVER.sub("\n", turn))
    return _XML.sub(_call, _MARKS.sub(lambda match: _PLAIN[match.group()], turn)).strip()


def _call(match: re.Match[str]) -> str:
    arguments = {
        key: _value(key, parameter["value"] if parameter["value"] is not None else parameter["its"])
        for parameter in _PARAMETER.finditer(match["inside"] or match["keys"] or "")
        if (key := parameter["key"] or parameter["name"] or parameter["arg"])
    }
    name = match["function"] or match["invoke"] or match["glm"]
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def _value(key: str, written: str) -> object:
    """Return the value in a tag, without line breaks of the template; JSON unless it is a text."""
    written = written.removeprefix("\n").removesuffix("\n")
    if key in _TEXTS:
        return written
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written
