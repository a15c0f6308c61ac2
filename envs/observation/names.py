"""What an element is called, what it holds and whether it is on."""

from __future__ import annotations

from bisect import bisect_right

from envs.observation.dom import ELEMENT, TEXT, Dom
from envs.observation.roles import INPUT_KINDS, Kinds, input_type
from envs.observation.text_utils import content, generated, look, rendered, squash
from envs.types.options import option_names

FIELDS = frozenset({"input", "password", "textarea"})
"""Kinds that hold text."""

NAMED_FROM_OUTSIDE = FIELDS | set(INPUT_KINDS.values()) | {"select", "checkbox", "radio"}
"""Kinds whose own content is not their name."""

SIDE_TAGS = frozenset({"LABEL", "SPAN", "B", "STRONG", "TD", "TH"})
"""Neighbours of a control that are read as its label."""

LABELABLE = frozenset({"INPUT", "SELECT", "TEXTAREA", "BUTTON", "METER", "OUTPUT", "PROGRESS"})

FAKE_PATH = "C:\\fakepath\\"
"""What browsers write before the name of a chosen file."""

CLOSE = "ui-dialog-titlebar-close"
"""Class of jQuery's button that closes a dialog, which has an icon only."""

DEFAULT_NAMES = {"submit": "Submit", "reset": "Reset", "image": "Submit"}
"""What the engine writes on buttons without a value (in English)."""


def options_of(dom: Dom, node: int) -> tuple[int, ...]:
    """The options of a list, groups opened."""
    return tuple(at for at in range(node + 1, dom.end[node] + 1) if dom.name[at] == "OPTION")


def option_label(dom: Dom, option: int) -> str:
    """What a list shows of an option."""
    return squash(dom.attribute(option, "label")) or content(dom, option)


class Namer:
    """Reads labels and remembers which nodes were read as such, so that their text is not shown twice."""

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
        """The ``<label>`` elements of a control, in document order."""
        return self._labels.get(node, [])

    def name(self, node: int, kind: str) -> str:
        """The label, squashed and not shortened; ``""`` when there is nothing to call it."""
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
        """What a field or list holds; a password as asterisks."""
        dom = self._dom
        if kind == "select" or (self._full and dom.name[node] == "SELECT"):
            names, chosen = self.choices(node), [option for option in options_of(dom, node) if option in dom.selected]
            return ", ".join(names.get(option) or option_label(dom, option) for option in chosen)
        if self._full and kind in ("slider", "spinbutton", "combobox"):
            said = (dom.typed.get(node), dom.attribute(node, "aria-valuetext"), dom.attribute(node, "aria-valuenow"))
            return next(filter(None, said), "") or (self._chosen(node) if kind == "combobox" else "")
        if kind == "file":
            return dom.typed.get(node, "").removeprefix(FAKE_PATH)
        if (kind not in FIELDS and dom.name[node] != "INPUT") or kind in ("checkbox", "radio", "button"):
            return ""
        if kind == "password":
            return "*" * len(dom.typed.get(node, ""))
        return dom.typed[node] if node in dom.typed else rendered(dom, node)

    def _chosen(self, node: int) -> str:
        """What a combobox holds that is no input itself: what the field in it holds, else its words."""
        dom = self._dom
        fields = (
            dom.typed[at] for at in range(node + 1, dom.end[node] + 1) if dom.name[at] == "INPUT" and at in dom.typed
        )
        return next(filter(None, fields), "") or rendered(dom, node)

    def written(self, node: int, kind: str, name: str) -> str:
        """What is to be read on a control, squashed, where its name does not say so: ``aria-label`` replaces words that a person sees. Of an empty
        field, its placeholder; of a slider, what its position means."""
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
        """What a page says of an element besides its name: its tooltip or description."""
        texts = (self._dom.attribute(node, "title"), self._dom.attribute(node, "aria-description"))
        found = squash(next(filter(None, texts), "")) or self.texts_of(node, "aria-describedby")
        return found if found != self.name(node, self._kinds.kind[node]) else ""

    def gauge_name(self, node: int) -> str:
        """What a meter or progress bar is called; the text of its label stays where it is."""
        labels = (rendered(self._dom, label) or self._label_name(label, node) for label in self.labels_of(node))
        return self._from_aria(node) or next(filter(None, labels), "") or squash(self._dom.attribute(node, "title"))

    def texts_of(self, node: int, attribute: str) -> str:
        """The text of the elements that an attribute names by their ids."""
        found = (self._by_id(node, name) for name in (self._dom.attribute(node, attribute) or "").split())
        return squash(" ".join(rendered(self._dom, at) for at in found if at >= 0 and not self._dom.entered[at]))

    def choices(self, node: int) -> dict[int, str]:
        """What the options that a list shows are called, by their nodes."""
        options = [option for option in options_of(self._dom, node) if option not in self._dom.unlisted]
        return dict(zip(options, option_names(tuple(self._labelled(option) for option in options)), strict=True))

    def _labelled(self, option: int) -> tuple[str, str]:
        dom, group = self._dom, self._dom.parent[option]
        while dom.name[group] not in ("OPTGROUP", "SELECT") and dom.parent[group] >= 0:
            group = dom.parent[group]
        label = squash(dom.attribute(group, "label")) if dom.name[group] == "OPTGROUP" else ""
        if not label and dom.name[group] == "OPTGROUP":
            label = next((content(dom, at) for at in dom.children(group) if dom.name[at] == "LEGEND"), "")
        return option_label(dom, option), label

    def is_on(self, node: int, kind: str) -> bool:
        """A checkbox or radio is checked, an option selected, a tab open, a switch or toggle pressed."""
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
        """The text of a control's ``<label>`` elements, which is then not shown again."""
        for label in self.labels_of(node):
            self.used.add(label)
            text = rendered(self._dom, label) or (self._full and self._label_name(label, node)) or ""
            if text and (kind != "select" or self._full):
                return text
        return ""

    def _label_name(self, label: int, node: int) -> str:
        """What a label without words calls a control that is not named by itself."""
        said = self._dom.attribute(label, "aria-label") or self._dom.attribute(label, "title")
        return self._pictured(label) or ("" if node in self._named else squash(said))

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
        titles = (content(dom, at) for at in range(node + 1, dom.end[node] + 1) if dom.name[at] == "title")
        return self._pictured(node) or next(filter(None, titles), "")

    def _pictured(self, node: int) -> str:
        """What the first picture in an element says that it shows."""
        dom = self._dom
        pictures = (at for at in range(node + 1, dom.end[node] + 1) if dom.type[at] == ELEMENT)
        inner = (squash(dom.attribute(at, "alt") or dom.attribute(at, "aria-label")) for at in pictures)
        return next(filter(None, inner), "")

    def _from_styles(self, node: int) -> str:
        """What style sheets write on an element that says nothing by itself."""
        if not self._full:
            return ""
        inside = (at for at in range(node + 1, self._dom.end[node] + 1) if at in self._dom.pseudo)
        return squash(" ".join(generated(self._dom, at) for at in inside))

    def _beside(self, node: int, step: int) -> str:
        """The text directly before or after a control, unless it is another control's."""
        dom = self._dom
        above = dom.up(node)
        line = dom.children(above) if above >= 0 else [node]
        at = line.index(node) + step
        while 0 <= at < len(line) and dom.type[line[at]] != ELEMENT and not self._says(line[at]):
            at += step
        if not 0 <= at < len(line):
            return ""
        beside = line[at]
        if dom.type[beside] == ELEMENT:
            taken = beside in self._kinds.kind or self._kinds.owner(beside) >= 0
            if taken or dom.within(beside, self._inner_controls) or dom.name[beside] not in SIDE_TAGS:
                return ""
        self.used.add(beside)
        return content(dom, beside)

    def _says(self, node: int) -> bool:
        return self._dom.type[node] == TEXT and bool(squash(self._dom.text(node)))

    def _associate(self) -> dict[int, list[int]]:
        """Labels by control: by ``for``, else the first control inside."""
        dom = self._dom
        labels = dom.named("LABEL")
        if not labels:
            return {}
        controls = [
            node
            for node in dom.named(*LABELABLE)
            if not (dom.name[node] == "INPUT" and input_type(dom, node) == "hidden")
        ]
        found: dict[int, list[int]] = {}
        for label in labels:
            wanted = dom.attribute(label, "for")
            if wanted is not None:
                control = self._by_id(label, wanted)
                if control not in controls:
                    continue
            else:
                at = bisect_right(controls, label)
                if at == len(controls) or controls[at] > dom.end[label]:
                    continue
                control = controls[at]
            found.setdefault(control, []).append(label)
        return found

    def _by_id(self, node: int, name: str) -> int:
        """The first element with this id in the node's document or shadow root, -1 for none. Of roots in each other the innermost that has one, as a
        snapshot does not say where they begin."""
        shadowed, end = self._dom.shadowed, self._dom.end
        among = self._ids.get((self._root(node), name), [])
        if node not in shadowed:
            return next((at for at in among if at not in shadowed), -1)
        while among and node in shadowed:
            node = self._dom.parent[node]
            if inside := [at for at in among if node < at <= end[node] and at in shadowed]:
                return inside[0]
        return -1

    def _root(self, node: int) -> int:
        return self._dom.documents[bisect_right(self._dom.documents, node) - 1]
