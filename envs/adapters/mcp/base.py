"""The base of all tools: the page that they are called on, and what they may say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from envs.types import Record

Moves = list[dict[str, Any]]
"""Actions, as `envs.WebEnv.step` takes them."""


@dataclass(frozen=True)
class CalledView:
    """The page that a tool is called on."""

    lines: tuple[str, ...]
    """The page alone: its lines of text and elements."""
    viewport: tuple[int, int]
    marks: bool = False
    """Numbers are marks on the screenshot, not elements of the text."""
    clicked: str = ""
    """Target of the last click."""

    def target(self, name: str) -> dict[str, Any]:
        """Return the fields of an action that name its target."""
        digits = name.strip().removeprefix("[").removesuffix("]")
        return {"mark" if self.marks and digits.isdigit() else "element": name}

    def point(self, x: float, y: float) -> tuple[float, float]:
        """Return pixels of the screenshot in thousandths, as actions have them."""
        width, height = self.viewport
        return (x / width * 1000, y / height * 1000)


class PageTool(Record):
    """Does nothing but look at the page; tools that act override `moves`."""

    def moves(self, view: CalledView) -> Moves:
        """Return the actions that the tool does, in order."""
        return []

    def excerpt(self, view: CalledView) -> str:
        """Return what the agent reads in place of the whole page after the actions; empty for the
        whole page."""
        return ""

    def problem(self, view: CalledView) -> str:
        """Return the reason why the tool failed, given the page after its actions; empty if it did
        not."""
        return ""


Button = Literal["left", "right", "middle"]
