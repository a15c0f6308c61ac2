"""LLaMA-Factory's chat templates: their names, and which one a checkpoint needs.

LLaMA-Factory is not imported, which takes ten seconds: the names stand in its source.
"""

from __future__ import annotations

import importlib.util
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

PACKAGE = "llamafactory"
SOURCE = Path("data", "template.py")
"""Where LLaMA-Factory registers its templates, in its package."""
CALL = re.compile(r"^register_template\(", re.MULTILINE)
NAMED = re.compile(CALL.pattern + r"""\s*(?:name\s*=\s*)?["']([^"']+)["']\s*[,)]""", re.MULTILINE)
"""The call, at the top level of that file, that registers one, and the same where its name comes first and is written out.

Python's own parser is not asked: `ast.parse` fails when two threads of a process are in it (CPython 3.11: "AST constructor recursion depth
mismatch"), and Prefect parses a flow's file in another thread.
"""
MODEL_TEMPLATES = {
    "qwen2_vl": ("qwen2_vl",),
    "qwen2_5_vl": ("qwen2_vl", "mimo_vl"),
    "qwen3_vl": ("qwen3_vl_nothink", "qwen3_vl"),
    "qwen3_vl_moe": ("qwen3_vl_nothink", "qwen3_vl"),
}
"""Chat templates that fit each ``model_type`` of a checkpoint, the usual one first."""
THINKING = {"qwen3_vl_nothink": "qwen3_vl"}
"""The template of a model's Thinking checkpoints, by that of its Instruct ones."""
OPENS_THINKING = re.compile(r"assistant(?:\\+n|\n)<think>")
"""In the chat template of a Thinking checkpoint: its generation prompt opens the thoughts. The bare word is not enough: Instruct
checkpoints may know the token, and models with both modes write it for closed thoughts."""


@cache
def template_names() -> frozenset[str]:
    """The chat templates of the installed LLaMA-Factory; empty where they are not known, because it is not installed or has another form."""
    path = template_source()
    return registered_names(path.read_text()) if path is not None else frozenset()


def template_source() -> Path | None:
    """The file that registers them; ``None`` where there is none."""
    found = importlib.util.find_spec(PACKAGE)  # of a package at the top nothing is imported
    folders = (found.submodule_search_locations if found is not None else None) or ()
    return next((path for folder in folders if (path := Path(folder) / SOURCE).is_file()), None)


def registered_names(source: str) -> frozenset[str]:
    """The names that a file registers; empty if one of them is not written out first."""
    names = NAMED.findall(source)
    return frozenset(names) if len(names) == len(CALL.findall(source)) else frozenset()


def derive_template(checkpoint: Path) -> str:
    """The chat template of a checkpoint, by its model type; empty if that is not known."""
    usual, *_ = MODEL_TEMPLATES.get(model_type(checkpoint), ("",))
    return THINKING.get(usual, usual) if OPENS_THINKING.search(_chat_template(checkpoint)) else usual


def model_type(checkpoint: Path) -> str:
    """``model_type`` of a checkpoint's config.json; empty if there is none."""
    return str(_document(checkpoint / "config.json").get("model_type") or "")


def _chat_template(checkpoint: Path) -> str:
    """The checkpoint's own chat template, in Jinja, from the file that transformers would take; empty if there is none."""
    if (path := checkpoint / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    documents = (_document(checkpoint / name) for name in ("chat_template.json", "tokenizer_config.json"))
    return json.dumps(next((found for each in documents if (found := each.get("chat_template"))), ""))


def _document(path: Path) -> dict[str, Any]:
    """A JSON object; empty if the file is not there or holds something else, which the checks of a checkpoint name."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
