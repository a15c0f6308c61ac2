"""BrowserGym's high-level actions as ours: ``click("12")`` is `Click(element=12)`.

A text is parsed, never run (`envs.adapters.browsergym_calls`), also between words and code fences.
Each call becomes actions of ours.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import ValidationError

from envs.adapters.browsergym_calls import MappingError, find_calls, key_name, keys, name_of, no_counterpart, string
from envs.types import (
    Action,
    Answer,
    Back,
    Check,
    Clear,
    Click,
    CloseTab,
    DoubleClick,
    Drag,
    Forward,
    Goto,
    Hover,
    NewTab,
    Press,
    Scroll,
    Select,
    SwitchTab,
    Terminate,
    Type,
    Upload,
    Wait,
)
from envs.types.actions import GRID, MAX_AMOUNT, MAX_WAIT, Target

Button = Literal["left", "middle", "right"]
Actions = Sequence[Action]


@dataclass(frozen=True)
class BrowserGymActions:
    """The actions by BrowserGym's names and signatures, on a page as it is shown."""

    _size: tuple[float, float]
    """Width and height of the screenshot, in whose pixels points are given."""
    _tabs: tuple[int, ...] = (1,)
    """Numbers of the open tabs, in order."""

    def noop(self, wait_ms: float = 1000) -> Actions:
        return [Wait(seconds=min(max(wait_ms, 1) / 1000, MAX_WAIT))]

    def send_msg_to_user(self, text: str) -> Actions:
        return [Answer(text=string(text))]

    def report_infeasible(self, reason: str) -> Actions:
        string(reason)
        return [Terminate(status="failure")]

    def fill(self, bid: str, value: str, enable_autocomplete_menu: bool = False) -> Actions:
        return [Type(element=string(bid), text=string(value)) if value else Clear(element=string(bid))]

    def check(self, bid: str) -> Actions:
        return [Check(element=string(bid))]

    def uncheck(self, bid: str) -> Actions:
        return [Check(element=string(bid), on=False)]

    def select_option(self, bid: str, options: str | list[str]) -> Actions:
        first, *others = [options] if isinstance(options, str) else options
        return [Select(element=string(bid), text=string(first), also=tuple(others))]

    def click(self, bid: str, button: Button = "left", modifiers: Sequence[str] = ()) -> Actions:
        return [Click(element=string(bid), button=button, modifiers=keys(modifiers))]

    def dblclick(self, bid: str, button: Button = "left", modifiers: Sequence[str] = ()) -> Actions:
        return [DoubleClick(element=string(bid), button=button, modifiers=keys(modifiers))]

    def hover(self, bid: str) -> Actions:
        return [Hover(element=string(bid))]

    def press(self, bid: str, key_comb: str) -> Actions:
        return [Press(element=string(bid), key=key_name(key_comb))]

    def focus(self, bid: str) -> Actions:
        return [Type(element=string(bid), text="", clear=False)]

    def clear(self, bid: str) -> Actions:
        return [Clear(element=string(bid))]

    def drag_and_drop(self, from_bid: str, to_bid: str) -> Actions:
        return [Drag(start=Target(element=string(from_bid)), end=Target(element=string(to_bid)))]

    def upload_file(self, bid: str, file: str | list[str]) -> Actions:
        return [Upload(element=string(bid), files=(file,) if isinstance(file, str) else tuple(file))]

    def scroll(self, delta_x: float, delta_y: float) -> Actions:
        return self._scrolled(delta_x, delta_y, None)

    def scroll_at(self, x: int, y: int, dx: int, dy: int) -> Actions:
        return self._scrolled(dx, dy, self._at(x, y))

    def mouse_move(self, x: float, y: float) -> Actions:
        return [Hover(at=self._at(x, y))]

    def mouse_click(self, x: float, y: float, button: Button = "left") -> Actions:
        return [Click(at=self._at(x, y), button=button)]

    def mouse_dblclick(self, x: float, y: float, button: Button = "left") -> Actions:
        return [DoubleClick(at=self._at(x, y), button=button)]

    def mouse_drag_and_drop(self, from_x: float, from_y: float, to_x: float, to_y: float) -> Actions:
        return [Drag(start=Target(at=self._at(from_x, from_y)), end=Target(at=self._at(to_x, to_y)))]

    def mouse_upload_file(self, x: float, y: float, file: str | list[str]) -> Actions:
        return [Upload(at=self._at(x, y), files=(file,) if isinstance(file, str) else tuple(file))]

    def mouse_down(self, x: float, y: float, button: Button = "left") -> Actions:
        no_counterpart("mouse_down", "mouse_drag_and_drop")

    def mouse_up(self, x: float, y: float, button: Button = "left") -> Actions:
        no_counterpart("mouse_up", "mouse_drag_and_drop")

    def keyboard_press(self, key: str) -> Actions:
        return [Press(key=key_name(key))]

    def keyboard_down(self, key: str) -> Actions:
        no_counterpart("keyboard_down", "keyboard_press with a chord such as 'Shift+a'")

    def keyboard_up(self, key: str) -> Actions:
        no_counterpart("keyboard_up", "keyboard_press with a chord such as 'Shift+a'")

    def keyboard_type(self, text: str) -> Actions:
        return [Type(text=string(text), clear=False)]

    def keyboard_insert_text(self, text: str) -> Actions:
        return self.keyboard_type(text)

    def goto(self, url: str) -> Actions:
        return [Goto(url=string(url))]

    def go_back(self) -> Actions:
        return [Back()]

    def go_forward(self) -> Actions:
        return [Forward()]

    def new_tab(self) -> Actions:
        return [NewTab()]

    def tab_close(self) -> Actions:
        return [CloseTab()]

    def tab_focus(self, index: int) -> Actions:
        if not isinstance(index, int) or not -len(self._tabs) <= index < len(self._tabs):
            raise MappingError(f"tab_focus: there is no tab {index!r}; choose 0 to {len(self._tabs) - 1}")
        return [SwitchTab(tab=self._tabs[index])]

    def _at(self, x: float, y: float) -> tuple[float, float]:
        return (x / self._size[0] * GRID, y / self._size[1] * GRID)

    def _scrolled(self, dx: float, dy: float, point: tuple[float, float] | None) -> Actions:
        ways = [("right" if dx > 0 else "left", abs(dx) / self._size[0])]
        ways.append(("down" if dy > 0 else "up", abs(dy) / self._size[1]))
        return [Scroll(direction=way, amount=min(far, MAX_AMOUNT), at=point) for way, far in ways if far] or self.noop(
            1
        )  # type: ignore[arg-type]


NAMES = frozenset(name for name in vars(BrowserGymActions) if not name.startswith("_"))
"""BrowserGym's names of actions."""


def read_calls(text: str) -> list[ast.Call]:
    """Return the calls of a text, in order.

    Raises:
        MappingError: The text has no call, or one of an unknown name.
    """
    calls = list(find_calls(text))
    if not calls:
        raise MappingError("Received an empty action.")
    for call in calls:
        if name_of(call) not in NAMES:
            raise MappingError(f"Invalid action type '{name_of(call)}'.")
    return calls


def map_call(call: ast.Call, shown: BrowserGymActions) -> Actions:
    """Return the actions of a call on the page that is shown.

    Raises:
        MappingError: The arguments are wrong, or the action has no counterpart.
    """
    arguments = [ast.literal_eval(argument) for argument in call.args]
    words = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    function: Callable[..., Actions] = getattr(shown, name_of(call))
    try:
        return function(*arguments, **words)
    except ValidationError as error:
        raise MappingError(f"{name_of(call)}: " + "; ".join(str(one["msg"]) for one in error.errors())) from error
    except TypeError as error:
        raise MappingError(str(error).removeprefix("BrowserGymActions.")) from error
