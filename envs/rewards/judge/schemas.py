"""Forms of replies: words of verdicts, and JSON Schemas for servers that can enforce one.

`verdict` reads the replies. Reasons and sentences have a maximum length, so that a verbose model
ends its verdict in form and is not cut off; lists of many long sentences, and instructions, can
still be cut off. The schema is sent without ``strict``: with it some hosted endpoints refuse
schemas with lengths, without it they take the schema as a hint. vLLM, SGLang and llama.cpp enforce
it either way.
"""

from __future__ import annotations

from typing import Any

from envs.rewards.judge.records import Purpose
from envs.rewards.judge.verdict import BLOCKED, MAX_POINTS, RELEVANT, SUCCESS, Words

REASON_CHARS = 600
"""Maximum characters of a reason: two long sentences.

With a short ``max_tokens`` the maximum is half as many characters as tokens. A token has about four
characters, and fewer in unusual text.
"""
SENTENCE_CHARS = 300
"""Maximum characters of a key point, a fact or another single sentence."""

WORDS: dict[Purpose, Words] = {Purpose.KEYFRAME: RELEVANT, Purpose.BLOCKING: BLOCKED}
"""Words of verdicts by purpose; all others are SUCCESS and NOT SUCCESS."""


def words_of(purpose: Purpose) -> Words:
    """Return the two verdicts of a question."""
    return WORDS.get(purpose, SUCCESS)


def schema_of(purpose: Purpose, max_tokens: int) -> dict[str, Any]:
    """Return the JSON Schema of a reply.

    `verdict` can read every reply that matches it; the contents of a rubric are checked later.
    """
    reason = _text(min(REASON_CHARS, max_tokens // 2))
    sentence = _text(SENTENCE_CHARS)
    match purpose:
        case Purpose.KEY_POINTS:
            return _object(key_points=_list(sentence, MAX_POINTS))
        case Purpose.RELEVANCE:
            return _object(score={"type": "integer", "enum": [1, 2, 3, 4, 5]}, reason=reason)
        case Purpose.INSTRUCTION:
            return _object(instruction={"type": "string", "minLength": 1})
        case Purpose.RUBRIC:
            facts = _list(_object(text=sentence, asked=sentence))
            return _object(fact_groups=_list(_object(description=sentence, facts=facts)))
        case _:
            words = words_of(purpose)
            return _object(verdict={"type": "string", "enum": [words.aye, words.nay]}, reason=reason)


def response_format(purpose: Purpose, max_tokens: int) -> dict[str, Any]:
    """Return the ``response_format`` of a request for this form."""
    return {"type": "json_schema", "json_schema": {"name": str(purpose), "schema": schema_of(purpose, max_tokens)}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with all of these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(max_chars: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": max_chars}


def _list(items: dict[str, Any], max_items: int | None = None) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1} | ({} if max_items is None else {"maxItems": max_items})
