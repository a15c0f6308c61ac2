"""Layout of a whole page: each part that scrolls independently is a strip of its own.

The strips lie side by side on one plane, so nothing that scrolling shows is out of view there.
`envs.observation.whole_page` reads the page so.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from envs.observation.clips import NO_CLIP, Clip, containers, cut
from envs.observation.dom import (
    DIRECTION,
    DISPLAY,
    DOCUMENT,
    FLEX_DIRECTION,
    LEFT,
    OVERFLOW,
    OVERFLOW_Y,
    POSITION,
    TOP,
    WRITING_MODE,
    Dom,
    Indices,
    Rects,
    pixels,
)
from envs.observation.occlusion import Scene, paint, stage
from envs.observation.visibility import style_clips

STRIP = 1e6
"""Distance of strips in CSS pixels, more than a page is wide."""
SLACK = 1.0
"""CSS pixels of content beyond a container that come from rounding, not from scrolling."""

SCROLLS = ("auto", "scroll", "overlay")


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
