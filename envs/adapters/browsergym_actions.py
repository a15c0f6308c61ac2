"""BrowserGym's high-level actions as ours: ``click("12")`` is `Click(element=12)`.

A text is parsed, never run: calls with literal arguments are found in it, as BrowserGym's own
parser does, also between words and code fences. Each call becomes actions of ours.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from pydantic import ValidationError

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


class MappingError(ValueError):
    """A text that is no action of BrowserGym's, or one without a counterpart; says why."""


MAX_PARSES = 2000
"""Parses of one text in search of calls: one for each closing bracket of a call."""

CALL = re.compile(r"#[^\n]*|[A-Za-z_]\w*\(")


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
        return [Answer(text=_string(text))]

    def report_infeasible(self, reason: str) -> Actions:
        _string(reason)
        return [Terminate(status="failure")]

    def fill(self, bid: str, value: str, enable_autocomplete_menu: bool = False) -> Actions:
        return [Type(element=_string(bid), text=_string(value)) if value else Clear(element=_string(bid))]

    def check(self, bid: str) -> Actions:
        return [Check(element=_string(bid))]

    def uncheck(self, bid: str) -> Actions:
        return [Check(element=_string(bid), on=False)]

    def select_option(self, bid: str, options: str | list[str]) -> Actions:
        first, *others = [options] if isinstance(options, str) else options
        return [Select(element=_string(bid), text=_string(first), also=tuple(others))]

    def click(self, bid: str, button: Button = "left", modifiers: Sequence[str] = ()) -> Actions:
        return [Click(element=_string(bid), button=button, modifiers=_keys(modifiers))]

    def dblclick(self, bid: str, button: Button = "left", modifiers: Sequence[str] = ()) -> Actions:
        return [DoubleClick(element=_string(bid), button=button, modifiers=_keys(modifiers))]

    def hover(self, bid: str) -> Actions:
        return [Hover(element=_string(bid))]

    def press(self, bid: str, key_comb: str) -> Actions:
        return [Press(element=_string(bid), key=_key(key_comb))]

    def focus(self, bid: str) -> Actions:
        return [Type(element=_string(bid), text="", clear=False)]

    def clear(self, bid: str) -> Actions:
        return [Clear(element=_string(bid))]

    def drag_and_drop(self, from_bid: str, to_bid: str) -> Actions:
        return [Drag(start=Target(element=_string(from_bid)), end=Target(element=_string(to_bid)))]

    def upload_file(self, bid: str, file: str | list[str]) -> Actions:
        return [Upload(element=_string(bid), files=(file,) if isinstance(file, str) else tuple(file))]

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
        _no_counterpart("mouse_down", "mouse_drag_and_drop")

    def mouse_up(self, x: float, y: float, button: Button = "left") -> Actions:
        _no_counterpart("mouse_up", "mouse_drag_and_drop")

    def keyboard_press(self, key: str) -> Actions:
        return [Press(key=_key(key))]

    def keyboard_down(self, key: str) -> Actions:
        _no_counterpart("keyboard_down", "keyboard_press with a chord such as 'Shift+a'")

    def keyboard_up(self, key: str) -> Actions:
        _no_counterpart("keyboard_up", "keyboard_press with a chord such as 'Shift+a'")

    def keyboard_type(self, text: str) -> Actions:
        return [Type(text=_string(text), clear=False)]

    def keyboard_insert_text(self, text: str) -> Actions:
        return self.keyboard_type(text)

    def goto(self, url: str) -> Actions:
        return [Goto(url=_string(url))]

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
    calls = list(_found(text))
    if not calls:
        raise MappingError("Received an empty action.")
    for call in calls:
        if _name(call) not in NAMES:
            raise MappingError(f"Invalid action type '{_name(call)}'.")
    return calls


def map_call(call: ast.Call, shown: BrowserGymActions) -> Actions:
    """Return the actions of a call on the page that is shown.

    Raises:
        MappingError: The arguments are wrong, or the action has no counterpart.
    """
    arguments = [ast.literal_eval(argument) for argument in call.args]
    words = {str(word.arg): ast.literal_eval(word.value) for word in call.keywords}
    function: Callable[..., Actions] = getattr(shown, _name(call))
    try:
        return function(*arguments, **words)
    except ValidationError as error:
        raise MappingError(f"{_name(call)}: " + "; ".join(str(one["msg"]) for one in error.errors())) from error
    except TypeError as error:
        raise MappingError(str(error).removeprefix("BrowserGymActions.")) from error


def chat_message(call: ast.Call) -> tuple[str, str] | None:
    """Return role and text of the chat message that a call sends; ``None`` if it sends none."""
    role = {"send_msg_to_user": "assistant", "report_infeasible": "infeasible"}.get(_name(call))
    if role is None:
        return None
    (text,) = (ast.literal_eval(argument) for argument in [*call.args, *(word.value for word in call.keywords)])
    return role, text


def _name(call: ast.Call) -> str:
    assert isinstance(call.func, ast.Name)
    return call.func.id


def _found(text: str) -> Iterator[ast.Call]:
    """Yield the calls with literal arguments in a text, in order; comments are left out."""
    position, parses = 0, 0
    while (match := CALL.search(text, position)) is not None:
        position = match.end()
        if match[0].startswith("#"):
            continue
        end = text.find(")", match.end())
        while end >= 0 and parses < MAX_PARSES:
            parses += 1
            if (call := _call(text[match.start() : end + 1])) is not None:
                yield call
                position = end + 1
                break
            end = text.find(")", end + 1)


def _call(code: str) -> ast.Call | None:
    """Return the call that the code is, if all its arguments are literals."""
    try:
        parsed = ast.parse(code, mode="eval").body
        if not (isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name)):
            return None
        for argument in [*parsed.args, *(word.value for word in parsed.keywords)]:
            ast.literal_eval(argument)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None
    return parsed if all(word.arg for word in parsed.keywords) else None


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise MappingError(f"expected a string, got {value!r}")
    return value


def _key(chord: str) -> str:
    return _string(chord).replace("ControlOrMeta", "Control")


def _keys(modifiers: Sequence[str]) -> Any:
    return tuple(_key(modifier) for modifier in modifiers)


def _no_counterpart(name: str, instead: str) -> NoReturn:
    raise MappingError(f"{name} has no counterpart in this environment; use {instead}")
