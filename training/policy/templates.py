"""The names of LLaMA-Factory's chat templates, without importing it, which takes ten seconds: they stand in its source."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from pathlib import Path

PACKAGE = "llamafactory"
SOURCE = Path("data", "template.py")
"""Where LLaMA-Factory registers its templates, in its package."""
REGISTER = "register_template"
"""The function that it calls for each of them, at the top level of that file."""


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
    """The names that a file registers; empty if one of them is not written out, or the file is no Python that we can read."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return frozenset()
    calls = [node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    names = [_name(call) for call in calls if isinstance(call.func, ast.Name) and call.func.id == REGISTER]
    known = frozenset(name for name in names if name is not None)
    return known if len(known) == len(set(names)) else frozenset()


def _name(call: ast.Call) -> str | None:
    given = [word.value for word in call.keywords if word.arg == "name"] or call.args[:1]
    value = given[0].value if given and isinstance(given[0], ast.Constant) else None
    return value if isinstance(value, str) else None
