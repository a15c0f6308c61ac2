"""Parses a bundled site's HTML into links, forms and text lines, by labels. Runs no script."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = frozenset({"input", "link", "meta", "br", "hr", "img"})
INLINE = frozenset({"a", "b", "span", "em", "strong", "label", "button", "option"})
"""Tags inside a line; any other tag begins a new one."""


@dataclass(slots=True)
class HtmlForm:
    """Target of a form."""

    action: str
    method: str


@dataclass(slots=True)
class HtmlControl:
    """A field, list, checkbox or button of a form."""

    kind: str
    """One of ``text``, ``checkbox``, ``select`` and ``button``."""
    form: int
    name: str = ""
    id: str = ""
    label: str = ""
    value: str = ""
    """Text of a field, chosen value of a list, or value of a ticked box."""
    on: bool = True
    """True if a checkbox is ticked."""
    options: list[tuple[str, str]] = field(default_factory=list)
    """(label, value) of a list's options."""

    @property
    def chosen(self) -> str:
        """Label of a list's chosen option."""
        return next((label for label, value in self.options if value == self.value), "")


class HtmlPage(HTMLParser):
    """A parsed page. A label is that of ``<label for>``, or ``aria-label``, or the text inside."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.title = ""
        self.links: list[tuple[str, str]] = []
        """(label, address) of each link."""
        self.forms: list[HtmlForm] = []
        self.controls: list[HtmlControl] = []
        self.lines: list[str] = [""]
        self._open: list[str] = []
        self._label_for: dict[str, str] = {}
        self._reading: list[str] | None = None
        """Text read so far of the element whose text is its label or value."""
        self._attributes: dict[str, str] = {}
        self.feed(html)
        self.close()
        for control in self.controls:
            control.label = self._label_for.get(control.id, control.label)
        self.lines = [line for text in self.lines if (line := " ".join(text.split()))]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag not in VOID:
            self._open.append(tag)
        if tag not in INLINE:
            self.lines.append("")
        if tag == "form":
            self.forms.append(HtmlForm(given.get("action", ""), given.get("method", "get").lower()))
        elif tag == "input":
            self._add_input(given)
        elif tag in ("select", "textarea"):
            self._add("select" if tag == "select" else "text", given)
        if tag in ("a", "button", "label", "option", "textarea", "title"):
            self._reading, self._attributes = [], given

    def handle_data(self, data: str) -> None:
        if self._reading is not None:
            self._reading.append(data)
        if not self._open or self._open[-1] not in ("title", "option", "textarea", "script", "style"):
            self.lines[-1] += data

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass
        if tag not in INLINE:
            self.lines.append("")
        if self._reading is not None and tag in ("a", "button", "label", "option", "textarea", "title"):
            self._read(tag, "".join(self._reading))
            self._reading = None

    def _read(self, tag: str, text: str) -> None:
        given, words = self._attributes, " ".join(text.split())
        if tag == "a" and "href" in given:
            self.links.append((given.get("aria-label") or words, given["href"]))
        elif tag == "button":
            self._add("button", given).label = given.get("aria-label") or words
        elif tag == "label":
            self._label_for[given.get("for", "")] = words
        elif tag == "title":
            self.title = words
        elif tag == "textarea":
            self.controls[-1].value = text
        elif tag == "option":
            options, value = self.controls[-1].options, given.get("value", words)
            options.append((words, value))
            if len(options) == 1 or "selected" in given:
                self.controls[-1].value = value

    def _add_input(self, given: dict[str, str]) -> None:
        if given.get("type") == "checkbox":
            self._add("checkbox", given).on = "checked" in given
            self.controls[-1].value = given.get("value", "on")
        else:
            self._add("text", given).value = given.get("value", "")

    def _add(self, kind: str, given: dict[str, str]) -> HtmlControl:
        form = len(self.forms) - 1 if "form" in self._open else -1
        control = HtmlControl(kind, form, given.get("name", ""), given.get("id", ""), given.get("aria-label", ""))
        self.controls.append(control)
        return control
