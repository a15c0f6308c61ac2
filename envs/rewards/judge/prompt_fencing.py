"""Page text is data: how it is shown to a judge so that it cannot pass for anything else.

Three things keep it apart. It stands between two lines that carry a hash of all the data in the message, which no page can know or
hold. Every line of it begins with a bar, so that no line of it can be a fence, a heading or a verdict. And what a chat template could read as a
control token (``<|im_end|>``, ``</s>``, ``[INST]``) is written with other brackets: a fence is worth nothing if the data can end the turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from envs.types.text import break_control_tokens, writable

MARK_LENGTH = 16
"""Hex digits: 64 bits. A page would have to hold a hash of itself."""

BAR = "| "

_UNSEEN = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f\x80-\x84\x86-\x9f\u200b\u2060\ufeff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""Control characters, and what is invisible or turns the direction of reading: nothing a person saw on the page."""


def harmless(text: str) -> str:
    """The text without control tokens and invisible characters; what a person reads stays as it is."""
    return break_control_tokens(_UNSEEN.sub("", writable(text)))


def fence(sections: Sequence[tuple[str, str]]) -> str:
    """A data section of labelled texts. Equal texts give equal sections: questions can be cached.

    Args:
        sections: Label (ours) and text (the page's or the policy's).
    """
    body = "\n".join(f"{label}:\n{_barred(text)}" for label, text in sections)
    mark = hashlib.sha256(json.dumps([list(each) for each in sections]).encode()).hexdigest()[:MARK_LENGTH]
    while mark in body:  # a text that holds its own hash: take the hash of that
        mark = hashlib.sha256(mark.encode() + body.encode()).hexdigest()[:MARK_LENGTH]
    return f"BEGIN DATA {mark}\n{body}\nEND DATA {mark}"


def _barred(text: str) -> str:
    """Each line behind a bar; lines end where any reader might see an end (U+2028, form feeds…)."""
    return "\n".join(BAR + line for line in harmless(text).splitlines() or [""])
