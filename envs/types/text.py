"""Sanitises text from outside before it is stored, sent or shown to a model."""

from __future__ import annotations

import re

_TAG = re.compile(r"<(?=[|｜!]|/?[A-Za-z0-9_][\w=:.-]{0,80}[|｜]?>)|◁(?=/?\w{1,20}▷)")
"""Beginning of a control token in the templates of Qwen, Llama, Gemma (``<turn|>``), DeepSeek, Phi
and Kimi (``◁think▷``). ``a < b``, ``x<y`` and ``<3`` are none."""

_BRACKET = re.compile(r"\[(?=/?[a-z]?[A-Z_]{2,}\d{0,4}\])|\](?=<\]|~!?b[\[\]])|\[(?=e~\[)")
"""Beginning of a control token of Mistral (``[INST]``, ``[/AVAILABLE_TOOLS]``), GLM (``[gMASK]``),
InternLM (``[UNUSED_TOKEN_1]``) and MiniMax (``]<]image[>[``)."""


def writable(text: str) -> str:
    """Replace each half of a surrogate pair by U+FFFD.

    JSON can hold ``"\\ud800"`` and a broken detokenisation can make one; no file, header or browser
    takes it.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def break_control_tokens(text: str) -> str:
    """Replace the brackets (by ``‹``, ``⟦``) where a chat template or tokenizer could read a
    control token.

    Applied to every text of a page or another party that enters a prompt. All other text stays as
    it is.
    """
    return _BRACKET.sub("⟦", _TAG.sub("‹", text))
