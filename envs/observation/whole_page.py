"""Reading of a whole page, for facts: all that a person finds by scrolling.

The policy sees only the view. Parts that scroll independently are laid out apart (`lay_flat`): the
content of each scroll container, and fixed or sticky content in front of it, each get a strip of
the plane, cut only where scrolling does not reach. There the same rules as for a view decide what
is drawn, covered and listed. If something covers all that is visible of a container, it covers the
container's content.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np

from envs.cdp import Cdp
from envs.observation.dom import (
    CONTENT_VISIBILITY,
    DISPLAY,
    DOCUMENT,
    ELEMENT,
    TEXT,
    Dom,
    scaled,
)
from envs.observation.elements import Found, find
from envs.observation.frame_geometry import content_quads
from envs.observation.ids import IdBook
from envs.observation.observer import Observer, apply_fields, list_elements, page_of
from envs.observation.options import FULL, ObservationOptions
from envs.observation.roles import classify
from envs.observation.scroll_strips import lay_flat
from envs.observation.text import TextPiece
from envs.settle import FieldStates
from envs.types import Element, Whole, WholePage

MAX_CHARS = 200_000
"""Maximum number of characters of a page's words that are recorded: a quarter of a novel, 25 times
what a policy reads."""
MAX_ELEMENTS = 2_000
"""Maximum number of elements of a page that are recorded, ten times those of a view (0.5 MB)."""
MAX_SKIPPED = 1_000
"""Maximum number of nodes in elements with ``content-visibility: auto`` that the engine is asked to
lay out for a reading."""

SEPARATE = ("BR", "IMG", "INPUT", "SELECT", "TEXTAREA", "BUTTON", "IFRAME", "svg")
"""Elements that separate the words around them."""


async def read_whole(
    observer: Observer, cdp: Cdp, *, viewport: tuple[int, int], world: int | None = None, elements: bool = False
) -> WholePage:
    """Read all of a page, as it is; ``world`` as in `Observer.observe`, ``elements`` as in
    `compose_whole`."""
    dom, focus, fields = await observer.ask(cdp, world, None, scrolling=True)
    asked: set[int] = set()
    while (nodes := [node for node in skipped(dom) if node not in asked]) and len(asked) < MAX_SKIPPED:
        # Asking for a box lays it out (Chromium 156). It scrolls nothing, and the page cannot
        # notice.
        await content_quads(cdp, nodes)
        asked.update(nodes)
        dom, focus, fields = await observer.ask(cdp, world, None, scrolling=True)
    return compose_whole(
        dom,
        focus=focus,
        fields=fields,
        viewport=viewport,
        options=observer.options,
        exclude=observer.exclude,
        book=observer.book,
        elements=elements,
        unread=bool(nodes),
    )


def skipped(dom: Dom) -> list[int]:
    """Return nodes (backendNodeId) in elements that the engine has not laid out.

    These elements are out of view and have ``content-visibility: auto``.
    """
    boxes = np.flatnonzero(dom.styled(CONTENT_VISIBILITY, "auto".__eq__)).tolist()
    inside = [
        [child for child in dom.children(node) if _has_words(dom, child)]
        for node in map(dom.box_node.__getitem__, boxes)
    ]
    return [
        dom.backend[child] for nodes in inside if all(dom.box_of[child] < 0 for child in nodes) for child in nodes[:4]
    ]


def _has_words(dom: Dom, node: int) -> bool:
    if dom.type[node] == ELEMENT:
        return dom.end[node] > node and dom.name[node] not in ("SCRIPT", "STYLE", "TEMPLATE")
    return dom.type[node] == TEXT and bool(dom.text(node).strip())


def compose_whole(
    dom: Dom,
    *,
    focus: int | None,
    fields: FieldStates,
    viewport: tuple[int, int],
    options: ObservationOptions,
    exclude: str,
    book: IdBook,
    elements: bool,
    unread: bool = False,
) -> WholePage:
    """Return the whole page of a snapshot that was taken with ``scrolling``.

    The function is pure; ``book`` is not changed.

    Args:
        options: Rules of which elements there are; words are read by the full rules.
        elements: True to record the interactive elements too.
        unread: True if there is more on the page than in the snapshot.
    """
    apply_fields(dom, fields)
    seen = (viewport[0] / dom.scale, viewport[1] / dom.scale)
    flat, scene = lay_flat(dom, seen)
    focused = dom.backend.index(focus) if focus is not None and focus in dom.backend else -1

    def read(rules: ObservationOptions) -> tuple[list[str], tuple[Element, ...], bool]:
        rules = replace(rules, max_elements=MAX_ELEMENTS, label_chars=MAX_CHARS, max_texts=0, order="document")
        kinds = replace(classify(dom, rules, seen, exclude), dom=flat)
        items, _, namer = find(kinds, scene, rules, focused)
        listed = items[:MAX_ELEMENTS]
        for item in listed:
            _put_back(dom, item, seen)
        named, rendered = list_elements(kinds, listed, deepcopy(book), rules)
        lines = page_of(kinds, scene, namer, listed, named, rendered).lines
        labels = (text for item in items for text in (item.label, item.written, *item.options) if text)
        return [*(_joined(dom, line) for line in lines), *labels], named, len(items) > len(listed)

    words, named, more = read(FULL)
    if elements and options.rules != FULL.rules:
        _, named, more = read(options)
    words = list(dict.fromkeys(words))
    kept = _within_budget(words)
    return WholePage(
        words=kept,
        words_cut=unread or len(kept) < len(words) or kept[-1:] != tuple(words[-1:]),
        elements=tuple(element if element.whole is None else _uncut(element) for element in named) if elements else (),
        elements_cut=elements and (unread or more),
    )


def _joined(dom: Dom, line: list[TextPiece]) -> str:
    """Return the words of a line, without a space where the page has none: ``<b>12</b>, paid``."""
    joined, last = "", -1
    for piece in line:
        joined += piece.own if last >= 0 and _touch(dom, last, piece.node) else f" {piece.own}"
        last = piece.node
    return joined.strip()


def _touch(dom: Dom, one: int, other: int) -> bool:
    """Return True if two nodes stand in one line of inline content with nothing between them."""
    if not dom.end[one] < other or _inline_root(dom, one) != _inline_root(dom, other):
        return False
    between = range(dom.end[one] + 1, other)
    if any(dom.type[node] == TEXT or dom.name[node] in SEPARATE for node in between):
        return False
    before = next((dom.text(node) for node in range(dom.end[one], one - 1, -1) if dom.type[node] == TEXT), " ")
    after = next((dom.text(node) for node in range(other, dom.end[other] + 1) if dom.type[node] == TEXT), " ")
    return bool(before and after) and not (before[-1].isspace() or after[0].isspace())


def _inline_root(dom: Dom, node: int) -> int:
    """Return the box whose lines an inline node stands in.

    A node without a box gets a negative number of its own.
    """
    box = dom.box_of[node]
    if box < 0 or node in dom.pseudo:
        return -node - 1
    while dom.type[dom.box_node[box]] != DOCUMENT and dom.style_of(box, DISPLAY) in ("", "inline"):
        box = dom.box_parent[box]
    return box


def _put_back(dom: Dom, item: Found, viewport: tuple[float, float]) -> None:
    """Set an element's place to its place in the page, not in its strip."""
    if (box := dom.box_of[item.node]) < 0:
        return
    left, top, right, bottom = dom.rects[box].tolist()
    item.box = scaled((left, top, right - left, bottom - top), dom.scale)
    x, y = (left + right) / 2, (top + bottom) / 2
    item.point = (x, y) if 0 <= x < viewport[0] and 0 <= y < viewport[1] else None


def _uncut(element: Element) -> Element:
    """Mark an element's texts, which look shortened, as whole."""
    return element.model_copy(update={"whole": Whole(text=element.text, written=element.written, value=element.value)})


def _within_budget(words: list[str]) -> tuple[str, ...]:
    """Return the first lines that fit, and the beginning of a line that is too long, which is
    searched too."""
    room = MAX_CHARS
    for number, line in enumerate(words):
        if len(line) > room:
            return (*words[:number], line[:room])
        room -= len(line)
    return tuple(words)
