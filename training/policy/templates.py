"""The names of LLaMA-Factory's chat templates, without importing it, which takes ten seconds: they stand in its source."""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

PACKAGE = "llamafactory"
SOURCE = Path("data", "template.py")
"""Where LLaMA-Factory registers its templates, in its package."""
CALL = re.compile(r"^register_template\(", re.MULTILINE)
NAMED = re.compile(CALL.pattern + r"""\s*(?:name\s*=\s*)?["']([^"']+)["']\s*[,)]""", re.MULTILINE)
"""The call, at the top level of that file, that registers one, and the same where its name comes first and is written out.

Python's own parser is not asked: `ast.parse` fails when two threads of a process are in it (CPython 3.11: "AST constructor recursion depth
mismatch"), and Prefect parses a flow's file in another thread.
"""


@cache
def template_names() -> frozenset[str]:
    """The chat templates of the installed LLaMA-Factory; empty where they are not known, because it is not installed or has another form."""
    path = template_source()
    return registered(path.read_text()) if path is not None else frozenset()


def template_source() -> Path | None:
    """The file that registers them; ``None`` where there is none."""
    found = importlib.util.find_spec(PACKAGE)  # of a package at the top nothing is imported
    folders = (found.submodule_search_locations if found is not None else None) or ()
    return next((path for folder in folders if (path := Path(folder) / SOURCE).is_file()), None)


def registered(source: str) -> frozenset[str]:
    """The names that a file registers; empty if one of them is not written out first."""
    names = NAMED.findall(source)
    return frozenset(names) if len(names) == len(CALL.findall(source)) else frozenset()
