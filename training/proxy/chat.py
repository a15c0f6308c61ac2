"""Messages of OpenAI's chat format as turns of the renderer, and a response as such a message.

A chat template has turns of the user and the assistant, by turns. So system messages at the start
become the system turn (later ones are read as the user's), and neighbouring messages of one side
become one turn. An earlier answer of the same session goes in with the ids that were sampled, as
long as the agent sends it back unchanged; else its text is encoded anew. The tokenizer's special
tokens in the texts of others are broken up; tags such as ``<action>``, which agents ask for, stay.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import orjson

from training.policy.context import ChatTurn
from training.proxy.requests import ChatMessage, RefusedCall
from training.serving.engine import Picture

TOOL_CALLS = re.compile(r"\s*<tool_call>(.+?)</tool_call>\s*", re.DOTALL)
"""Pattern of a call in a response, as Qwen's chat templates ask for it."""

AnswerKey = tuple[str, tuple[tuple[str, str], ...]]
"""An answer as an agent sends it back: its text, and name and arguments of each tool call."""

Parts = list[str | None]


class SpecialTokens:
    """The special tokens of a tokenizer, which no text of a request may hold."""

    def __init__(self, tokens: Sequence[str]) -> None:
        self._pattern = re.compile("|".join(re.escape(token) for token in sorted(tokens, key=len, reverse=True)))

    def broken_up(self, text: str) -> str:
        """Return a text in which the bracket of each special token is another one."""
        return self._pattern.sub(lambda match: "‹" + match[0][1:], text)


@dataclass(slots=True)
class SampledAnswers:
    """The answers of a session so far, with the ids that were sampled."""

    answers: list[tuple[AnswerKey, tuple[int, ...]]] = field(default_factory=list)

    def ids_of(self, key: AnswerKey, start: int) -> tuple[tuple[int, ...], int]:
        """Return the ids of the first such answer from ``start`` on, and the place after it.

        Without one, the ids are empty and the place stays.
        """
        for place in range(start, len(self.answers)):
            if self.answers[place][0] == key:
                return self.answers[place][1], place + 1
        return (), start


@dataclass(frozen=True, slots=True)
class Chat:
    """The messages of a request, as the renderer takes them."""

    system: str
    turns: tuple[ChatTurn, ...]
    pictures: tuple[Picture, ...]
    """Images in the order of their places."""
    messages: tuple[tuple[dict[str, Any], tuple[Picture, ...]], ...]
    """Messages to be recorded, each with its images, whose parts lack their names."""


def read_chat(
    messages: Sequence[ChatMessage],
    sampled: SampledAnswers,
    special: SpecialTokens,
    picture: Callable[[str, str], Picture],
) -> Chat:
    """Return messages as the renderer takes them.

    Args:
        sampled: The session's answers so far.
        special: Special tokens of the policy's tokenizer.
        picture: Function of an image's address and its path in the request.

    Raises:
        RefusedCall: The messages do not begin or end with the user's, or an image is refused.
    """
    images = [
        tuple(
            picture(part.image_url.url if part.image_url else "", f"messages[{number}].content[{place}].image_url")
            for place, part in enumerate(message.parts)
            if part.type == "image_url"
        )
        for number, message in enumerate(messages)
    ]
    count = next((n for n, message in enumerate(messages) if not _is_system(message)), len(messages))
    system = "\n".join("".join(part or "" for part in _parts(message, special)) for message in messages[:count])
    spoken = messages[count:]
    if any(images[:count]) or any(
        shown for message, shown in zip(messages, images, strict=True) if message.role == "assistant"
    ):
        raise RefusedCall(
            "only messages of the user and of tools can hold images", code="invalid_value", param="messages"
        )
    if not spoken or spoken[0].role == "assistant" or spoken[-1].role == "assistant":
        raise RefusedCall(
            "the first message after the system's and the last message must be the user's or a tool's",
            code="invalid_value",
            param="messages",
        )
    turns, start = [], 0
    for is_answer, group in groupby(spoken, lambda message: message.role == "assistant"):
        together = list(group)
        ids: tuple[int, ...] = ()
        if is_answer and len(together) == 1:
            ids, start = sampled.ids_of(key_of_message(together[0]), start)
        contents = [(_answer_parts if is_answer else _parts)(message, special) for message in together]
        turns.append(ChatTurn("assistant" if is_answer else "user", tuple(_joined(contents)), ids))
    return Chat(
        system,
        tuple(turns),
        tuple(image for shown in images for image in shown),
        tuple((_recorded(message), shown) for message, shown in zip(messages, images, strict=True)),
    )


def _is_system(message: ChatMessage) -> bool:
    return message.role in ("system", "developer")


def _parts(message: ChatMessage, special: SpecialTokens) -> Parts:
    """Return a message's texts and places of images; a line break between two parts."""
    parts: Parts = []
    for part in message.parts:
        own = None if part.type == "image_url" else special.broken_up(part.text or "")
        # As in rollouts, images follow each other without a line break.
        parts += [own] if not parts or (own is None and parts[-1] is None) else ["\n", own]
    return ["<tool_response>\n", *parts, "\n</tool_response>"] if message.role == "tool" else parts


def _answer_parts(message: ChatMessage, special: SpecialTokens) -> Parts:
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}}}\n</tool_call>'
        for call in message.tool_calls or ()
    ]
    text = "".join(part.text or "" for part in message.parts)
    return [special.broken_up("\n".join([*([text] if text else []), *calls]))]


def _joined(contents: Sequence[Parts]) -> Parts:
    joined: Parts = []
    for parts in contents:
        joined += ["\n", *parts] if joined else parts
    return joined


def _recorded(message: ChatMessage) -> dict[str, Any]:
    """Return a message as it is recorded, without the addresses of its images."""
    document = message.model_dump(mode="json", exclude_none=True, exclude_defaults=True) | {"role": message.role}
    if not isinstance(message.content, str) and message.content is not None:
        document["content"] = [
            {"type": "image"} if part.type == "image_url" else {"type": "text", "text": part.text or ""}
            for part in message.content
        ]
    return document


def name_images(message: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a recorded message with the blobs' names of its images."""
    if not names:
        return message
    unused = iter(names)
    content = [part | {"sha256": next(unused)} if part["type"] == "image" else part for part in message["content"]]
    return message | {"content": content}


def read_answer(text: str, tools: bool) -> tuple[str | None, list[tuple[str, str]]]:
    """Return a response's content, and name and JSON arguments of its tool calls.

    A response with a call that cannot be read, or with text after a call, is content alone. The
    content is ``None`` if there are only calls.

    Args:
        tools: True if the request has tools.
    """
    first = text.find("<tool_call>") if tools else -1
    if first < 0:
        return text, []
    calls, place = [], first
    while place < len(text):
        match = TOOL_CALLS.match(text, place)
        call = _read_call(match[1]) if match else None
        if match is None or call is None:
            return text, []
        calls.append(call)
        place = match.end()
    return text[:first].strip() or None, calls


def _read_call(text: str) -> tuple[str, str] | None:
    try:
        call = json.loads(text)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    arguments = call.get("arguments", {})
    return (call["name"], json.dumps(arguments, ensure_ascii=False)) if isinstance(arguments, dict) else None


def key_of_message(message: ChatMessage) -> AnswerKey:
    """Return the key of an answer that an agent sends back."""
    text = "".join(part.text or "" for part in message.parts)
    return key_of(text, [(call.function.name, call.function.arguments) for call in message.tool_calls or ()])


def key_of(content: str | None, calls: Sequence[tuple[str, str]]) -> AnswerKey:
    """Return the key of an answer, in which spaces around the text and in JSON do not count."""
    return (content or "").strip(), tuple((name, _canonical(arguments)) for name, arguments in calls)


def _canonical(arguments: str) -> str:
    try:
        return orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONDecodeError:
        return arguments
