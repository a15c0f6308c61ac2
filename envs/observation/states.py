"""States of controls besides their values: open, partly checked, required, out of range, sorted…"""

from __future__ import annotations

from collections.abc import Iterator

from envs.observation.dom import Dom
from envs.observation.names import Namer
from envs.observation.options import STATE_CHARS
from envs.observation.roles import Kinds, input_type
from envs.observation.text_utils import rendered, shorten, squash

LIMITS = ("min", "max", "step")
"""Attributes of inputs that say which values they take."""

LIMITED = frozenset({"range", "number", "date", "time", "datetime-local", "month", "week"})
"""Input types that have the attributes in `LIMITS`."""

RANGE_DEFAULTS = {"min": "0", "max": "100", "step": "1"}
"""Default limits of sliders:
https://html.spec.whatwg.org/multipage/input.html#range-state-(type=range)."""

QUOTED_CHARS = 80
"""Maximum number of characters of a message, as many as of a label."""

GAUGE_ROLES = frozenset({"progressbar", "meter"})

HEADER_DEPTH = 4
"""Levels searched from a button in a table's head up to the cell that says how it is sorted."""

ATTRIBUTES = (
    *("aria-checked", "aria-current", "aria-expanded", "aria-haspopup", "aria-invalid", "aria-pressed"),
    *("aria-readonly", "aria-required", "aria-selected", "aria-valuemax", "aria-valuemin"),
    *("draggable", "oncontextmenu", "ondblclick", "readonly", "required"),
)
"""Attributes that give an element of any tag a state. ``aria-sort`` gives it one from an ancestor.
"""


class StateReader:
    """Reads the states of the controls of a page."""

    def __init__(self, kinds: Kinds, namer: Namer) -> None:
        dom = self._dom = kinds.dom
        self._kinds, self._namer = kinds, namer
        self._sorts = bool(dom.having("aria-sort"))
        self._candidates = dom.mixed | dom.invalid.keys() | kinds.disabled | set(dom.named("INPUT", "SUMMARY"))
        self._candidates.update(*(dom.having(name) for name in ATTRIBUTES))

    def read(self, node: int, on: bool) -> tuple[str, ...]:
        """Return the words for a control's state, at most `STATE_CHARS` characters together.

        An ellipsis stands for what does not fit.

        Args:
            on: True when the element is shown as checked anyway.
        """
        if node not in self._candidates and not self._sorts:
            return ()
        words: list[str] = []
        room = STATE_CHARS
        for state in _states(self._kinds, self._namer, node, on):
            if len(state) >= room:
                return (*words, "…")
            room -= len(state)
            words.append(state)
        return tuple(words)


def gauges(kinds: Kinds, namer: Namer) -> dict[int, str]:
    """Return what meters and progress bars show, by node: ``progress "Upload" 40 of 100``.

    Nothing acts on them, so they stand among the words.
    """
    dom = kinds.dom
    with_role = (node for node, role in kinds.roles.items() if role in GAUGE_ROLES)
    return {
        node: f"{'meter' if dom.name[node] == 'METER' or kinds.roles.get(node) == 'meter' else 'progress'} {amount}"
        for node in sorted({*dom.named("METER", "PROGRESS"), *with_role})
        if node not in kinds.kind
        for amount in (_gauge(dom, namer, node),)
    }


def _gauge(dom: Dom, namer: Namer, node: int) -> str:
    native = dom.name[node] in ("METER", "PROGRESS")
    value, maximum = (
        squash(dom.attribute(node, own if native else aria))
        for own, aria in (("value", "aria-valuenow"), ("max", "aria-valuemax"))
    )
    default = "1" if native else "100"
    shown = squash(dom.attribute(node, "aria-valuetext")) or ("" if native else rendered(dom, node))
    named = shorten(namer.gauge_name(node), QUOTED_CHARS)
    amount = f"{shorten(value, 20)} of {shorten(maximum or default, 20)}" if value else "under way"
    return " ".join(filter(None, (f'"{named}"' if named else "", shorten(shown, QUOTED_CHARS) or amount)))


def _states(kinds: Kinds, namer: Namer, node: int, on: bool) -> Iterator[str]:
    dom = kinds.dom
    yield from _switches(dom, node, on)
    yield from _field(dom, node)
    if (current := _aria(dom, node, "aria-current")) not in ("", "false"):
        yield "current" if current == "true" else f"current {shorten(current, 20)}"
    if (sort := _sorted_by(kinds, node)) not in ("", "none"):
        yield f"sorted {shorten(sort, 20)}"
    if _aria(dom, node, "aria-haspopup") not in ("", "false"):
        yield "has popup"
    if dom.attribute(node, "draggable") == "true":
        yield "draggable"
    if dom.attribute(node, "ondblclick") is not None:
        yield "takes double-click"
    if dom.attribute(node, "oncontextmenu") is not None:
        yield "takes right-click"
    yield from _validity(dom, namer, node)
    if node in kinds.disabled and (why := namer.described(node)):
        yield f'note "{shorten(why, QUOTED_CHARS)}"'


def _switches(dom: Dom, node: int, on: bool) -> Iterator[str]:
    expanded = _aria(dom, node, "aria-expanded")
    if dom.name[node] == "SUMMARY" and dom.up(node) >= 0 and dom.name[dom.up(node)] == "DETAILS":
        expanded = "true" if dom.attribute(dom.up(node), "open") is not None else "false"
    if expanded in ("true", "false"):
        yield "expanded" if expanded == "true" else "collapsed"
    if node in dom.mixed or "mixed" in (_aria(dom, node, "aria-checked"), _aria(dom, node, "aria-pressed")):
        yield "partly checked"
    if not on and _aria(dom, node, "aria-selected") == "true":
        yield "selected"


def _field(dom: Dom, node: int) -> Iterator[str]:
    name = dom.name[node]
    kind = input_type(dom, node) if name == "INPUT" else ""
    is_field = name in ("SELECT", "TEXTAREA") or (kind and kind not in ("button", "submit", "reset", "image"))
    if kind in LIMITED:
        for limit in LIMITS:
            value = squash(dom.attribute(node, limit)) or (RANGE_DEFAULTS[limit] if kind == "range" else "")
            if value:
                yield f"{limit} {shorten(value, 20)}"
    else:
        for limit, aria in (("min", "aria-valuemin"), ("max", "aria-valuemax")):
            if value := _aria(dom, node, aria):
                yield f"{limit} {shorten(value, 20)}"
    if kind == "file" and (accept := squash(dom.attribute(node, "accept"))):
        yield f'accepts "{shorten(accept, QUOTED_CHARS)}"'
    if kind in ("file", "email") and dom.attribute(node, "multiple") is not None:
        yield "multiple"
    for state in ("required", "readonly"):
        if (is_field and dom.attribute(node, state) is not None) or _aria(dom, node, f"aria-{state}") == "true":
            yield state


def _validity(dom: Dom, namer: Namer, node: int) -> Iterator[str]:
    message = dom.invalid.get(node, "")
    if not message and _aria(dom, node, "aria-invalid") in ("", "false"):
        return
    message = message or namer.texts_of(node, "aria-errormessage")
    yield f'invalid "{shorten(message, QUOTED_CHARS)}"' if message else "invalid"


def _sorted_by(kinds: Kinds, node: int) -> str:
    dom = kinds.dom
    for _ in range(HEADER_DEPTH):
        if node < 0:
            break
        if sort := _aria(dom, node, "aria-sort"):
            return sort
        if dom.name[node] == "TH" or kinds.roles.get(node) in ("columnheader", "rowheader"):
            break
        node = dom.up(node)
    return ""


def _aria(dom: Dom, node: int, name: str) -> str:
    return squash(dom.attribute(node, name)).lower()
