"""Reading replies. Strict: what is not plainly an answer is malformed, and asked again.

A reply is one JSON object with the keys that were asked for, bare, in one code block or in one box, or ends with one line such as
``Verdict: NOT SUCCESS``; before it may stand a thought. Anything else, a JSON object in the middle of prose included, is refused: it may be the
page's, quoted.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

MAX_REASON = 2000
"""Characters of a reason that are kept."""
MAX_POINTS = 30
"""Key points of a task; more is no list of demands any more."""

_THOUGHTS = re.compile(
    r"\s*(?![\s{`]).*(?:</(?:seed:)?think(?:ing)?>|◁/think▷|\[/THINK\]|<channel\|>|<\|channel\|>final<\|message\|>)",
    re.DOTALL,
)
"""Up to the last mark that ends a thought, of Qwen, Kimi, Magistral, Gemma, gpt-oss and others. Templates of thinking models put the first mark
into the prompt, so a reply may have the last one alone; what begins as an answer has no thought."""
_BOX = re.compile(r"<\|begin_of_box\|>(.*)<\|end_of_box\|>", re.DOTALL)
"""GLM's, around an answer."""
_BLOCK = re.compile(r"```(?:json)?[ \t]*\n(.*?)\n?[ \t]*```", re.DOTALL | re.IGNORECASE)


class MalformedReply(ValueError):
    """The reply is not what was asked for; says in what."""


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
    """A verdict as JSON ``{"verdict": …, "reason": …}``, or prose that ends with the line ``Verdict: …``.

    Raises:
        MalformedReply: neither, or a verdict that is none of the two words.
    """
    text = _without_thoughts(reply)
    found = _json_object(text)
    if found is not None:
        _with_keys(found, {"verdict": str, "reason": str})
        others = {" ".join(each.split()).upper() for each in found.values() if isinstance(each, str)} & {
            words.aye,
            words.nay,
        }
        if len(others) > 1:
            raise MalformedReply(f"both verdicts are in it: {str(found)[:120]}")
        return Opinion(_which(found["verdict"], words), _short(found["reason"]))
    said = _last_line(text, "verdict")
    return Opinion(_which(said, words), _short(text.rpartition("\n")[0].strip()))


def read_score(reply: str) -> tuple[int, str]:
    """A whole number 1 to 5 and its reason: ``{"score": 4, "reason": …}`` or a last line ``Score: 4``.

    Raises:
        MalformedReply: neither, or out of range.
    """
    text = _without_thoughts(reply)
    found = _json_object(text)
    if found is not None:
        _with_keys(found, {"score": int, "reason": str})
        score, reason = found["score"], found["reason"]
    else:
        said = _last_line(text, "score")
        if not re.fullmatch(r"[0-9]", said):
            raise MalformedReply(f"score {said[:20]!r} is no whole number 1 to 5")
        score, reason = int(said), text.rpartition("\n")[0].strip()
    if not 1 <= score <= 5:
        raise MalformedReply(f"score {score} is out of 1 to 5")
    return score, _short(reason)


def read_points(reply: str) -> tuple[str, ...]:
    """``{"key_points": ["…", …]}``: at least one, none empty.

    Raises:
        MalformedReply: anything else.
    """
    found = read_object(reply)
    _with_keys(found, {"key_points": list})
    points = found["key_points"]
    if not 1 <= len(points) <= MAX_POINTS or not all(isinstance(each, str) and each.strip() for each in points):
        raise MalformedReply(f"key_points: expected 1 to {MAX_POINTS} sentences")
    return tuple(each.strip() for each in points)


def read_object(reply: str) -> dict[str, Any]:
    """The JSON object that a reply is, bare or in one code block.

    Raises:
        MalformedReply: it is none, or a key is there twice.
    """
    found = _json_object(_without_thoughts(reply))
    if found is None:
        raise MalformedReply(f"expected one JSON object and nothing else, not {reply[:60]!r}")
    return found


def _without_thoughts(reply: str) -> str:
    """Servers without a reasoning parser leave the thoughts in front of the answer; only in front are they thoughts."""
    match = _THOUGHTS.match(reply)
    text = (reply[match.end() :] if match else reply).strip().removesuffix("<|return|>").rstrip()
    box = _BOX.fullmatch(text)
    text = box[1].strip() if box else text
    if not text:
        raise MalformedReply("the reply is empty")
    return text


def _json_object(text: str) -> dict[str, Any] | None:
    """The object that the whole text is; ``None`` for prose. What begins as an object must be one."""
    block = _BLOCK.fullmatch(text)
    body = block.group(1).strip() if block else text
    if not body.startswith("{"):
        return None
    try:
        # Not strict: models put plain line breaks and tabs into strings, also where a server holds them to a schema (xgrammar 0.2.8).
        found = json.loads(body, object_pairs_hook=_no_twins, strict=False)
    except (ValueError, RecursionError) as error:
        raise MalformedReply(f"the reply begins as JSON but is none: {error}") from error
    assert isinstance(found, dict)
    return found


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A key that is there twice has no meaning that all readers share."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _with_keys(found: dict[str, Any], kinds: dict[str, type]) -> None:
    """The keys are there, with values of their kinds; models add some of their own."""
    if not found.keys() >= kinds.keys():
        raise MalformedReply(f"expected the keys {', '.join(kinds)}, not {', '.join(map(repr, found))[:120] or 'none'}")
    for name, kind in kinds.items():
        if type(found[name]) is not kind:  # a bool is no int here
            raise MalformedReply(f"{name}: expected {kind.__name__}, not {type(found[name]).__name__}")


def _last_line(text: str, name: str) -> str:
    """What stands behind ``name:`` in the last line; emphasis marks of Markdown around it do not count."""
    last = text.rpartition("\n")[2].strip().strip("*_`# ")
    match = re.fullmatch(rf"{name}\W*:\W*(.+?)[.*_`\s\"']*", last, re.IGNORECASE)
    if match is None:
        raise MalformedReply(f"neither a JSON object nor a last line {name.capitalize()}: …; it ends {text[-60:]!r}")
    return match.group(1)


def _which(said: str, words: Words) -> bool:
    plain = " ".join(said.replace("_", " ").split()).upper()
    if plain not in (words.aye, words.nay):
        raise MalformedReply(f"verdict {said[:40]!r} is neither {words.aye} nor {words.nay}")
    return plain == words.aye


def _short(reason: str) -> str:
    return reason[:MAX_REASON]
