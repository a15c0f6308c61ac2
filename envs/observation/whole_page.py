"""Reading of a whole page, for facts: all that a person finds by scrolling.

The policy sees only the view. Parts that scroll independently are laid out apart (`lay_flat`): the
content of each scroll container, and fixed or sticky content in front of it, each get a strip of
the plane, cut only where scrolling does not reach. There the same rules as for a view decide what
is drawn, covered and listed. If something covers all that is visible of a container, it covers the
container's content.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace

import numpy as np

from envs.cdp import Cdp
from envs.observation.dom import (
    CONTENT_VISIBILITY,
    DIRECTION,
    DISPLAY,
    DOCUMENT,
    ELEMENT,
    FLEX_DIRECTION,
    LEFT,
    OVERFLOW,
    OVERFLOW_Y,
    POSITION,
    TEXT,
    TOP,
    WRITING_MODE,
    Dom,
    Indices,
    Rects,
    pixels,
    scaled,
)
from envs.observation.elements import Found, find
from envs.observation.frame_geometry import content_quads
from envs.observation.ids import IdBook
from envs.observation.observer import Observer, apply_fields, list_elements, page_of
from envs.observation.occlusion import NO_CLIP, Clip, Scene, containers, cut, paint, stage
from envs.observation.options import FULL, ObservationOptions
from envs.observation.roles import classify
from envs.observation.text import TextPiece
from envs.observation.visibility import style_clips
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

STRIP = 1e6
"""Distance of strips in CSS pixels, more than a page is wide."""
SLACK = 1.0
"""CSS pixels of content beyond a container that come from rounding, not from scrolling."""

SEPARATE = ("BR", "IMG", "INPUT", "SELECT", "TEXTAREA", "BUTTON", "IFRAME", "svg")
"""Elements that separate the words around them."""

SCROLLS = ("auto", "scroll", "overlay")


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


@dataclass(slots=True)
class _Strip:
    """Part of a page that scrolls as one."""

    parent: int
    view: Clip
    """Rectangle in which the strip's content is seen now."""


@dataclass(slots=True)
class _Place:
    """Strip, and the clip of what can be seen there."""

    strip: int
    clip: Clip


@dataclass(slots=True)
class _Flat:
    """Strips of a page, and the strip and clip of each box at its place in the page."""

    strips: list[_Strip] = field(default_factory=list)
    of_box: list[_Place] = field(default_factory=list)

    def open(self, parent: int, view: Clip) -> int:
        """Add a strip and return its number."""
        self.strips.append(_Strip(parent, view))
        return len(self.strips) - 1


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


def lay_flat(dom: Dom, viewport: tuple[float, float]) -> tuple[Dom, Scene]:
    """Return the page with each strip in its own part of the plane, and its scene.

    Nothing that scrolling shows is out of view in the scene.
    """
    flat = _strips(dom, style_clips(dom))
    home: Indices = np.array([place.strip for place in flat.of_box], dtype=np.int64)
    shift = np.zeros((len(home), 4))
    shift[:, 0] = shift[:, 2] = home * STRIP
    moved = replace(dom, rects=dom.rects + shift, line_rects=dom.line_rects + shift[dom.line_box])
    clips: Rects = np.array([place.clip for place in flat.of_box]).reshape(-1, 4) + shift
    scene = paint(moved, clips, strips=home.tolist())
    _drop_covered(scene, flat, home, stage(dom, viewport))
    return moved, scene


def _drop_covered(scene: Scene, flat: _Flat, home: Indices, view: Scene) -> None:
    """Leave out what stays behind something opaque however far its strip is scrolled.

    That is the case if all that is seen of the strip is behind it.
    """
    order = {box: number for number, box in reversed(list(enumerate(scene.box.tolist())))}
    above = [len(scene.box)] * len(flat.strips)
    boxes, rects = view.box[view.opaque], view.rects[view.opaque]
    for number, strip in enumerate(flat.strips):
        if strip.parent < 0:
            continue
        left, top, right, bottom = strip.view
        over = (rects[:, 0] <= left + SLACK) & (rects[:, 1] <= top + SLACK)
        over &= (rects[:, 2] >= right - SLACK) & (rects[:, 3] >= bottom - SLACK)
        covers = [order[box] for box in boxes[over].tolist() if box in order and not _inside(flat, home[box], number)]
        above[number] = min([above[strip.parent], *covers])
    hidden = np.arange(len(scene.box)) > np.array(above)[home[scene.box]]
    scene.rects[hidden] = -1.0


def _inside(flat: _Flat, strip: int, outer: int) -> bool:
    while strip >= 0 and strip != outer:
        strip = flat.strips[strip].parent
    return strip >= 0


def _strips(dom: Dom, styled: Rects | None) -> _Flat:
    """Assign boxes to strips, from the top down along the chains of containing blocks.

    `envs.observation.occlusion` walks the boxes likewise for clips.

    Args:
        styled: Rectangle that clip styles leave of each box.
    """
    flat, cutting = _Flat(), containers(dom) | _bodies(dom)
    position = [dom.style_of(box, POSITION) for box in range(len(dom.box_node))]
    flow, positioned, pinned = list[_Place](), list[_Place](), list[_Place]()
    stuck = dict[int, int]()
    documents = dict(zip(dom.documents, dom.views, strict=True))
    for box, above in enumerate(dom.box_parent):
        node, how = dom.box_node[box], position[box]
        if dom.type[node] == DOCUMENT:
            outer = flow[above] if above >= 0 else _Place(flat.open(-1, NO_CLIP), NO_CLIP)
            mine = base = _Place(outer.strip, cut(outer.clip, tuple(dom.rects[box].tolist())))
            inner = _scrolled_document(dom, box, documents[node], mine, flat)
        else:
            base = pinned[above]
            mine = positioned[above] if how == "absolute" else base if how == "fixed" else flow[above]
            if how == "sticky":
                if mine.strip not in stuck:
                    stuck[mine.strip] = flat.open(mine.strip, mine.clip)
                mine = _Place(stuck[mine.strip], mine.clip)
            inner = mine
            if box in cutting:
                left = cut(mine.clip, cutting[box])
                inner = _Place(mine.strip, left if styled is None else cut(left, styled[box].tolist()))
                inner = _scrolled(dom, box, cutting[box], inner, flat)
        flat.of_box.append(mine)
        flow.append(inner)
        positioned.append(positioned[above] if how == "static" and above >= 0 else inner)
        pinned.append(base)
    return flat


def _bodies(dom: Dom) -> dict[int, Clip]:
    """Return the padding boxes of bodies that scroll by themselves.

    A body's overflow applies to the viewport only where its root sets none.
    """
    edges: dict[int, Clip] = {}
    for node in dom.named("BODY"):
        box, root = dom.box_of[node], dom.box_of[dom.parent[node]]
        if box >= 0 and root >= 0 and "visible" not in (dom.style_of(box, OVERFLOW), dom.style_of(root, OVERFLOW)):
            x, y = pixels(dom.style_of(box, LEFT)), pixels(dom.style_of(box, TOP))
            left, top, right, bottom = dom.rects[box].tolist()
            edges[box] = (left + x, top + y, right - x, bottom - y)
    return edges


def _scrolled_document(
    dom: Dom, box: int, view: tuple[float, float, float, float], mine: _Place, flat: _Flat
) -> _Place:
    """Return the place of a document's content, which its viewport scrolls unless the root forbids
    it."""
    scroll, size = view[:2], view[2:]
    roots = [root for name in ("HTML", "BODY") for root in dom.named(name) if dom.box_of[root] >= 0]
    first, last = dom.box_node[box], dom.end[dom.box_node[box]]
    styled = [dom.box_of[root] for root in roots if first < root <= last] or [box]
    ways = [
        next((way for styled_box in styled if (way := dom.style_of(styled_box, column)) not in ("visible", "")), "auto")
        for column in (OVERFLOW, OVERFLOW_Y)
    ]
    left, top, right, bottom = dom.rects[box].tolist()
    over = size[0] - (right - left), size[1] - (bottom - top)
    moves = [way in SCROLLS and more > SLACK for way, more in zip(ways, over, strict=True)]
    return _open(dom, styled[-1], mine, moves, scroll, (left, top, right, bottom), flat)


def _scrolled(dom: Dom, box: int, edges: Clip, inner: _Place, flat: _Flat) -> _Place:
    """Return the place of an element's content, of which ``inner`` can be seen."""
    scroll, window = dom.scrolls[box], dom.windows[box]
    over = scroll[2:] - window[2:]
    moves = [
        dom.style_of(box, c) in SCROLLS and more > SLACK for c, more in zip((OVERFLOW, OVERFLOW_Y), over, strict=True)
    ]
    return _open(dom, box, inner, moves, (float(scroll[0]), float(scroll[1])), edges, flat)


def _open(
    dom: Dom,
    box: int,
    seen: _Place,
    moves: list[bool],
    scroll: tuple[float, float],
    edges: Clip,
    flat: _Flat,
) -> _Place:
    """Open a strip for content that scrolls; it ends where the scrolling begins.

    A container that shows nothing of its content shows none by scrolling.
    """
    clip = list(seen.clip)
    if not any(moves) or clip[0] >= clip[2] or clip[1] >= clip[3]:
        return seen
    for axis, turned in enumerate(_turned(dom, box)):
        if not moves[axis]:
            continue
        back = scroll[axis] < 0 or (scroll[axis] == 0 and turned)
        clip[axis] = NO_CLIP[axis] if back else edges[axis] - scroll[axis]
        clip[axis + 2] = edges[axis + 2] - scroll[axis] if back else NO_CLIP[axis + 2]
    return _Place(flat.open(seen.strip, seen.clip), (clip[0], clip[1], clip[2], clip[3]))


def _turned(dom: Dom, box: int) -> tuple[bool, bool]:
    """Return True for each axis on which scrolling begins at the right or at the bottom."""
    flex = dom.style_of(box, FLEX_DIRECTION) if "flex" in dom.style_of(box, DISPLAY) else ""
    right = dom.style_of(box, DIRECTION) == "rtl"
    return (right != (flex == "row-reverse")) or dom.style_of(box, WRITING_MODE).endswith(
        "-rl"
    ), flex == "column-reverse"
