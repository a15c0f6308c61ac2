"""Text rendering of a page: numbered elements and the words between them, in document order.

    # Log in
    [1] textbox "User name" value "ann" focused
    [2] password "Password" [3] button "Log in"
    … 14 more elements below, 2,300 characters of text cut

A link, the most common kind, is written without its word: ``[4] "Home"``. A picture that says what
it shows is ``image "A kettle"``. Elements are what can be acted on, so words go first when there is
no room: long passages are shortened more and more, then left out, and only then are elements cut
from the end. The last line says what was cut.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from envs.observation.dom import DISPLAY, Dom, Flags
from envs.observation.layers import Layers
from envs.observation.occlusion import Scene
from envs.observation.reach import MIN_SIDE
from envs.observation.roles import Kinds
from envs.observation.text_utils import generated, shorten, shown, squash
from envs.observation.visibility import invisible_text
from envs.types import Element, Hidden, Observation

PASSAGE_CHARS = (400, 200, 100, 40, 0)
"""Maximum numbers of characters of a passage, tried in turn until the page fits."""

SHOWN_OPTIONS = 6
"""Maximum number of choices of a list that are shown; all of them are in the element."""

ALT_CHARS = 400
"""Maximum number of characters of a picture's description, as many as of a passage."""

WRITTEN = {"input": "textbox"}
"""Words for tags where the word that models know differs from the observation's tag."""

OUT_OF_VIEW = "characters of text out of view"
"""End of the note on text outside of the view."""

HEADINGS = frozenset({"H1", "H2", "H3", "H4", "H5", "H6"})


@dataclass(slots=True)
class TextPiece:
    """Words, or an element of the list."""

    words: str
    element: int = 0
    """Number of the element; 0 for words."""
    label: str | None = None
    """Words of the page in the piece, where it has others too. These are an element's label without
    its number, kind, value and state, a heading without its sign, or a picture's text without
    ``image``."""
    node: int = -1
    """Node of the piece."""
    box: int = -1
    """Box of the piece."""

    @property
    def own(self) -> str:
        """Words of the page alone."""
        return self.words if self.label is None else self.label


@dataclass(slots=True)
class Page:
    """Lines of the visible part of a page, and the number of characters outside of the viewport."""

    lines: list[list[TextPiece]]
    unseen_chars: int


def lay_out(
    kinds: Kinds,
    scene: Scene,
    listed: dict[int, TextPiece],
    boxes: dict[int, int],
    labelled: set[int],
    gauges: dict[int, str] | None = None,
) -> Page:
    """Put words and elements into lines.

    Args:
        listed: TextPiece of each listed element, by node.
        boxes: Box at which each of them stands, by node.
        labelled: Nodes whose text is part of an element.
        gauges: Values of meters and progress bars, by node.
    """
    dom = scene.dom
    silent = _silent(kinds, labelled)
    page = Page([[]], 0)
    gauges = {node: gauge for node, gauge in (gauges or {}).items() if not silent[node]}
    dom.marked(gauges, silent)
    placed: dict[int, list[TextPiece]] = {}
    for node, piece in listed.items():
        piece.box = boxes[node]
        placed.setdefault(piece.box, []).append(piece)
    worth, unseen = _worth(scene, silent, set(placed), gauges)
    # The text of an element that is out of view is counted as an element.
    page.unseen_chars = _length(dom, unseen, _silent(kinds, set(kinds.kind)))
    # Cells of a table share a line.
    begins_line = dom.styled(DISPLAY, lambda display: not display.startswith(("inline", "table-cell"))).tolist()
    block = -1
    for box in _in_order(dom, worth):
        node = dom.box_node[box]
        around = box
        while not begins_line[around] and dom.box_parent[around] >= 0:
            around = dom.box_parent[around]
        if around != block or dom.name[node] == "BR":
            block = around
            if page.lines[-1]:
                page.lines.append([])
        page.lines[-1] += placed.get(box, ())
        if node in listed:
            continue
        if words := _words(dom, gauges, box, node):
            level = 0 if page.lines[-1] else _level(dom, block)
            sign = f"{'#' * level} " if level else ""
            own = squash(dom.attribute(node, "alt")) if dom.name[node] == "IMG" else words
            label = own if sign or own != words else None
            page.lines[-1].append(TextPiece(sign + words, label=label, node=node, box=box))
    page.lines = [line for line in page.lines if line]
    return page


def describe(element: Element) -> str:
    """Render one element: ``[3] checkbox "Remember me" checked``, a link as ``[4] "Home"``."""
    kind = WRITTEN.get(element.tag, element.tag)
    parts = [f"[{element.index}]"]
    if kind != "link" or not element.text:
        parts.append(kind)
    if element.text:
        parts.append(f'"{element.text}"')
    if element.written:
        parts.append(f'showing "{element.written}"')
    if element.value:
        parts.append(f'value "{element.value}"')
    if element.options or element.more_options:
        more = len(element.options) - SHOWN_OPTIONS + element.more_options
        choices = [*element.options[:SHOWN_OPTIONS], *([f"and {more} more"] if more > 0 else [])]
        parts.append(f"({', '.join(choices).replace(', and ', ' and ')})")
    parts += element.states
    marks = ("checked", "disabled", "focused")
    parts += [mark for mark in marks if getattr(element, mark)]
    return " ".join(parts if element.in_viewport else [*parts, "offscreen"])


def fit(page: Page, hidden: Hidden, budget: int, layers: Layers | None = None) -> tuple[str, tuple[str, ...]]:
    """Render a page in at most ``budget`` characters.

    If not all lines fit, those on top in ``layers`` come first, the topmost before others.

    Returns:
        The text with a note of what was cut, and its lines of the page's words alone (labels,
        nothing that fields hold).
    """
    whole = page.lines
    for limit in (None, *PASSAGE_CHARS):
        if limit is not None and layers is not None:
            whole = sorted(page.lines, key=lambda line: -layers.order(line[0].box))
        lines, cut = _shorten(whole, limit)
        text = _join(lines, _note(hidden, 0, cut, page.unseen_chars))
        if len(text) <= budget:
            return text, _page_words(lines)
    kept, text = _fewer_pieces(lines, hidden, cut, page.unseen_chars, budget)
    return text, _page_words(kept)


def _page_words(lines: list[list[TextPiece]]) -> tuple[str, ...]:
    joined = (" ".join(piece.own for piece in line).strip() for line in lines)
    return tuple(line for line in joined if line)


def was_cut(text: str) -> bool:
    """Return True if a rendering left out words or elements to keep its budget, as its note says.

    Elements and text out of view do not count.
    """
    note = text.rpartition("\n")[2]
    return note.startswith("… ") and ("left out" in note or "characters of text cut" in note)


def out_of_view(page: Observation) -> bool:
    """Return True if a page has content above, below or beside what an observation shows."""
    hidden = page.hidden
    larger = any(size > shown + 1 for size, shown in zip(page.page_size, page.viewport, strict=True))
    return larger or bool(hidden.above or hidden.below or hidden.beside) or OUT_OF_VIEW in page.text.rpartition("\n")[2]


def reading_order(dom: Dom) -> Iterator[int]:
    """Yield all boxes in document order, those of a frame's document in the place of the frame."""
    contents = {dom.parent[root]: number for number, root in enumerate(dom.documents)}
    if len(dom.documents) == 1:
        yield from range(len(dom.box_node))
        return
    bounds = [*dom.documents, len(dom.parent)]
    firsts = [int(first) for first in np.searchsorted(np.array(dom.box_node), bounds)]

    def of(number: int) -> Iterator[int]:
        for box in range(firsts[number], firsts[number + 1]):
            yield box
            inside = contents.get(dom.box_node[box])
            if inside is not None:
                yield from of(inside)

    yield from of(0)


def _in_order(dom: Dom, worth: set[int]) -> Iterator[int]:
    """Yield boxes in reading order.

    A snapshot has what is put after an element before all that is in it.
    """
    ordered = (box for box in reading_order(dom) if box in worth) if len(dom.documents) > 1 else iter(sorted(worth))
    late: list[tuple[int, int]] = []  # last node of the element, box of what is put after it
    for box in ordered:
        node = dom.box_node[box]
        while late and node > late[-1][0]:
            yield late.pop()[1]
        if dom.name[node] == "::after":
            late.append((dom.end[dom.parent[node]], box))
        else:
            yield box
    yield from (box for _, box in reversed(late))


def _words(dom: Dom, gauges: dict[int, str], box: int, node: int) -> str:
    """Return the words of a box that is not an element of the list."""
    if dom.name[node] == "IMG":
        alt = squash(dom.attribute(node, "alt"))
        return f'image "{shorten(alt, ALT_CHARS)}"' if alt else ""
    if node in gauges:
        return gauges[node]
    if node in dom.pseudo:
        return generated(dom, node) if dom.box_of[node] + 1 == box else ""
    return squash(shown(dom, node)) if dom.box_of[node] == box else ""


def _level(dom: Dom, block: int) -> int:
    """Return the level of the heading that a block is, 0 for any other."""
    name = dom.name[dom.box_node[block]]
    return int(name[1]) if name in HEADINGS else 0


def _worth(scene: Scene, silent: bytearray, listed: set[int], gauges: Collection[int]) -> tuple[set[int], list[int]]:
    """Return the boxes that make up the lines, and those of words out of view.

    The lines hold elements, visible words and pictures, and line breaks.
    """
    dom = scene.dom
    node, text = np.array(dom.box_node, dtype=np.int64), np.array(dom.box_text, dtype=np.int64)
    speaks = (text >= 0) & (np.frombuffer(bytes(silent), dtype=np.uint8)[node] == 0)
    speaks &= ~_invisible(scene)
    speaks[_pictures(dom, silent)] = True
    speaks[[dom.box_of[gauge] for gauge in gauges if dom.box_of[gauge] >= 0]] = True
    seen = scene.again("texts", speaks, lambda: _seen(scene, speaks))
    worth = listed.union(np.flatnonzero(speaks & seen).tolist(), (dom.box_of[br] for br in dom.named("BR")))
    return worth - {-1}, np.flatnonzero(speaks & ~seen & (text >= 0)).tolist()


def _pictures(dom: Dom, silent: bytearray) -> list[int]:
    """Return the boxes of pictures that have a description and are large enough to be seen."""
    named = (node for node in dom.having("alt") if dom.name[node] == "IMG" and not silent[node])
    boxes = [dom.box_of[node] for node in named if dom.box_of[node] >= 0 and squash(dom.attribute(node, "alt"))]
    large: Flags = np.asarray((dom.rects[boxes, 2:] - dom.rects[boxes, :2] >= MIN_SIDE).all(axis=1))
    return [box for box, seen in zip(boxes, large.tolist(), strict=True) if seen]


def _seen(scene: Scene, asked: Flags) -> Flags:
    """Return the asked boxes that are in the viewport, not transparent, and not painted over."""
    items = np.flatnonzero(asked[scene.box])
    rects = scene.rects[items]
    smallest = np.minimum(MIN_SIDE, scene.whole[items, 2:] - scene.whole[items, :2])
    large = ((rects[:, 2:] - rects[:, :2]) >= smallest - 1e-6).all(axis=1)
    items, rects = items[large], rects[large]
    seen = np.zeros(len(scene.dom.box_node), dtype=np.bool_)
    seen[scene.box[items[~scene.covered((rects[:, :2] + rects[:, 2:]) / 2, items)]]] = True
    seen[list(scene.dom.transparent)] = False
    return seen


def _invisible(scene: Scene) -> Flags:
    """Return the boxes of invisible texts.

    They have no colour, a hidden element, or are cut down to a pixel (text for screen readers).
    """
    dom = scene.dom
    clear = invisible_text(dom) | np.array(dom.hidden)
    above = np.array(dom.box_parent, dtype=np.int64)
    room = scene.clips[:, 2:] - scene.clips[:, :2]
    to_nothing = ((room >= 0) & (room < MIN_SIDE)).any(axis=1)
    flags: Flags = (dom.style_at == 0) & ((clear[above] & (above >= 0)) | to_nothing | scene.clipped_away)
    return flags


def _silent(kinds: Kinds, nodes: set[int]) -> bytearray:
    """Return 1 for each node whose text is not shown by itself.

    The node is excluded, in one of ``nodes``, or in a field.
    """
    flags = int.from_bytes(kinds.excluded, "big") | int.from_bytes(kinds.dom.entered, "big")
    return kinds.dom.marked(nodes, bytearray(flags.to_bytes(len(kinds.excluded), "big")))


def _length(dom: Dom, boxes: list[int], silent: bytearray) -> int:
    """Return the number of characters of the text of these boxes that is not silent."""
    return sum(len(dom.strings[dom.box_text[box]].strip()) for box in boxes if not silent[dom.box_node[box]])


def _shorten(lines: list[list[TextPiece]], limit: int | None) -> tuple[list[list[TextPiece]], int]:
    """Shorten passages to ``limit`` characters each; return the lines and the number of characters
    cut."""
    if limit is None:
        return lines, 0
    cut, kept = 0, []
    for line in lines:
        new = []
        for piece in line:
            if not piece.element and len(piece.words) > limit:
                cut += len(piece.words) - limit
                if not limit:
                    continue
                own = None if piece.label is None else shorten(piece.label, limit)
                piece = TextPiece(piece.words[:limit].rstrip() + "…", label=own)
            new.append(piece)
        if new:
            kept.append(new)
    return kept, cut


def _fewer_pieces(
    lines: list[list[TextPiece]], hidden: Hidden, cut: int, unseen: int, budget: int
) -> tuple[list[list[TextPiece]], str]:
    """Keep as many pieces from the beginning as fit beside the note.

    Pieces are counted, not lines: a page may put all of its elements into one line.
    """
    total = _elements(lines)

    def first(count: int) -> tuple[list[list[TextPiece]], str]:
        kept, left = [], count
        for line in lines:
            if left <= 0:
                break
            kept.append(line[:left])
            left -= len(line)
        return kept, _join(kept, _note(hidden, total - _elements(kept), cut, unseen))

    low, high = 0, sum(map(len, lines))
    while low < high:
        middle = (low + high + 1) // 2
        if len(first(middle)[1]) <= budget:
            low = middle
        else:
            high = middle - 1
    kept, whole = first(low)
    return kept, whole[: max(0, budget)]


def _elements(lines: Sequence[list[TextPiece]]) -> int:
    return sum(1 for line in lines for piece in line if piece.element)


def _join(lines: list[list[TextPiece]], note: str) -> str:
    return "\n".join([*(" ".join(piece.words for piece in line) for line in lines), *([note] if note else [])])


def _note(hidden: Hidden, dropped: int, cut: int, unseen: int) -> str:
    """Return ``… 14 more elements below, 2,300 characters of text cut``; empty when nothing was
    cut."""
    places = (
        (hidden.above, "above"),
        (hidden.below, "below"),
        (hidden.beside, "beside"),
        (hidden.covered, "covered"),
        (hidden.over_limit + dropped, "left out"),
    )
    parts = [f"{count:,} {where}" for count, where in places if count]
    if parts:
        first, _, where = parts[0].partition(" ")
        parts[0] = f"{first} more element{'' if first == '1' else 's'} {where}"
    parts += [f"{unseen:,} {OUT_OF_VIEW}"] if unseen else []
    parts += [f"{cut:,} characters of text cut"] if cut else []
    return "… " + ", ".join(parts) if parts else ""
