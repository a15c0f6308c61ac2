"""Reads replies of a judge. Strict: anything that is not clearly an answer is malformed.

A malformed reply makes the client ask again. A reply is one JSON object with the requested keys,
bare, in one code block or in one box, or it ends with one line such as ``Verdict: NOT SUCCESS``; a
thought may come before it. Anything else is refused, including a JSON object in the middle of
prose, which may be a quotation of the page.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_REASON = 2000
"""Maximum characters of a reason; the rest is cut off."""
MAX_POINTS = 30
"""Maximum key points of a task; a longer list is malformed."""

_THOUGHTS = re.compile(
    r"\s*(?![\s{`]).*(?:</(?:seed:)?think(?:ing)?>|◁/think▷|\[/THINK\]|<channel\|>|<\|channel\|>final<\|message\|>)",
    re.DOTALL,
)
"""Text up to the last mark that ends a thought.

The marks are those of Qwen, Kimi, Magistral, Gemma, gpt-oss and others. Templates of thinking
models put the opening mark into the prompt, so a reply may have the closing mark alone. A reply
that begins as an answer has no thought.
"""
_BOX = re.compile(r"<\|begin_of_box\|>(.*)<\|end_of_box\|>", re.DOTALL)
"""GLM's box around an answer."""
_BLOCK = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL | re.IGNORECASE)


class MalformedReply(ValueError):
    """The reply does not have the requested form; the message says why."""


@dataclass(frozen=True, slots=True)
class Words:
    """The two verdicts of a question."""

    aye: str
    nay: str


SUCCESS = Words("SUCCESS", "NOT SUCCESS")
RELEVANT = Words("RELEVANT", "NOT RELEVANT")
BLOCKED = Words("BLOCKED", "NOT BLOCKED")


@dataclass(frozen=True, slots=True)
class Opinion:
    """A verdict with its reason."""

    holds: bool
    reason: str


def read_opinion(reply: str, words: Words) -> Opinion:
    """Read a verdict and its reason.

    The reply is JSON ``{"verdict": …, "reason": …}``, or prose that ends with ``Verdict: …``.

    Raises:
        MalformedReply: It is neither, or the verdict is none of the two words.
    """
    text = _without_thoughts(reply)
    fields = _json_object(text)
    if fields is not None:
        _check_keys(fields, {"verdict": str, "reason": str})
        verdicts = {" ".join(value.split()).upper() for value in fields.values() if isinstance(value, str)} & {
            words.aye,
            words.nay,
        }
        if len(verdicts) > 1:
            raise MalformedReply(f"both verdicts are in it: {str(fields)[:120]}")
        return Opinion(_is_aye(fields["verdict"], words), _short(fields["reason"]))
    verdict = _last_line(text, "verdict")
    return Opinion(_is_aye(verdict, words), _short(text.rpartition("\n")[0].strip()))


def read_score(reply: str) -> tuple[int, str]:
    """Read an integer score from 1 to 5 and its reason.

    The reply is JSON ``{"score": 4, "reason": …}``, or prose that ends with ``Score: 4``.

    Raises:
        MalformedReply: It is neither, or the score is out of range.
    """
    text = _without_thoughts(reply)
    fields = _json_object(text)
    if fields is not None:
        _check_keys(fields, {"score": int, "reason": str})
        score, reason = fields["score"], fields["reason"]
    else:
        digit = _last_line(text, "score")
        if not re.fullmatch(r"[0-9]", digit):
            raise MalformedReply(f"score {digit[:20]!r} is no whole number 1 to 5")
        score, reason = int(digit), text.rpartition("\n")[0].strip()
    if not 1 <= score <= 5:
        raise MalformedReply(f"score {score} is out of 1 to 5")
    return score, _short(reason)


def read_points(reply: str) -> tuple[str, ...]:
    """Read the key points of ``{"key_points": ["…", …]}``: at least one, none empty.

    Raises:
        MalformedReply: The reply is anything else.
    """
    fields = read_object(reply)
    _check_keys(fields, {"key_points": list})
    points = fields["key_points"]
    if not 1 <= len(points) <= MAX_POINTS or not all(isinstance(point, str) and point.strip() for point in points):
        raise MalformedReply(f"key_points: expected 1 to {MAX_POINTS} sentences")
    return tuple(point.strip() for point in points)


def read_object(reply: str) -> dict[str, Any]:
    """Read a reply that is one JSON object, bare or in one code block.

    Raises:
        MalformedReply: It is no such object, or a key is there twice.
    """
    fields = _json_object(_without_thoughts(reply))
    if fields is None:
        raise MalformedReply(f"expected one JSON object and nothing else, not {reply[:60]!r}")
    return fields


def _without_thoughts(reply: str) -> str:
    """Return a reply without the thoughts before its answer and without a box.

    Servers without a reasoning parser leave the thoughts there.
    """
    match = _THOUGHTS.match(reply)
    text = (reply[match.end() :] if match else reply).strip().removesuffix("<|return|>").rstrip()
    box = _BOX.fullmatch(text)
    text = box[1].strip() if box else text
    if not text:
        raise MalformedReply("the reply is empty")
    return text


def _json_object(text: str) -> dict[str, Any] | None:
    """Read a text that is one JSON object; ``None`` for prose.

    A text that begins as an object must be one.
    """
    block = _BLOCK.fullmatch(text)
    body = block.group(1).strip() if block else text
    if not body.startswith("{"):
        return None
    try:
        # Not strict: models put plain line breaks and tabs into strings, even where a server
        # enforces a schema (xgrammar 0.2.8).
        fields = json.loads(body, object_pairs_hook=_unique_keys, strict=False)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"the reply begins as JSON but is none: {error}") from error
    assert isinstance(fields, dict)
    return fields


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object; refuse a key that is there twice, which parsers read differently."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key is there twice")
    return fields


def _check_keys(fields: dict[str, Any], kinds: dict[str, type]) -> None:
    """Refuse missing keys and values of other types; models may add keys."""
    if not fields.keys() >= kinds.keys():
        raise MalformedReply(
            f"expected the keys {', '.join(kinds)}, not {', '.join(map(repr, fields))[:120] or 'none'}"
        )
    for name, kind in kinds.items():
        if type(fields[name]) is not kind:  # a bool is no int here
            raise MalformedReply(f"{name}: expected {kind.__name__}, not {type(fields[name]).__name__}")


def _last_line(text: str, name: str) -> str:
    """Return the text after ``name:`` in the last line, without Markdown emphasis marks."""
    last = text.rpartition("\n")[2].strip().strip("*_`# ")
    match = re.fullmatch(rf"{name}\W*:\W*(.+?)[.*_`\s\"']*", last, re.IGNORECASE)
    if match is None:
        raise MalformedReply(f"neither a JSON object nor a last line {name.capitalize()}: …; it ends {text[-60:]!r}")
    return match.group(1)


def _is_aye(verdict: str, words: Words) -> bool:
    plain = " ".join(verdict.replace("_", " ").split()).upper()
    if plain not in (words.aye, words.nay):
        raise MalformedReply(f"verdict {verdict[:40]!r} is neither {words.aye} nor {words.nay}")
    return plain == words.aye


def _short(reason: str) -> str:
    return reason[:MAX_REASON]
