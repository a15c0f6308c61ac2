"""Fences untrusted text in a prompt, so that a model reads it as data only.

Three measures separate page text from the rest of the message:

- It stands between two lines that carry a hash of all the data in the message. No page can know or
  contain that hash.
- Each of its lines begins with a bar, so none can pass for a fence, a heading or a verdict.
- Text that a chat template could read as a control token (``<|im_end|>``, ``</s>``, ``[INST]``) is
  written with other brackets, because a fence does not help if the data can end the turn.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from envs.types.text import break_control_tokens, writable

MARK_LENGTH = 16
"""Hex digits of a mark: 64 bits."""

BAR = "| "
"""Prefix of each line of data."""

_UNSEEN = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f\x80-\x84\x86-\x9f\u200b\u2060\ufeff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]"
)
"""Characters that cannot be seen on a page: control, invisible and direction characters."""


def harmless(text: str) -> str:
    """Return the text without control tokens and invisible characters; visible text stays."""
    return break_control_tokens(_UNSEEN.sub("", writable(text)))


def fence(sections: Sequence[tuple[str, str]]) -> str:
    """Make a data section of labelled texts. Equal texts give equal sections, for the cache.

    Args:
        sections: Pairs of a label (ours) and a text (of the page or the policy).
    """
    body = "\n".join(f"{label}:\n{_barred(text)}" for label, text in sections)
    mark = hashlib.sha256(json.dumps([list(section) for section in sections]).encode()).hexdigest()[:MARK_LENGTH]
    while mark in body:  # a text that contains its own hash: hash again
        mark = hashlib.sha256(mark.encode() + body.encode()).hexdigest()[:MARK_LENGTH]
    return f"BEGIN DATA {mark}\n{body}\nEND DATA {mark}"


def _barred(text: str) -> str:
    """Put a bar before each line; U+2028 and form feeds end a line too."""
    return "\n".join(BAR + line for line in harmless(text).splitlines() or [""])
