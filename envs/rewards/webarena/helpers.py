"""The ``func:`` programs of a config, read as data: a name and literal arguments.

Nothing is ever evaluated as Python.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from envs.types import PageScriptError
from envs.types.near import near

Helper = Callable[..., Awaitable[str]]
"""Takes the literal arguments of the call (and the `PageAccess` where it says ``__page__``); raises
`BrowserError` or `SiteError` if it cannot be answered now."""


class UnknownHelper(Exception):
    """The program cannot be run here; says why."""


async def reddit_get_post_url(url: str) -> str:
    """Address of the post that a comment page belongs to: ``/f/<forum>/<post>/``; others stay as
    they are."""
    parts = urlsplit(url)
    names = parts.path.split("/")
    if len(names) < 4 or names[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{names[2]}/{names[3]}/"


async def get_query_text(page: Any, selector: str) -> str:
    """Text of the first element of a selector; empty without one (VisualWebArena)."""
    try:
        return str(await page.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))
    except PageScriptError:  # no selector
        return ""


HELPERS: Mapping[str, Helper] = {"reddit_get_post_url": reddit_get_post_url, "get_query_text": get_query_text}
"""Helpers that need no site. The others of the benchmark read a page of its shop or forum, or ask a
shop or GitLab: `site_helpers` has all."""


async def call(program: str, helpers: Mapping[str, Helper], *, page: object, last_url: str) -> str:
    """The result of ``func:name(arguments)``.

    Raises:
        UnknownHelper: there is no such helper, it is no plain call, or its arguments are not what
            the helper takes.
    """
    name, arguments = read_helper_call(program)
    helper = helpers.get(name)
    if helper is None:
        raise UnknownHelper(
            f"no helper {name!r}; {near(name, helpers)}there are {', '.join(sorted(helpers)) or 'none'}"
        )
    given = [page if argument is PAGE else _with_last(argument, last_url) for argument in arguments]
    try:
        inspect.signature(helper).bind(*given)
    except TypeError as error:
        raise UnknownHelper(f"helper {name!r} does not take these arguments: {error}") from error
    try:
        return str(await helper(*given))
    except (AttributeError, TypeError, ValueError) as error:  # a number for an address, an address that is none
        raise UnknownHelper(f"helper {name!r} can do nothing with these arguments: {error}") from error


PAGE = object()
"""Stands for ``__page__``."""


def read_helper_call(program: str) -> tuple[str, list[Any]]:
    """Name and arguments of ``func:name('a', 2, __page__)``.

    Raises:
        UnknownHelper: it is anything else.
    """
    source = program.strip().removeprefix("func:").strip()
    try:
        call = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UnknownHelper(f"{program[:80]!r} is no call: {error}") from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.keywords:
        raise UnknownHelper(f"{program[:80]!r}: expected func:name(literals)")
    return call.func.id, [_argument(one, program) for one in call.args]


def _argument(node: ast.expr, program: str) -> Any:
    if isinstance(node, ast.Name) and node.id == "__page__":
        return PAGE
    if isinstance(node, ast.Constant) and isinstance(node.value, str | int | float | bool | None):
        return node.value
    raise UnknownHelper(f"{program[:80]!r}: an argument is no literal")


def _with_last(value: Any, last_url: str) -> Any:
    return value.replace("__last_url__", last_url) if isinstance(value, str) else value
