"""Browser tools with the names and arguments that `@playwright/mcp` gives them, as actions. Pure.

An agent that was written for Playwright's server calls these unchanged. Left out are tools that run
code or change the browser under the task: ``browser_evaluate``, ``browser_run_code_unsafe``,
``browser_resize``, cookies, storage, routes, the console and the network. ``answer``,
``terminate`` and ``submit`` are ours: an episode ends with them. Targets are the numbers on the
page (``3``, ``[3]``), or semantic ids; tabs have the numbers of the page's line ``Tabs``.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from envs.adapters.mcp.base import CalledView, Moves, PageTool
from envs.adapters.mcp.elements import (
    BrowserClick,
    BrowserDrag,
    BrowserFileUpload,
    BrowserFillForm,
    BrowserHover,
    BrowserSelectOption,
    BrowserType,
)
from envs.adapters.mcp.mouse import BrowserMouseClickXy, BrowserMouseDragXy, BrowserMouseMoveXy, BrowserMouseWheel
from envs.types.patterns import check_pattern, search

TEXT_WAIT = 5.0
"""Seconds that `BrowserWaitFor` waits for a text: Playwright's time-out of an expectation."""

CONTEXT_LINES = 2
"""Lines around a line that `BrowserFind` matching."""


class BrowserNavigate(PageTool):
    """Open an address."""

    url: str

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "goto", "url": self.url}]


class BrowserNavigateBack(PageTool):
    """Go back one page."""

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "back"}]


class BrowserSnapshot(PageTool):
    """Show the page with its numbered elements, and the task. Call it first."""


class BrowserTakeScreenshot(PageTool):
    """Show the page as a picture."""

    type: Literal["jpeg", "png"] = "jpeg"


class BrowserFind(PageTool):
    """Show the lines of the page that hold a text, or that match a regular expression."""

    text: str = ""
    regex: str = ""

    def excerpt(self, view: CalledView) -> str:
        matching = [number for number, line in enumerate(view.lines) if self._matches(line)]
        return "\n".join(
            line
            for number, line in enumerate(view.lines)
            if any(abs(number - other) <= CONTEXT_LINES for other in matching)
        )

    def problem(self, view: CalledView) -> str:
        if bool(self.text) == bool(self.regex):
            return "give either text or regex"
        try:
            check_pattern(self.regex)
        except ValueError as error:
            return f"regex: {error}"
        return "" if self.excerpt(view) else f"no line of the page has {self.text or self.regex!r}"

    def _matches(self, line: str) -> bool:
        if self.regex:
            return search(self.regex, [line]) is not None
        return self.text.casefold() in line.casefold()


class BrowserPressKey(PageTool):
    """Press a key or chord, as `Enter` or `Control+a`."""

    key: str

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "press", "key": self.key}]


class BrowserHandleDialog(PageTool):
    """Answer a dialog."""

    accept: bool
    promptText: str | None = None

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "dialog", "accept": self.accept, "text": self.promptText}]


class BrowserTabs(PageTool):
    """List, open, close or show a tab."""

    action: Literal["list", "new", "close", "select"]
    index: int | None = Field(None, description="Number of the tab.")
    url: str | None = None

    def moves(self, view: CalledView) -> Moves:
        tab = {} if self.index is None else {"tab": self.index}
        acts: dict[str, Moves] = {
            "list": [],
            "new": [{"type": "new_tab", "url": self.url}],
            "close": [{"type": "close_tab", **tab}],
            "select": [{"type": "switch_tab", **tab}],
        }
        return acts[self.action]


class BrowserWaitFor(PageTool):
    """Let time pass, or wait until a text is there or gone."""

    time: float | None = Field(None, description="Seconds.")
    text: str = ""
    textGone: str = ""

    def moves(self, view: CalledView) -> Moves:
        if self.time is not None:
            return [{"type": "wait", "seconds": self.time}]
        return [{"type": "wait", "seconds": TEXT_WAIT}] if self.problem(view) else []

    def problem(self, view: CalledView) -> str:
        shown = "\n".join(view.lines)
        if self.text and self.text not in shown:
            return f"the page does not show {self.text!r}"
        return f"the page still shows {self.textGone!r}" if self.textGone and self.textGone in shown else ""


class BrowserClose(PageTool):
    """Close the browser, which ends the episode: the task is done."""

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "terminate", "status": "success"}]


class AnswerTool(PageTool):
    """Give the answer that the task asks for, which ends the episode."""

    text: str

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "answer", "text": self.text}]


class TerminateTool(PageTool):
    """End the episode: the task is done, or cannot be done."""

    status: Literal["success", "failure"] = "success"

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "terminate", "status": self.status}]


class SubmitTool(PageTool):
    """Hand in a whole page, where the task asks for one; it ends the episode."""

    html: str

    def moves(self, view: CalledView) -> Moves:
        return [{"type": "submit", "html": self.html}]


TOOLS: dict[str, type[PageTool]] = {
    "browser_navigate": BrowserNavigate,
    "browser_navigate_back": BrowserNavigateBack,
    "browser_snapshot": BrowserSnapshot,
    "browser_take_screenshot": BrowserTakeScreenshot,
    "browser_find": BrowserFind,
    "browser_click": BrowserClick,
    "browser_hover": BrowserHover,
    "browser_type": BrowserType,
    "browser_select_option": BrowserSelectOption,
    "browser_fill_form": BrowserFillForm,
    "browser_drag": BrowserDrag,
    "browser_press_key": BrowserPressKey,
    "browser_file_upload": BrowserFileUpload,
    "browser_handle_dialog": BrowserHandleDialog,
    "browser_tabs": BrowserTabs,
    "browser_wait_for": BrowserWaitFor,
    "browser_mouse_move_xy": BrowserMouseMoveXy,
    "browser_mouse_click_xy": BrowserMouseClickXy,
    "browser_mouse_drag_xy": BrowserMouseDragXy,
    "browser_mouse_wheel": BrowserMouseWheel,
    "browser_close": BrowserClose,
    "answer": AnswerTool,
    "terminate": TerminateTool,
    "submit": SubmitTool,
}
"""Tools by name."""
