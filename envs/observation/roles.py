"""Interactive elements of a page, and their kinds.

Native controls are interactive by their tag. Anything else is so by its role, by a listener for
mouse buttons, or by a hand cursor that its parent does not have. The ``full`` rules also take
editing hosts, drag handles and more roles, and take only links that lead somewhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from envs.observation.dom import CURSOR, ELEMENT, OVERFLOW, Dom
from envs.observation.options import WHOLE_SHARE, ObservationOptions
from envs.observation.selector import matching

BUTTONS = frozenset({"submit", "button", "reset", "image"})

FIELD_TYPES = frozenset(
    {"text", "search", "email", "url", "tel", "number", "password", "date", "datetime-local", "month", "week", "time"}
    | {"color", "range", "file"}
)
"""Input types that hold a value; any other word means ``text``."""

ROLES = frozenset({"button", "link", "tab", "checkbox", "radio", "menuitem", "option", "switch", "treeitem"})

MORE_ROLES = {
    "menuitemcheckbox": "checkbox",
    "menuitemradio": "radio",
    "combobox": "combobox",
    "slider": "slider",
    "spinbutton": "spinbutton",
    "textbox": "input",
    "searchbox": "input",
}
"""Kinds by role, for the roles that only the ``full`` rules know."""

INPUT_KINDS = {
    **{"range": "slider", "color": "colour", "file": "file", "date": "date", "time": "time"},
    **{"number": "spinbutton", "datetime-local": "datetime", "month": "month", "week": "week"},
}
"""Kinds by type of the inputs that are no text boxes to their user, under the ``full`` rules."""

MOUSE_HANDLERS = ("ondblclick", "oncontextmenu")
"""Attributes of handlers that the engine does not count as clicks. A snapshot does not have those
that a script adds."""

KEY_HANDLERS = ("onkeydown", "onkeyup", "onkeypress")

CONTROLS = frozenset({"INPUT", "TEXTAREA", "SELECT", "BUTTON", "A"})

CAN_BE_DISABLED = frozenset({"BUTTON", "FIELDSET", "INPUT", "OPTGROUP", "OPTION", "SELECT", "TEXTAREA"})

FOCUSED_ROLES = frozenset(
    {"", "gridcell", "application", "img", "graphics-symbol", "row", "listitem", "separator", "scrollbar"}
    | {"menu", "menubar", "listbox", "tree", "grid", "treegrid"}
)
"""Roles of elements that are used with the keyboard once they have the focus.

Those that hold such elements group them; others that take the focus scroll.
"""

GRABBED = frozenset({"pointer", "grab", "move", "ew-resize", "ns-resize", "col-resize", "row-resize"})
"""Cursors that show that an element reacts to the mouse."""


@dataclass(slots=True)
class Kinds:
    """Interactive elements of a page, as their tags and attributes define them."""

    dom: Dom
    kind: dict[int, str] = field(default_factory=dict)
    """Kind by node, in document order."""
    native: set[int] = field(default_factory=set)
    disabled: set[int] = field(default_factory=set)
    excluded: bytearray = field(default_factory=bytearray)
    """1 for each node that is excluded from observations."""
    roles: dict[int, str] = field(default_factory=dict)
    has_tabs: bool = False

    def owner(self, node: int) -> int:
        """Return the nearest element of `kind` from a node upwards in its document, -1 for none."""
        while node >= 0 and node not in self.kind:
            node = self.dom.up(node)
        return node

    def tab_around(self, node: int) -> int:
        """Return the nearest element with role ``tab`` from a node upwards, -1 for none."""
        if not self.has_tabs:
            return -1
        while node >= 0 and self.roles.get(node) != "tab":
            node = self.dom.up(node)
        return node


def classify(
    dom: Dom,
    options: ObservationOptions,
    viewport: tuple[float, float],
    exclude: str = "",
) -> Kinds:
    """Find the elements that can be acted on.

    Args:
        exclude: Selector of elements that are left out with all that is in them.
    """
    kinds = Kinds(dom, excluded=_excluded(dom, exclude))
    kinds.roles = {node: (dom.attribute(node, "role") or "").strip() for node in dom.with_attribute("role")}
    kinds.has_tabs = "tab" in kinds.roles.values()
    kinds.disabled = _disabled(dom, options.rules == "full")
    reader = _Reader(kinds, options.rules == "full", WHOLE_SHARE * viewport[0] * viewport[1])
    for node in reader.candidates():
        if kinds.excluded[node] or (node in kinds.disabled and options.rules == "small"):
            continue
        native = reader.native(node)
        kind = native or reader.made(node)
        if kind is None:
            continue
        if native:
            kinds.native.add(node)
        else:
            up = kinds.owner(dom.up(node))
            if up >= 0 and up in kinds.native:
                continue
        kinds.kind[node] = kind
    return kinds


def input_type(dom: Dom, node: int) -> str:
    """Return the type of an input as the engine takes it."""
    kind = (dom.attribute(node, "type") or "").lower()
    return kind if kind in FIELD_TYPES | BUTTONS | {"hidden", "checkbox", "radio"} else "text"


class _Reader:
    """Reads what an element is by its tag, its role, its listeners and its cursor."""

    def __init__(self, kinds: Kinds, full: bool, whole: float) -> None:
        self._dom, self._kinds, self._full, self._whole = kinds.dom, kinds, full, whole
        dom = kinds.dom
        self._controls = dom.named(*CONTROLS)
        self._svg = dom.marked(dom.named("svg"))
        self._in_label = dom.marked(dom.named("LABEL"))
        self._links = dom.having("href")
        self._hosts = {
            node
            for node in dom.with_attribute("contenteditable")
            if (dom.attribute(node, "contenteditable") or "").lower() in ("", "true", "plaintext-only")
        } | (set(dom.hosts) if full else set())
        self._handled = {node for name in MOUSE_HANDLERS for node in dom.with_attribute(name)} if full else set()
        self._inert_hosts = set(dom.with_attribute("contenteditable")) - self._hosts
        self._draggable = (
            {node for node in dom.with_attribute("draggable") if dom.attribute(node, "draggable") == "true"}
            if full
            else set()
        )
        self._focusable = self._with_focus() if full else set[int]()
        cursors = GRABBED if full else {"pointer"}
        hands = dom.styled(CURSOR, cursors.__contains__)
        self._hands = {dom.box_node[box] for box in np.flatnonzero(hands).tolist()}

    def candidates(self) -> list[int]:
        """Return the elements that may be interactive, in document order.

        Only rendered ones count in the end, but labels of hidden ones do too.
        """
        dom = self._dom
        tags = dom.named(*CONTROLS, "a", "SUMMARY", "OPTION", "AREA", "VIDEO", "AUDIO")
        some = {*tags, *self._kinds.roles, *self._hosts, *self._draggable, *dom.clickable, *self._hands}
        some |= self._handled | self._focusable
        kinds = dom.type
        return sorted(node for node in some - dom.pseudo if kinds[node] == ELEMENT)

    def native(self, node: int) -> str | None:
        """Return the kind of a native control."""
        dom, name = self._dom, self._dom.name[node]
        if (
            self._full
            and name in ("BUTTON", "A")
            and (role := self._role(node))
            and (name == "BUTTON" or node in self._links)
        ):
            return role
        match name:
            case "BUTTON" | "SUMMARY":
                return "button"
            case "A":
                if self._full and node not in self._links:
                    return None
                return "tab" if self._kinds.tab_around(node) >= 0 else "link"
            case "TEXTAREA":
                return "textarea"
            case "SELECT":
                return None if self._is_list(node) else "select"
            case "OPTION":
                above = dom.up(node)
                while self._full and above >= 0 and dom.name[above] != "SELECT":
                    above = dom.up(above)
                # A drop-down list that its page draws has boxes for its options while it is open.
                drawn = self._full and dom.box_of[node] >= 0
                return "option" if above >= 0 and (drawn or self._is_list(above)) else None
            case "INPUT":
                return self._input(node)
            case "VIDEO" | "AUDIO" if self._full:
                return "media" if dom.attribute(node, "controls") is not None else None
            case "a" if self._full:
                return "link" if node in self._links or node in self._dom.having("xlink:href") else None
            case "AREA" if self._full:
                return "link" if node in self._links else None
        return "input" if node in self._hosts and not self._editable(dom.up(node)) else None

    def made(self, node: int) -> str | None:
        """Return the kind of an element that its page made interactive."""
        dom, name = self._dom, self._dom.name[node]
        role = self._kinds.roles.get(node, "")
        holds = dom.within(node, self._controls)
        if holds and not self._full:
            return None  # the control inside is acted on
        known = self._role(node) if self._full else role if role in ROLES else None
        if known:
            return known
        listens, hand = node in dom.clickable, self._has_hand(node)
        acts = listens or hand or node in self._draggable or node in self._handled or node in self._focusable
        if not acts or (holds and not (listens and hand)):
            return None
        if name in ("BODY", "HTML", "LABEL", "IFRAME") or (self._full and self._in_label[node]):
            return None  # inside of a label, only its control is listed
        if self._full and self._editable(node):
            return None  # the engine calls all of an editable region clickable; its host is listed
        if self._area(node) > self._whole:
            return None
        if self._svg[node]:
            return "shape"
        if node in self._focusable and (name == "CANVAS" or role == "gridcell"):
            return role or "canvas"
        return "link" if "alink" in (dom.attribute(node, "class") or "").split() else "item"

    def _with_focus(self) -> set[int]:
        """Return the elements that take the keyboard focus to be used by keys.

        Elements that take it to be scrolled, or that hold such elements, are left out.
        """
        dom, tabs = self._dom, self._dom.having("tabindex")
        if not tabs:
            return set()
        keyed = {node for name in KEY_HANDLERS for node in dom.with_attribute(name)}
        taking, others = sorted({*self._controls, *tabs}), sorted({*self._controls, *self._kinds.roles, *tabs})
        scroll = {
            dom.box_node[box] for box in np.flatnonzero(dom.styled(OVERFLOW, ("auto", "scroll").__contains__)).tolist()
        }
        return {
            node
            for node in tabs.keys() - scroll
            if dom.string(tabs[node]).strip().isdecimal()
            and (node in keyed or self._kinds.roles.get(node, "") in FOCUSED_ROLES)
            and not dom.within(node, taking if node in keyed else others)
        }

    def _input(self, node: int) -> str | None:
        kind = input_type(self._dom, node)
        if kind == "hidden":
            return None
        if kind in ("checkbox", "radio"):
            return kind
        if self._full and kind in INPUT_KINDS:
            return INPUT_KINDS[kind]
        return "button" if kind in BUTTONS else "password" if kind == "password" else "input"

    def _role(self, node: int) -> str | None:
        """Return the kind that an element has by its role."""
        role = self._kinds.roles.get(node, "")
        return role if role in ROLES else MORE_ROLES.get(role)

    def _is_list(self, node: int) -> bool:
        size = self._dom.attribute(node, "size") or "0"
        if self._full and size == "1":
            return False  # one row high: most of its options are never visible
        return self._dom.attribute(node, "multiple") is not None or (size.isdigit() and int(size) > 1)

    def _editable(self, node: int) -> bool:
        if not self._hosts:
            return False
        while node >= 0 and node not in self._hosts:
            if node in self._inert_hosts:
                return False
            node = self._dom.up(node)
        return node >= 0

    def _has_hand(self, node: int) -> bool:
        """Return True if an element has a hand cursor that its parent does not have."""
        if node not in self._hands:
            return False
        box = self._dom.box_parent[self._dom.box_of[node]]
        return box < 0 or self._dom.box_node[box] not in self._hands

    def _area(self, node: int) -> float:
        box = self._dom.box_of[node]
        left, top, right, bottom = self._dom.rects[box].tolist() if box >= 0 else (0.0, 0.0, 0.0, 0.0)
        return float((right - left) * (bottom - top))


def _excluded(dom: Dom, exclude: str) -> bytearray:
    flags = dom.marked(matching(dom, exclude))
    for root, after in zip(dom.documents[1:], [*dom.documents[2:], len(dom.parent)], strict=False):
        if flags[dom.parent[root]]:  # a frame in an excluded element
            flags[root:after] = b"\1" * (after - root)
    return flags


def _disabled(dom: Dom, inherit: bool) -> set[int]:
    """Return the elements that are disabled by their attribute.

    With ``inherit``, elements below a disabled field set, ``aria-disabled`` or ``inert`` count too.
    """
    own = {node for node in dom.with_attribute("disabled") if dom.name[node] in CAN_BE_DISABLED}
    if not inherit:
        return own
    marked = {node for node in dom.with_attribute("aria-disabled") if dom.attribute(node, "aria-disabled") == "true"}
    above = {node for node in own if dom.name[node] in ("FIELDSET", "OPTGROUP")} | marked
    above |= set(dom.with_attribute("inert"))
    for node in above:
        own.update(range(node, dom.end[node] + 1))
    return own - _in_legends(dom, above) if above else own


def _in_legends(dom: Dom, above: set[int]) -> set[int]:
    """Return the nodes in the first legend of a disabled field set that are not disabled
    themselves."""
    usable: set[int] = set()
    for legend in dom.named("LEGEND"):
        group = dom.up(legend)
        first = group in above and next(other for other in dom.children(group) if dom.name[other] == "LEGEND") == legend
        if first and not any(other <= group <= dom.end[other] for other in above - {group}):
            usable.update(range(legend + 1, dom.end[legend] + 1))
    return (
        usable
        - {node for node in dom.with_attribute("disabled") if node in usable}
        - {other for node in above if node in usable for other in range(node, dom.end[node] + 1)}
    )
