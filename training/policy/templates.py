"""LLaMA-Factory's chat templates: their names, and the one that a checkpoint needs.

The names are read from LLaMA-Factory's source: importing it takes ten seconds.
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
"""Path, in LLaMA-Factory's package, of the file that registers its templates."""
CALL = re.compile(r"^register_template\(", re.MULTILINE)
NAMED = re.compile(CALL.pattern + r"""\s*(?:name\s*=\s*)?["']([^"']+)["']\s*[,)]""", re.MULTILINE)
"""Pattern of a call that registers a template and has its name first and written out. `CALL`
matches any such call; both at the top level of the file.

`ast.parse` is not used: it fails when two threads of a process are in it (CPython 3.11: "AST
constructor recursion depth mismatch"), and Prefect parses a flow's file in another thread.
"""
MODEL_TEMPLATES = {
    "qwen2_vl": ("qwen2_vl",),
    "qwen2_5_vl": ("qwen2_vl", "mimo_vl"),
    "qwen3_vl": ("qwen3_vl_nothink", "qwen3_vl"),
    "qwen3_vl_moe": ("qwen3_vl_nothink", "qwen3_vl"),
}
"""Chat templates that fit each ``model_type`` of a checkpoint, the usual one first."""
THINKING = {"qwen3_vl_nothink": "qwen3_vl"}
"""Template of a model's Thinking checkpoints, by that of its Instruct ones."""
OPENS_THINKING = re.compile(r"assistant(?:\\+n|\n)<think>")
"""Pattern in the chat template of a Thinking checkpoint: its generation prompt opens the thoughts.
The bare word is not enough: Instruct checkpoints may know the token, and models with both modes
write it for closed thoughts."""


@cache
def template_names() -> frozenset[str]:
    """Return the names of the installed LLaMA-Factory's chat templates.

    Empty where they are not known, because it is not installed or its source has another form.
    """
    path = template_source()
    return registered_names(path.read_text()) if path is not None else frozenset()


def template_source() -> Path | None:
    """Return the path of the file that registers the templates, or ``None``."""
    package = importlib.util.find_spec(PACKAGE)  # of a top-level package this imports nothing
    folders = (package.submodule_search_locations if package is not None else None) or ()
    return next((path for folder in folders if (path := Path(folder) / SOURCE).is_file()), None)


def registered_names(source: str) -> frozenset[str]:
    """Return the names that a file registers; empty if one is not written out first."""
    names = NAMED.findall(source)
    return frozenset(names) if len(names) == len(CALL.findall(source)) else frozenset()


def derive_template(checkpoint: Path) -> str:
    """Return the chat template for a checkpoint's model type; empty if that is not known."""
    usual, *_ = MODEL_TEMPLATES.get(model_type(checkpoint), ("",))
    return THINKING.get(usual, usual) if OPENS_THINKING.search(_chat_template(checkpoint)) else usual


def model_type(checkpoint: Path) -> str:
    """Return ``model_type`` of a checkpoint's config.json; empty if there is none."""
    return str(_document(checkpoint / "config.json").get("model_type") or "")


def _chat_template(checkpoint: Path) -> str:
    """Return the checkpoint's own chat template, in Jinja; empty if there is none.

    It is read from the file that transformers would take.
    """
    if (path := checkpoint / "chat_template.jinja").is_file():
        return path.read_text(encoding="utf-8")
    documents = (_document(checkpoint / name) for name in ("chat_template.json", "tokenizer_config.json"))
    return json.dumps(next((text for document in documents if (text := document.get("chat_template"))), ""))


def _document(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if the file does not exist or holds something else.

    The checks of a checkpoint report such a file.
    """
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}
