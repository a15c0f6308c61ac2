"""CSS selector subset for facts about DOM nodes, parsed when a rubric is read.

A small part of CSS selectors, for facts about the nodes of a page: parsed when a rubric is read, so that a bad one is refused there.

Supported: ``tag``, ``*``, ``#id``, ``.class``, ``[attribute]`` with ``=``, ``~=``, ``*=``, ``^=``, ``$=``, ``:nth-child(k)``,
``:nth-of-type(k)``, ``:first-child``, the combinators *descendant* and ``>``, and lists with ``,``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_NAME = r"(?:[A-Za-z0-9_-]|[^\x00-\x7f]|\\.)+"  # no sign has two readings, or a long name that ends badly would be tried in all ways
_PIECE = re.compile(
    rf"""(?P<tag>\*|[A-Za-z]{_NAME}|[A-Za-z])
    |\#(?P<id>{_NAME})
    |\.(?P<class>{_NAME})
    |\[\s*(?P<attribute>{_NAME})\s*(?:(?P<operator>[~*^$]?=)\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>{_NAME}))\s*)?\]
    |:(?P<place>nth-child|nth-of-type)\(\s*(?P<number>[1-9]\d*)\s*\)
    |:(?P<first>first-child)(?![\w-])""",
    re.VERBOSE,
)
_COMBINATOR = re.compile(r"\s*(>)\s*|\s+")


class Node(Protocol):
    """What a selector needs to know of an element; ``parent`` is a position in the list of all, or ``None``."""

    @property
    def tag(self) -> str: ...
    @property
    def attributes(self) -> Mapping[str, str]: ...
    @property
    def parent(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class _Test:
    kind: str
    name: str
    value: str = ""


@dataclass(frozen=True, slots=True)
class _Compound:
    tests: tuple[_Test, ...]
    child: bool
    """It must be the parent, not just an ancestor, of the compound after it."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed list of selectors."""

    alternatives: tuple[tuple[_Compound, ...], ...]

    def select(self, nodes: Sequence[Node]) -> list[int]:
        """Positions of the nodes that match, in order.

        ``nodes`` is in document order: parents before their children.
        """
        page = _Page(nodes)
        found = [page.matches(way) for way in self.alternatives]
        return [at for at, ways in enumerate(zip(*found, strict=True)) if any(ways)]


def parse_selector(text: str) -> Selector:
    """Read a selector.

    Raises:
        ValueError: it is empty, malformed, or uses what is not supported; says where.
    """
    alternatives: list[list[_Compound]] = [[]]
    at, text = 0, text.strip()
    while True:
        at, tests = _compound(text, at)
        combinator = _COMBINATOR.match(text, at)
        if combinator and text[combinator.end() : combinator.end() + 1] == ",":
            at = combinator.end()
            combinator = None
        alternatives[-1].append(_Compound(tests, child=bool(combinator and combinator[1])))
        if combinator:
            at = combinator.end()
        elif text[at : at + 1] == ",":
            alternatives.append([])
            at += 1 + len(text[at + 1 :]) - len(text[at + 1 :].lstrip())
        elif at == len(text):
            return Selector(tuple(tuple(way) for way in alternatives))
        else:
            raise ValueError(f"selector {text!r}: {text[at:]!r} is not supported")


def _compound(text: str, at: int) -> tuple[int, tuple[_Test, ...]]:
    tests: list[_Test] = []
    while found := _PIECE.match(text, at):
        if found["tag"] and tests:
            break
        tests.append(_test(found))
        at = found.end()
    if not tests:
        raise ValueError(f"selector {text!r}: expected a tag, #id, .class or [attribute] before {text[at:]!r}")
    return at, tuple(tests)


def _test(found: re.Match[str]) -> _Test:
    if found["tag"]:
        return _Test("tag", found["tag"].lower())
    if found["id"]:
        return _Test("=", "id", _plain(found["id"]))
    if found["class"]:
        return _Test("~=", "class", _plain(found["class"]))
    if found["attribute"]:
        values = [found[name] for name in ("double", "single") if found[name] is not None]
        value = values[0] if values else _plain(found["bare"] or "")
        return _Test(found["operator"] or "has", _plain(found["attribute"]).lower(), value)
    return _Test(found["place"] or "nth-child", "", found["number"] or "1")


def _plain(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


class _Page:
    """Nodes that are looked through, with what selectors need to know of all of them, counted once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._tags = [node.tag.lower() for node in nodes]
        self._places: dict[str, list[int]] = {}

    def matches(self, way: Sequence[_Compound]) -> list[bool]:
        """Of each node whether it matches, in one pass for each compound: whether an ancestor matches what comes before a compound is known
        from the parent alone."""
        matched: list[bool] = []
        for number, compound in enumerate(way):
            above = self._above(matched, child=way[number - 1].child) if number else None
            matched = [
                (above is None or above[at]) and all(self._holds(test, at) for test in compound.tests)
                for at in range(len(self._nodes))
            ]
        return matched

    def _above(self, matched: Sequence[bool], *, child: bool) -> list[bool]:
        """Of each node whether its parent matched, or (no ``child``) any of its ancestors did."""
        found: list[bool] = []
        for node in self._nodes:
            over = node.parent
            found.append(over is not None and (matched[over] or (not child and found[over])))
        return found

    def _holds(self, test: _Test, at: int) -> bool:
        if test.kind == "tag":
            return test.name in ("*", self._tags[at])
        if test.kind.startswith("nth"):
            if test.kind not in self._places:
                self._places[test.kind] = self._count(of_type=test.kind == "nth-of-type")
            return self._places[test.kind][at] == int(test.value)
        actual = self._nodes[at].attributes.get(test.name)
        return actual is not None and _compare(test.kind, actual, test.value)

    def _count(self, *, of_type: bool) -> list[int]:
        """The place of each node among its siblings, from 1."""
        seen = Counter[tuple[int | None, str]]()
        places = []
        for node, tag in zip(self._nodes, self._tags, strict=True):
            among = (node.parent, tag if of_type else "")
            seen[among] += 1
            places.append(seen[among])
        return places


def _compare(operator: str, actual: str, value: str) -> bool:
    if operator == "has":
        return True
    if operator == "=":
        return actual == value
    if not value:  # as CSS has it: these match nothing
        return False
    if operator == "~=":
        return value in actual.split()
    if operator == "^=":
        return actual.startswith(value)
    return actual.endswith(value) if operator == "$=" else value in actual
