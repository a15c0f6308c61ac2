"""Ten thousand malformed model turns: none raises, each is counted by its form and by its
reason."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable

from envs.actions.parsing import ActionFormat, format_action, parse
from envs.types import (
    Action,
    Answer,
    Check,
    Click,
    Dialog,
    Drag,
    ErrorCode,
    Goto,
    Invalid,
    Press,
    Scroll,
    Select,
    Submit,
    Target,
    Type,
    Upload,
)

TURNS = 10_000
MAX_REASON = 600
"""Characters: the reason goes into the next prompt."""

SAMPLES: tuple[Action, ...] = (
    Click(element=3),
    Click(element="login.submit"),
    Click(at=(120.5, 999.0)),
    Type(element=1, text='She said "hi", twice'),
    Type(text="naïve \U0001f600\n{}", clear=False, enter=True),
    Select(element=2, text="Zürich"),
    Press(element=4, key="Control+a"),
    Check(mark=7, on=False),
    Scroll(direction="up", amount=2.5),
    Drag(start=Target(element=1), end=Target(at=(10, 20))),
    Upload(element=5, files=("a.txt", "b/c.pdf")),
    Goto(url="http://127.0.0.1:8000/?q=[1]&x={2}"),
    Dialog(accept=True, text="ok"),
    Answer(text="42 </think> [3]"),
    Submit(html='<!DOCTYPE html>\n<p class="a">5 &lt; 6 {}</p></think>'),
)
WRAPPERS: tuple[Callable[[str], str], ...] = (
    lambda text: text,
    lambda text: f"<think>maybe {text}</think>\n{text}",
    lambda text: f"```json\n{text}\n```",
    lambda text: f"I will do this now: {text}. That is all.",
    lambda text: f"<action>{text}</action>",
    lambda text: f"Thought: hm\nAction: {text}",
    lambda text: f"<tool_call>{text}</tool_call>" * 2,
    lambda text: "\n".join([text] * 3),
)
CALLS = (
    "click(3)",
    'type(1, "a, b")',
    "scroll(direction='down', amount=0.5)",
    "type [3] [Berlin] [1]",
    "press [Enter]",
    "go_back",
)
SPICE = "{}[]()\"'\\<>/,:=` \n\t\x00</think><think>```<tool_call>\ud800\udfff\U0001f600é0123456789nulltrueNaN-1e999"


def mutated(rng: random.Random, text: str) -> str:
    """One to six random cuts, copies, swaps and insertions."""
    for _ in range(rng.randint(1, 6)):
        one, other = sorted(rng.randint(0, len(text)) for _ in range(2))
        match rng.randrange(6):
            case 0:
                text = text[:one] + text[other:]
            case 1:
                text = text[:other]
            case 2:
                text = text[:one] + "".join(rng.choices(SPICE, k=rng.randint(1, 4))) + text[one:]
            case 3:
                text = text[:one] + text[one:other] * 2 + text[other:]
            case 4:
                text = text[:one] + text[one:other][::-1] + text[other:]
            case _:
                text = text[:one] + chr(rng.randrange(0x110000)) + text[one + 1 :]
    return text


def garbage(rng: random.Random, depth: int = 0) -> object:
    """A random JSON value with our words in it."""
    words = [
        "action",
        "type",
        "name",
        "arguments",
        "element",
        "at",
        "text",
        "click",
        "scroll",
        "computer_use",
        "coordinate",
        "",
        "\udc00",
    ]
    plain = [None, True, 0, -1, 10**30, 1e308, rng.choice(words), rng.random() * 2000]
    if depth == 4 or rng.random() < 0.3:
        return rng.choice(plain)
    if rng.random() < 0.3:
        return [garbage(rng, depth + 1) for _ in range(rng.randint(0, 4))]
    return {rng.choice(words): garbage(rng, depth + 1) for _ in range(rng.randint(0, 5))}


def turn(rng: random.Random) -> str:
    """One malformed turn (a few come out well-formed)."""
    kind = rng.random()
    if kind < 0.1:
        return "".join(chr(rng.randrange(0x110000)) for _ in range(rng.randint(0, 200)))
    if kind < 0.25:
        return rng.choice(WRAPPERS)(json.dumps(garbage(rng), ensure_ascii=rng.random() < 0.5))
    form = rng.choice([ActionFormat.BRACKETS, ActionFormat.JSON, ActionFormat.TOOL_CALL])
    text = rng.choice(CALLS) if kind < 0.4 else format_action(rng.choice(SAMPLES), form)
    return mutated(rng, rng.choice(WRAPPERS)(text))


def test_ten_thousand_malformed_turns() -> None:
    rng = random.Random(20261121)
    forms, codes = Counter[ActionFormat](), Counter[str]()
    for _ in range(TURNS):
        response = turn(rng)
        read = parse(response)
        assert parse(response) == read
        forms[read.form] += 1
        if isinstance(read.action, Invalid):
            codes[read.action.code] += 1
            assert read.action.reason and len(read.action.reason) <= MAX_REASON
        else:
            codes["read"] += 1
            assert parse(format_action(read.action)).action == read.action
        # What cannot be stored or sent to a browser would be an exception later.
        read.action.model_dump_json().encode()
        assert read.form != ActionFormat.NONE or isinstance(read.action, Invalid)
    print(dict(forms), dict(codes))
    assert forms.total() == codes.total() == TURNS
    assert {*forms} == {*ActionFormat} - {ActionFormat.CUSTOM}, "a form of a parser that a user brings is none of ours"
    assert {*codes} == {
        "read",
        ErrorCode.INVALID_ACTION,
        ErrorCode.BAD_JSON,
        ErrorCode.BAD_ACTION,
        ErrorCode.UNKNOWN_ACTION,
    }
