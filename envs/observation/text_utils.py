"""Words on a page: rendered text, names, slugs, and descriptions of elements without text."""

from __future__ import annotations

import re

from envs.observation.dom import BACKGROUND, DISPLAY, ELEMENT, FILL, TEXT, Dom

_NUMBER = re.compile(r"[\d.]+")
_ICON = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")
"""Private use characters, whose look the font decides: icons."""
_LIT = re.compile(r"selected|active|clicked|checked")

_COLOURS = {
    (255, 0, 0): "red",
    (0, 0, 255): "blue",
    (128, 128, 0): "olive",
    (0, 255, 0): "lime",
    (0, 0, 0): "black",
    (255, 255, 255): "white",
    (128, 128, 128): "grey",
    (128, 0, 128): "purple",
    (255, 165, 0): "orange",
    (255, 255, 0): "yellow",
    (0, 255, 255): "cyan",
    (255, 192, 203): "pink",
    (255, 0, 255): "magenta",
    (0, 128, 0): "green",
}
"""Names of CSS colours that a page may ask for by name, by their red, green and blue."""

_HUES = ("red", "orange", "yellow", "green", "green", "green", "cyan", "blue", "blue", "purple", "magenta", "red")
"""Names of the hue circle in steps of 30 degrees, for all other colours."""

GENERATED = frozenset({"::before", "::after", "::marker"})

SLUG_CHARS = 20
"""Maximum number of characters of a slug: enough to distinguish labels, few enough for a prompt."""


def squash(text: str | None) -> str:
    """Fold white space to single spaces and strip it at the ends."""
    return " ".join(text.split()) if text else ""


def cut(text: str | None, chars: int) -> str:
    """Return at most ``chars`` characters of the squashed text."""
    return squash(text)[:chars].strip()


def slug(text: str) -> str:
    """Return ``"Add to basket!"`` as ``add_to_basket``.

    The slug has at most `SLUG_CHARS` characters, and is ``""`` when nothing is left.
    """
    return re.sub(r"\W+", "_", text.lower()).strip("_")[:SLUG_CHARS].strip("_")


def shorten(text: str, chars: int) -> str:
    """Return at most ``chars`` characters; where some are cut off, the last one is an ellipsis."""
    return text if len(text) <= chars else text[: max(0, chars - 1)].rstrip() + "…"


def content(dom: Dom, node: int) -> str:
    """Return the squashed ``textContent`` of a node, without what fields in it hold."""
    if dom.type[node] == TEXT:
        return squash(dom.text(node))
    nodes, entered = range(node + 1, dom.end[node] + 1), _entered_within(dom, node)
    return squash(
        "".join(dom.text(inner) for inner in nodes if dom.type[inner] == TEXT and not (entered and entered[inner]))
    )


def _entered_within(dom: Dom, node: int) -> bytearray | None:
    """Return `Dom.entered`, or ``None`` for a node in a field, whose text was then asked for."""
    return None if dom.entered[node] else dom.entered


def rendered(dom: Dom, node: int) -> str:
    """Return the squashed ``innerText`` of a node, without what fields in it hold.

    That is the text that is laid out and visible, with spaces between boxes. If none of it is laid
    out, it is `content`.
    """
    if dom.type[node] == TEXT or dom.box_of[node] < 0:
        return content(dom, node)
    if dom.end[node] == node + 1 and dom.type[node + 1] == TEXT:  # the usual case
        return squash(shown(dom, node + 1))
    parts: list[str] = []
    ends: list[int] = []
    entered = _entered_within(dom, node)
    for child in range(node + 1, dom.end[node] + 1):
        while ends and ends[-1] < child:
            ends.pop()
            parts.append(" ")
        if dom.type[child] == TEXT:
            parts.append("" if entered and entered[child] else shown(dom, child))
        elif dom.type[child] == ELEMENT and breaks(dom, child):
            parts.append(" ")
            ends.append(dom.end[child])
    return squash("".join(parts))


def shown(dom: Dom, node: int) -> str:
    """Return a text node as it is rendered, ``""`` when it is not."""
    box, around = dom.box_of[node], dom.box_of[dom.parent[node]]
    if box < 0 or (around >= 0 and dom.hidden[around]):
        return ""
    text = dom.strings[dom.box_text[box]] if dom.box_text[box] >= 0 else ""
    while box + 1 < len(dom.box_node) and dom.box_node[box + 1] == node:  # a first letter has a box of its own
        box += 1
        text += dom.strings[dom.box_text[box]] if dom.box_text[box] >= 0 else ""
    return text


def generated(dom: Dom, node: int) -> str:
    """Return the squashed words that a style sheet puts before or after an element.

    Icons of fonts and bullets are not words.

    Args:
        node: A node of `Dom.pseudo`.
    """
    if dom.name[node] not in GENERATED or dom.box_of[node] < 0 or dom.hidden[dom.box_of[node]]:
        return ""
    words = squash(_ICON.sub("", shown(dom, node)))
    return words if dom.name[node] != "::marker" or any(map(str.isalnum, words)) else ""


def breaks(dom: Dom, node: int) -> bool:
    """Return True if an element begins and ends a line or a cell."""
    display = dom.style(node, DISPLAY)
    return dom.name[node] == "BR" or not (display.startswith("inline") or display in ("contents", ""))


def colour(css: str) -> str:
    """Return a colour's plain name, ``""`` for none or a transparent one."""
    numbers = [float(number) for number in _NUMBER.findall(css)]
    if len(numbers) < 3 or (len(numbers) > 3 and numbers[3] == 0):
        return ""
    red, green, blue = numbers[:3]
    high, span = max(red, green, blue), max(red, green, blue) - min(red, green, blue)
    known = _COLOURS.get((int(red), int(green), int(blue)))
    if known or span < 16:
        return known or "grey"
    if high == red:
        return _hue((green - blue) / span)
    return _hue(2 + (blue - red) / span if high == green else 4 + (red - green) / span)


def _hue(sector: float) -> str:
    return _HUES[int(2 * ((sector + 6) % 6) + 0.5) % 12]


def look(dom: Dom, node: int, svg: bool) -> str:
    """Return a description of an element without any text.

    It is its colour if it has one, else the class names that its page gives it (icons are classes).
    """
    if svg:
        return squash(f"{colour(dom.style(node, FILL))} {dom.name[node]}")
    classes, ground = squash(dom.attribute(node, "class")), colour(dom.style(node, BACKGROUND))
    return " ".join(part for part in (ground, classes if _LIT.search(classes) or not ground else "") if part)
