"""A small part of CSS selectors, which names what observations leave out."""

from __future__ import annotations

import re
from functools import cache

from envs.observation.dom import Dom
from envs.types import ConfigError

_COMPOUND = re.compile(r"""(?P<tag>[a-zA-Z][\w-]*|\*)?(?P<rest>(?:[#.][\w-]+|\[[\w-]+(?:=["']?[^"'\]]*["']?)?\])*)""")
_PART = re.compile(r"""([#.])([\w-]+)|\[([\w-]+)(?:=["']?([^"'\]]*)["']?)?\]""")

Part = tuple[str, str | None]
"""Attribute and value; ``None`` for any value. The value of ``class`` is one of its words."""


@cache
def parse(selector: str) -> tuple[tuple[str, tuple[Part, ...]], ...]:
    """Parse a list of compound selectors into (tag or ``""``, parts): ``a.x[href], #id``.

    Raises:
        ConfigError: The selector uses more of CSS than tags, ids, classes and attributes.
    """
    parsed = []
    for compound in filter(None, (one.strip() for one in selector.split(","))):
        match = _COMPOUND.fullmatch(compound)
        if match is None:
            raise ConfigError(
                f"selector {compound!r}: expected a tag, #id, .class or [attribute=value], without spaces"
            )
        parts: list[Part] = []
        for sign, word, name, value in _PART.findall(match["rest"]):
            parts.append((("id" if sign == "#" else "class"), word) if sign else (name, value or None))
        tag = match["tag"] or ""
        parsed.append(("" if tag == "*" else tag.upper(), tuple(parts)))
    return tuple(parsed)


def matching(dom: Dom, selector: str) -> list[int]:
    """Return the elements, in any document, that match a list of compound selectors."""
    matches = []
    for tag, parts in parse(selector):
        nodes = dom.with_attribute(parts[0][0]) if parts else dom.named(tag) if tag else []
        matches += [
            node
            for node in nodes
            if (not tag or dom.name[node].upper() == tag) and all(_has(dom, node, part) for part in parts)
        ]
    return matches


def _has(dom: Dom, node: int, part: Part) -> bool:
    name, wanted = part
    value = dom.attribute(node, name)
    if value is None or wanted is None:
        return value is not None
    return wanted in value.split() if name == "class" else value == wanted
