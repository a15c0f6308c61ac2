"""Tools that name a place of the screenshot, in pixels."""

from __future__ import annotations

from typing import Literal

from envs.adapters.mcp.base import Button, CalledView, Moves, PageTool


class BrowserMouseMoveXy(PageTool):
    """Move the mouse to a point of the screenshot, in pixels."""

    x: float
    y: float

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "hover", "at": view.point(self.x, self.y)}]


class BrowserMouseClickXy(PageTool):
    """Click a point of the screenshot, in pixels."""

    x: float
    y: float
    button: Button = "left"
    clickCount: Literal[1, 2, 3] = 1

    def moves(self, view: CalledView) -> Moves:
        kind = ("click", "double_click", "triple_click")[self.clickCount - 1]
        return [{"type": kind, "at": view.point(self.x, self.y), "button": self.button}]


class BrowserMouseDragXy(PageTool):
    """Drag from one point of the screenshot to another, in pixels."""

    startX: float
    startY: float
    endX: float
    endY: float

    def moves(self, view: CalledView) -> Moves:
        start, end = view.point(self.startX, self.startY), view.point(self.endX, self.endY)
        return [{"type": "drag", "start": {"at": start}, "end": {"at": end}}]


class BrowserMouseWheel(PageTool):
    """Turn the mouse wheel over the page, in pixels."""

    deltaX: float = 0
    deltaY: float = 0

    def moves(self, view: CalledView) -> Moves:
        width, height = view.viewport
        ways = ((self.deltaY, height, "down", "up"), (self.deltaX, width, "right", "left"))
        return [
            {"type": "scroll", "direction": forth if delta > 0 else back, "amount": abs(delta) / size}
            for delta, size, forth, back in ways
            if delta
        ]
