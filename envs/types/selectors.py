"""A subset of CSS selectors for facts about DOM nodes.

A selector is parsed when its rubric is read, so that a bad one is refused there.

Supported: ``tag``, ``*``, ``#id``, ``.class``, ``[attribute]`` with ``=``, ``~=``, ``*=``, ``^=``,
``$=``, ``:nth-child(k)``, ``:nth-of-type(k)``, ``:first-child``, the combinators *descendant* and
``>``, and lists with ``,``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_NAME = r"(?:[A-Za-z0-9_-]|[^\x00-\x7f]|\\.)+"  # each character matches in one way: no backtracking on a long bad name
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
    """An element as selectors see it; ``parent`` is a position in the list of all, or ``None``."""

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
    """True if it must be the parent of the compound after it, not just an ancestor."""


@dataclass(frozen=True, slots=True)
class Selector:
    """A parsed list of selectors."""

    alternatives: tuple[tuple[_Compound, ...], ...]

    def select(self, nodes: Sequence[Node]) -> list[int]:
        """Return the positions of the nodes that match, in order.

        ``nodes`` is in document order: parents before their children.
        """
        page = _Page(nodes)
        matches = [page.matches(way) for way in self.alternatives]
        return [place for place, ways in enumerate(zip(*matches, strict=True)) if any(ways)]


def parse_selector(text: str) -> Selector:
    """Read a selector.

    Raises:
        ValueError: It is empty, malformed, or not supported; the message says where.
    """
    alternatives: list[list[_Compound]] = [[]]
    place, text = 0, text.strip()
    while True:
        place, tests = _compound(text, place)
        combinator = _COMBINATOR.match(text, place)
        if combinator and text[combinator.end() : combinator.end() + 1] == ",":
            place = combinator.end()
            combinator = None
        alternatives[-1].append(_Compound(tests, child=bool(combinator and combinator[1])))
        if combinator:
            place = combinator.end()
        elif text[place : place + 1] == ",":
            alternatives.append([])
            place += 1 + len(text[place + 1 :]) - len(text[place + 1 :].lstrip())
        elif place == len(text):
            return Selector(tuple(tuple(way) for way in alternatives))
        else:
            raise ValueError(f"selector {text!r}: {text[place:]!r} is not supported")


def _compound(text: str, place: int) -> tuple[int, tuple[_Test, ...]]:
    tests: list[_Test] = []
    while piece := _PIECE.match(text, place):
        if piece["tag"] and tests:
            break
        tests.append(_test(piece))
        place = piece.end()
    if not tests:
        raise ValueError(f"selector {text!r}: expected a tag, #id, .class or [attribute] before {text[place:]!r}")
    return place, tuple(tests)


def _test(piece: re.Match[str]) -> _Test:
    if piece["tag"]:
        return _Test("tag", piece["tag"].lower())
    if piece["id"]:
        return _Test("=", "id", _plain(piece["id"]))
    if piece["class"]:
        return _Test("~=", "class", _plain(piece["class"]))
    if piece["attribute"]:
        values = [piece[name] for name in ("double", "single") if piece[name] is not None]
        value = values[0] if values else _plain(piece["bare"] or "")
        return _Test(piece["operator"] or "has", _plain(piece["attribute"]).lower(), value)
    return _Test(piece["place"] or "nth-child", "", piece["number"] or "1")


def _plain(name: str) -> str:
    return re.sub(r"\\(.)", r"\1", name)


class _Page:
    """The nodes of a page, with their places among siblings counted once."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = nodes
        self._tags = [node.tag.lower() for node in nodes]
        self._places: dict[str, list[int]] = {}

    def matches(self, way: Sequence[_Compound]) -> list[bool]:
        """Tell for each node if it matches, in one pass for each compound.

        A node's parent alone tells if an ancestor matches the compounds before.
        """
        matched: list[bool] = []
        for number, compound in enumerate(way):
            above = self._above(matched, child=way[number - 1].child) if number else None
            matched = [
                (above is None or above[place]) and all(self._holds(test, place) for test in compound.tests)
                for place in range(len(self._nodes))
            ]
        return matched

    def _above(self, matched: Sequence[bool], *, child: bool) -> list[bool]:
        """Tell for each node if its parent matched, or (without ``child``) any of its ancestors."""
        below: list[bool] = []
        for node in self._nodes:
            parent = node.parent
            below.append(parent is not None and (matched[parent] or (not child and below[parent])))
        return below

    def _holds(self, test: _Test, place: int) -> bool:
        if test.kind == "tag":
            return test.name in ("*", self._tags[place])
        if test.kind.startswith("nth"):
            if test.kind not in self._places:
                self._places[test.kind] = self._count(of_type=test.kind == "nth-of-type")
            return self._places[test.kind][place] == int(test.value)
        actual = self._nodes[place].attributes.get(test.name)
        return actual is not None and _compare(test.kind, actual, test.value)

    def _count(self, *, of_type: bool) -> list[int]:
        """Count the place of each node among its siblings, from 1."""
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
