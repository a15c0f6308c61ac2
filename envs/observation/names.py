"""Names and values of elements, and whether they are on."""

from __future__ import annotations

from bisect import bisect_right

from envs.observation.dom import ELEMENT, TEXT, Dom
from envs.observation.roles import INPUT_KINDS, Kinds, input_type
from envs.observation.text_utils import content, generated, look, rendered, squash
from envs.types.options import option_names

FIELDS = frozenset({"input", "password", "textarea"})
"""Kinds of elements that hold text."""

NAMED_FROM_OUTSIDE = FIELDS | set(INPUT_KINDS.values()) | {"select", "checkbox", "radio"}
"""Kinds of elements whose own content is not their name."""

SIDE_TAGS = frozenset({"LABEL", "SPAN", "B", "STRONG", "TD", "TH"})
"""Tags of neighbours of a control that are read as its label."""

LABELABLE = frozenset({"INPUT", "SELECT", "TEXTAREA", "BUTTON", "METER", "OUTPUT", "PROGRESS"})

FAKE_PATH = "C:\\fakepath\\"
"""Prefix that browsers write before the name of a chosen file."""

CLOSE = "ui-dialog-titlebar-close"
"""Class of jQuery's button that closes a dialog, which has an icon only."""

DEFAULT_NAMES = {"submit": "Submit", "reset": "Reset", "image": "Submit"}
"""Names that the engine writes on buttons without a value (in English)."""


def options_of(dom: Dom, node: int) -> tuple[int, ...]:
    """Return the options of a list, those in groups too."""
    return tuple(child for child in range(node + 1, dom.end[node] + 1) if dom.name[child] == "OPTION")


def option_label(dom: Dom, option: int) -> str:
    """Return the text that a list shows for an option."""
    return squash(dom.attribute(option, "label")) or content(dom, option)


class Namer:
    """Reads labels, and remembers their nodes so that their text is not shown twice."""

    def __init__(self, kinds: Kinds, *, full: bool) -> None:
        self._dom, self._kinds, self._full = kinds.dom, kinds, full
        self.used: set[int] = set()
        """Nodes whose text is shown as a control's label."""
        self._ids: dict[tuple[int, str], list[int]] = {}
        for node in kinds.dom.with_attribute("id"):
            self._ids.setdefault((self._root(node), kinds.dom.attribute(node, "id") or ""), []).append(node)
        self._labels = self._associate()
        self._named = kinds.dom.having("aria-label").keys() | kinds.dom.having("aria-labelledby").keys()
        self._inner_controls = kinds.dom.named("INPUT", "SELECT", "TEXTAREA", "BUTTON")

    def labels_of(self, node: int) -> list[int]:
        """Return the ``<label>`` elements of a control, in document order."""
        return self._labels.get(node, [])

    def name(self, node: int, kind: str) -> str:
        """Return an element's name, squashed and not shortened; ``""`` when it has none."""
        dom = self._dom
        outside = not self._full or dom.name[node] in LABELABLE - {"BUTTON"} or kind in FIELDS
        if (kind in NAMED_FROM_OUTSIDE and outside) or kind == "combobox":
            return self._from_outside(node, kind)
        classes = dom.attribute(node, "class")
        if classes and CLOSE in classes and CLOSE in classes.split():
            return "x"  # what its icon shows
        if dom.name[node] == "INPUT":
            if (value := squash(dom.typed.get(node))) or not self._full:
                return value
            return self._from_attributes(node) or DEFAULT_NAMES.get(input_type(dom, node), "")
        if self._full and node in self._named and (named := self._from_aria(node)):
            return named
        svg = dom.name[node] != dom.name[node].upper()
        # The text of an option in a list box has no box of its own in a snapshot.
        if dom.name[node] == "OPTION":
            return option_label(dom, node)
        text = content(dom, node) if svg else rendered(dom, node)
        text = text or (self.read_labels(node, kind) if self._full and self._labels.get(node) else "")
        return text or self._from_attributes(node) or self._from_styles(node) or look(dom, node, svg)

    def value(self, node: int, kind: str) -> str:
        """Return the value of a field or list; a password as asterisks."""
        dom = self._dom
        if kind == "select" or (self._full and dom.name[node] == "SELECT"):
            names, chosen = self.choices(node), [option for option in options_of(dom, node) if option in dom.selected]
            return ", ".join(names.get(option) or option_label(dom, option) for option in chosen)
        if self._full and kind in ("slider", "spinbutton", "combobox"):
            values = (dom.typed.get(node), dom.attribute(node, "aria-valuetext"), dom.attribute(node, "aria-valuenow"))
            return next(filter(None, values), "") or (self._chosen(node) if kind == "combobox" else "")
        if kind == "file":
            return dom.typed.get(node, "").removeprefix(FAKE_PATH)
        if (kind not in FIELDS and dom.name[node] != "INPUT") or kind in ("checkbox", "radio", "button"):
            return ""
        if kind == "password":
            return "*" * len(dom.typed.get(node, ""))
        return dom.typed[node] if node in dom.typed else rendered(dom, node)

    def _chosen(self, node: int) -> str:
        """Return the value of a combobox that is no input: that of a field in it, else its
        words."""
        dom = self._dom
        fields = (
            dom.typed[child]
            for child in range(node + 1, dom.end[node] + 1)
            if dom.name[child] == "INPUT" and child in dom.typed
        )
        return next(filter(None, fields), "") or rendered(dom, node)

    def written(self, node: int, kind: str, name: str) -> str:
        """Return the squashed words on a control that its name does not hold.

        ``aria-label`` replaces words that a person sees. An empty field shows its placeholder, a
        slider the meaning of its position.
        """
        dom = self._dom
        if dom.name[node] == "INPUT" or kind in FIELDS:
            empty = not dom.typed.get(node) if dom.name[node] in ("INPUT", "TEXTAREA") else not rendered(dom, node)
            placeholder = dom.attribute(node, "placeholder") or dom.attribute(node, "aria-placeholder")
            text = squash(placeholder if empty else dom.attribute(node, "aria-valuetext"))
        elif dom.name[node] in ("SELECT", "OPTION", "AREA") or kind in ("combobox", "shape", "slider", "spinbutton"):
            return ""
        else:
            text = rendered(dom, node) if node in self._named else ""
        return text if text.casefold() not in name.casefold() else ""

    def described(self, node: int) -> str:
        """Return the tooltip or description of an element."""
        texts = (self._dom.attribute(node, "title"), self._dom.attribute(node, "aria-description"))
        description = squash(next(filter(None, texts), "")) or self.texts_of(node, "aria-describedby")
        return description if description != self.name(node, self._kinds.kind[node]) else ""

    def gauge_name(self, node: int) -> str:
        """Return the name of a meter or progress bar; the text of its label stays where it is."""
        labels = (rendered(self._dom, label) or self._label_name(label, node) for label in self.labels_of(node))
        return self._from_aria(node) or next(filter(None, labels), "") or squash(self._dom.attribute(node, "title"))

    def texts_of(self, node: int, attribute: str) -> str:
        """Return the text of the elements that an attribute names by their ids."""
        nodes = (self._by_id(node, name) for name in (self._dom.attribute(node, attribute) or "").split())
        return squash(
            " ".join(rendered(self._dom, source) for source in nodes if source >= 0 and not self._dom.entered[source])
        )

    def choices(self, node: int) -> dict[int, str]:
        """Return the names of the options that a list shows, by their nodes."""
        options = [option for option in options_of(self._dom, node) if option not in self._dom.unlisted]
        return dict(zip(options, option_names(tuple(self._labelled(option) for option in options)), strict=True))

    def _labelled(self, option: int) -> tuple[str, str]:
        dom, group = self._dom, self._dom.parent[option]
        while dom.name[group] not in ("OPTGROUP", "SELECT") and dom.parent[group] >= 0:
            group = dom.parent[group]
        label = squash(dom.attribute(group, "label")) if dom.name[group] == "OPTGROUP" else ""
        if not label and dom.name[group] == "OPTGROUP":
            label = next((content(dom, child) for child in dom.children(group) if dom.name[child] == "LEGEND"), "")
        return option_label(dom, option), label

    def is_on(self, node: int, kind: str) -> bool:
        """Return True if a box is checked, an option selected, a tab open, a switch or toggle
        pressed."""
        dom = self._dom
        if kind in ("checkbox", "radio") or (self._full and kind == "switch"):
            return node in dom.checked or dom.attribute(node, "aria-checked") == "true"
        if kind == "option":
            return node in dom.selected or dom.attribute(node, "aria-selected") == "true"
        if self._full and "true" in (dom.attribute(node, "aria-pressed"), dom.attribute(node, "aria-checked")):
            return True
        tab = self._kinds.tab_around(node)
        return tab >= 0 and "true" in (dom.attribute(tab, "aria-selected"), dom.attribute(tab, "aria-expanded"))

    def read_labels(self, node: int, kind: str) -> str:
        """Return the text of a control's ``<label>`` elements, which is then not shown again."""
        for label in self.labels_of(node):
            self.used.add(label)
            text = rendered(self._dom, label) or (self._full and self._label_name(label, node)) or ""
            if text and (kind != "select" or self._full):
                return text
        return ""

    def _label_name(self, label: int, node: int) -> str:
        """Return the name that a label without words gives a control without a name of its own."""
        label_text = self._dom.attribute(label, "aria-label") or self._dom.attribute(label, "title")
        return self._pictured(label) or ("" if node in self._named else squash(label_text))

    def _from_outside(self, node: int, kind: str) -> str:
        dom = self._dom
        named = self.read_labels(node, kind) or squash(
            dom.attribute(node, "aria-label") or dom.attribute(node, "placeholder") or dom.attribute(node, "title")
        )
        if named:
            return named
        if self._full and (text := self.texts_of(node, "aria-labelledby")):
            return text
        if dom.name[node] in ("HTML", "BODY") and (frame := dom.parent[self._root(node)]) >= 0:
            return squash(
                dom.attribute(frame, "title") or dom.attribute(frame, "aria-label")
            )  # of an editor in a frame
        for step in (1, -1) if kind in ("checkbox", "radio") else (-1,):
            text = self._beside(node, step)
            if text:
                return text
        return squash(dom.attribute(node, "name")) if self._full else ""

    def _from_aria(self, node: int) -> str:
        return squash(self._dom.attribute(node, "aria-label")) or self.texts_of(node, "aria-labelledby")

    def _from_attributes(self, node: int) -> str:
        dom = self._dom
        names = ("aria-label", "title", "alt")
        text = squash(next((value for name in names if (value := dom.attribute(node, name))), ""))
        if text or not self._full:
            return text
        titles = (content(dom, child) for child in range(node + 1, dom.end[node] + 1) if dom.name[child] == "title")
        return self._pictured(node) or next(filter(None, titles), "")

    def _pictured(self, node: int) -> str:
        """Return the description of the first picture in an element."""
        dom = self._dom
        pictures = (child for child in range(node + 1, dom.end[node] + 1) if dom.type[child] == ELEMENT)
        inner = (squash(dom.attribute(child, "alt") or dom.attribute(child, "aria-label")) for child in pictures)
        return next(filter(None, inner), "")

    def _from_styles(self, node: int) -> str:
        """Return the words that style sheets write on an element without words."""
        if not self._full:
            return ""
        inside = (child for child in range(node + 1, self._dom.end[node] + 1) if child in self._dom.pseudo)
        return squash(" ".join(generated(self._dom, child) for child in inside))

    def _beside(self, node: int, step: int) -> str:
        """Return the text directly before or after a control, unless it is another control's."""
        dom = self._dom
        above = dom.up(node)
        line = dom.children(above) if above >= 0 else [node]
        place = line.index(node) + step
        while 0 <= place < len(line) and dom.type[line[place]] != ELEMENT and not self._has_words(line[place]):
            place += step
        if not 0 <= place < len(line):
            return ""
        beside = line[place]
        if dom.type[beside] == ELEMENT:
            taken = beside in self._kinds.kind or self._kinds.owner(beside) >= 0
            if taken or dom.within(beside, self._inner_controls) or dom.name[beside] not in SIDE_TAGS:
                return ""
        self.used.add(beside)
        return content(dom, beside)

    def _has_words(self, node: int) -> bool:
        return self._dom.type[node] == TEXT and bool(squash(self._dom.text(node)))

    def _associate(self) -> dict[int, list[int]]:
        """Return the labels of each control: by ``for``, else the first control inside."""
        dom = self._dom
        labels = dom.named("LABEL")
        if not labels:
            return {}
        controls = [
            node
            for node in dom.named(*LABELABLE)
            if not (dom.name[node] == "INPUT" and input_type(dom, node) == "hidden")
        ]
        labels_of: dict[int, list[int]] = {}
        for label in labels:
            wanted = dom.attribute(label, "for")
            if wanted is not None:
                control = self._by_id(label, wanted)
                if control not in controls:
                    continue
            else:
                place = bisect_right(controls, label)
                if place == len(controls) or controls[place] > dom.end[label]:
                    continue
                control = controls[place]
            labels_of.setdefault(control, []).append(label)
        return labels_of

    def _by_id(self, node: int, name: str) -> int:
        """Return the first element with this id in the node's document or shadow root, -1 for none.

        Nested shadow roots: the innermost that has one, as a snapshot does not say where they
        begin.
        """
        shadowed, end = self._dom.shadowed, self._dom.end
        candidates = self._ids.get((self._root(node), name), [])
        if node not in shadowed:
            return next((candidate for candidate in candidates if candidate not in shadowed), -1)
        while candidates and node in shadowed:
            node = self._dom.parent[node]
            if inside := [
                candidate for candidate in candidates if node < candidate <= end[node] and candidate in shadowed
            ]:
                return inside[0]
        return -1

    def _root(self, node: int) -> int:
        return self._dom.documents[bisect_right(self._dom.documents, node) - 1]
