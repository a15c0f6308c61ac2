"""A small part of CSS selectors, for naming what is left out of observations."""

from __future__ import annotations

import re
from functools import cache

from envs.observation.dom import Dom
from envs.types import ConfigError

_COMPOUND = re.compile(r"""(?P<tag>[a-zA-Z][\w-]*|\*)?(?P<rest>(?:[#.][\w-]+|\[[\w-]+(?:=["']?[^"'\]]*["']?)?\])*)""")
_PART = re.compile(r"""([#.])([\w-]+)|\[([\w-]+)(?:=["']?([^"'\]]*)["']?)?\]""")

Part = tuple[str, str | None]
"""Attribute and value; ``None`` for any value. ``class`` means one of its words."""


@cache
def parse(selector: str) -> tuple[tuple[str, tuple[Part, ...]], ...]:
    """A list of compound selectors as (tag or ``""``, parts): ``a.x[href], #id``.

    Raises:
        ConfigError: it uses more of CSS than tags, ids, classes and attributes.
    """
    parsed = []
    for compound in filter(None, (one.strip() for one in selector.split(","))):
        found = _COMPOUND.fullmatch(compound)
        if found is None:
            raise ConfigError(
                f"selector {compound!r}: expected a tag, #id, .class or [attribute=value], without spaces"
            )
        parts: list[Part] = []
        for sign, word, name, value in _PART.findall(found["rest"]):
            parts.append((("id" if sign == "#" else "class"), word) if sign else (name, value or None))
        tag = found["tag"] or ""
        parsed.append(("" if tag == "*" else tag.upper(), tuple(parts)))
    return tuple(parsed)


def matching(dom: Dom, selector: str) -> list[int]:
    """Elements that match a list of compound selectors, in any document."""
    found = []
    for tag, parts in parse(selector):
        nodes = dom.with_attribute(parts[0][0]) if parts else dom.named(tag) if tag else []
        found += [
            node
            for node in nodes
            if (not tag or dom.name[node].upper() == tag) and all(_has(dom, node, part) for part in parts)
        ]
    return found


def _has(dom: Dom, node: int, part: Part) -> bool:
    name, wanted = part
    value = dom.attribute(node, name)
    if value is None or wanted is None:
        return value is not None
    return wanted in value.split() if name == "class" else value == wanted
