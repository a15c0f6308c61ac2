"""The forms of replies: the words of a verdict, and JSON Schemas for servers that can hold a model to one. `verdict` reads them.

Lengths of reasons and sentences are bounded, so that a model that rambles ends its verdict in form and is not cut off; lists of many long
sentences, and instructions, may be. There is no ``strict``: with it some
hosted endpoints refuse schemas with lengths, without it they take the schema for a hint. vLLM, SGLang and llama.cpp obey it either way.
"""

from __future__ import annotations

from typing import Any

from envs.rewards.judge.records import Purpose
from envs.rewards.judge.verdict import BLOCKED, MAX_POINTS, RELEVANT, SUCCESS, Words

REASON_CHARS = 600
"""Of a reason: two long sentences. Of a short ``max_tokens`` half as many characters; a token has about four, of a strange text fewer."""
SENTENCE_CHARS = 300
"""Of a key point, a fact and what else is one sentence."""

WORDS: dict[Purpose, Words] = {Purpose.KEYFRAME: RELEVANT, Purpose.BLOCKING: BLOCKED}
"""Others are SUCCESS and NOT SUCCESS."""


def words_of(purpose: Purpose) -> Words:
    """The two verdicts of a question."""
    return WORDS.get(purpose, SUCCESS)


def schema_of(purpose: Purpose, max_tokens: int) -> dict[str, Any]:
    """JSON Schema of a reply. What obeys it is read as an answer (of a rubric: as far as its form goes)."""
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
    """The field of a request that asks for this form."""
    return {"type": "json_schema", "json_schema": {"name": str(purpose), "schema": schema_of(purpose, max_tokens)}}


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    """All of its keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _text(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


def _list(items: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1} | ({} if most is None else {"maxItems": most})
