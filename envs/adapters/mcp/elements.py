"""Tools that act on elements of the page."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envs.adapters.mcp.base import Button, CalledView, Moves, PageTool

Target = Annotated[str, Field(coerce_numbers_to_str=True, description="Number of an element of the page, or its id.")]
Modifier = Literal["Alt", "Control", "ControlOrMeta", "Meta", "Shift"]


class _OnElement(PageTool):
    element: str = Field("", description="The element in words; not used.")
    target: Target


class BrowserClick(_OnElement):
    """Click an element."""

    doubleClick: bool = False
    button: Button = "left"
    modifiers: tuple[Modifier, ...] = ()

    def moves(self, view: CalledView) -> Moves:
        held = ["Control" if key == "ControlOrMeta" else key for key in self.modifiers]
        kind = "double_click" if self.doubleClick else "click"
        return [{"type": kind, **view.target(self.target), "button": self.button, "modifiers": held}]


class BrowserHover(_OnElement):
    """Move the mouse over an element."""

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "hover", **view.target(self.target)}]


class BrowserType(_OnElement):
    """Type into a field, in the place of what it holds."""

    text: str
    submit: bool = Field(False, description="Press Enter afterwards.")
    slowly: bool = Field(False, description="Type after what the field holds.")

    def moves(self, view: CalledView) -> Moves:
        target = view.target(self.target)
        return [{"type": "type", **target, "text": self.text, "clear": not self.slowly, "enter": self.submit}]


class BrowserSelectOption(_OnElement):
    """Choose one or more options of a list by their labels."""

    values: tuple[str, ...] = Field(min_length=1)

    def moves(self, view: CalledView) -> Moves:
        first, *others = self.values
        return [{"type": "select", **view.target(self.target), "text": first, "also": others}]


class FormField(_OnElement):
    """A field of a form, with the value that it gets."""

    name: str = Field("", description="The field in words; not used.")
    type: Literal["textbox", "checkbox", "radio", "combobox", "slider"] = "textbox"
    value: str = Field(description="Text, label of the option, or `true` or `false` of a checkbox.")

    def moves(self, view: CalledView) -> Moves:
        target = view.target(self.target)
        if self.type in ("checkbox", "radio"):
            return [{"type": "check", **target, "on": self.value.strip().lower() == "true"}]
        return [{"type": "select" if self.type == "combobox" else "type", **target, "text": self.value}]


class BrowserFillForm(PageTool):
    """Fill several fields; each is a step of the episode, up to the first that fails."""

    fields: tuple[FormField, ...] = Field(min_length=1)

    def moves(self, view: CalledView) -> Moves:
        return [move for field in self.fields for move in field.moves(view)]


class BrowserDrag(PageTool):
    """Drag one element to another."""

    startElement: str = Field("", description="The element in words; not used.")
    startTarget: Target
    endElement: str = Field("", description="The element in words; not used.")
    endTarget: Target

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "drag", "start": view.target(self.startTarget), "end": view.target(self.endTarget)}]


class BrowserFileUpload(PageTool):
    """Put files of the task's folder into a file field."""

    paths: tuple[str, ...] = Field(min_length=1)
    target: Target = Field("", description="The file field, or what opens it; what was clicked last if not given.")

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "upload", **view.target(self.target or view.clicked), "files": list(self.paths)}]
