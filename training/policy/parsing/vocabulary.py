"""Names of actions and arguments, ours and those of other schemes, to our records.

Other schemes: computer use as Qwen's and Anthropic's models write it, WEBSERV's and BrowserGym's actions. Coordinates are taken as they
are: 0..1000, as Qwen3-VL's. Everything is a table; whatever is in none of them goes on as it is and is refused by the record.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from envs.types import Action, ErrorCode, Invalid, read_action
from envs.types.actions import ACTIONS, GRID, MAX_AMOUNT, Actions

_NAMES = {
    "click_element": "click",
    "close": "close_tab",
    "dblclick": "double_click",
    "drag_and_drop": "drag",
    "fill": "type",
    "finish": "answer",
    "finished": "answer",
    "go_back": "back",
    "go_forward": "forward",
    "goto_url": "goto",
    "handle_dialog": "dialog",
    "hotkey": "press",
    "hscroll": "scroll",
    "input": "type",
    "input_text": "type",
    "key": "press",
    "key_press": "press",
    "keypress": "press",
    "left_click": "click",
    "left_click_drag": "drag",
    "mouse_move": "hover",
    "navigate": "goto",
    "new_page": "new_tab",
    "noop": "wait",
    "open_url": "goto",
    "page_close": "close_tab",
    "page_focus": "switch_tab",
    "press_key": "press",
    "reload": "refresh",
    "select_option": "select",
    "send_msg_to_user": "answer",
    "stop": "answer",
    "submit_html": "submit",
    "submit_page": "submit",
    "tab_close": "close_tab",
    "tab_focus": "switch_tab",
    "tap": "click",
    "type_text": "type",
    "uncheck": "check",
    "upload_file": "upload",
}

_TOOLS = frozenset({"browser", "browser_action", "computer", "computer_use", "step_browser", "web"})
"""Tools whose argument ``action`` is the action's name."""

_TARGET = {
    "bid": "element",
    "coordinate": "at",
    "coordinates": "at",
    "element_id": "element",
    "id": "element",
    "index": "element",
    "point": "at",
    "position": "at",
    "ref": "element",
    "start_box": "at",
    "target": "element",
}

_ARGUMENTS: dict[str, dict[str, str]] = {
    "answer": {"answer": "text", "content": "text", "value": "text"},
    "check": {"checked": "on", "state": "on"},
    "close_tab": {"tab_id": "tab", "index": "tab"},
    "dialog": {"prompt_text": "text", "value": "text"},
    "drag": {
        "from": "start",
        "source": "start",
        "start_coordinate": "start",
        "to": "end",
        "destination": "end",
        "end_coordinate": "end",
        "coordinate": "end",
    },
    "goto": {"href": "url", "link": "url"},
    "press": {"keys": "key", "text": "key", "key_comb": "key"},
    "scroll": {"scroll_direction": "direction", "scroll_amount": "clicks", "dy": "delta_y", "dx": "delta_x"},
    "select": {"value": "text", "option": "text", "label": "text", "options": "text"},
    "submit": {"code": "html", "content": "html", "page": "html", "text": "html"},
    "switch_tab": {"tab_id": "tab", "index": "tab"},
    "terminate": {"state": "status"},
    "type": {"content": "text", "value": "text", "press_enter": "enter", "press_enter_after": "enter"},
    "upload": {"file": "files", "path": "files", "paths": "files", "filename": "files"},
    "wait": {"time": "seconds", "duration": "seconds"},
}

_TARGETED = frozenset(name for name, kind in ACTIONS.items() if "element" in kind.model_fields)

_COMMENTS = frozenset(
    {
        "description",
        "explanation",
        "memory",
        "observation",
        "plan",
        "rationale",
        "reason",
        "reasoning",
        "thinking",
        "thought",
        "thoughts",
    }
)
"""Keys beside the action that only tell why."""

_INSIDE = ("arguments", "args", "parameters", "params", "action_input")

_CLICK_SHARE = 0.1
"""Part of the viewport's height that a "click" of a scroll wheel is: browsers go about 100 px of 1000."""


@dataclass(frozen=True)
class Reading:
    """An action and the foreign names that it was written with."""

    action: Action
    renamed: tuple[str, ...] = ()


def canonical(name: str, actions: Actions) -> str:
    """Our name for an action."""
    name = name.strip().lower()
    return name if name in actions else _NAMES.get(name, name)


def read_mapping(value: dict[str, Any], actions: Actions) -> Reading:
    """The action of a JSON object in any of the schemes."""
    for key in ("function", "action"):
        if isinstance(value.get(key), dict):  # {"type": "function", "function": {…}}, {"thought": …, "action": {…}}
            value = value[key]
    name_key = next((key for key in ("action", "name", "type") if key in value), None)
    if name_key is None:
        return Reading(Invalid(reason="the object has no action", code=ErrorCode.UNKNOWN_ACTION))
    name = value[name_key]
    arguments = {key: each for key, each in value.items() if key != name_key and key not in _COMMENTS}
    inside = _unwrapped(arguments)
    if isinstance(inside, Invalid):
        return Reading(inside)
    if isinstance(name, str) and name in _TOOLS:
        name = inside.pop("action", None) or inside.pop("type", None)
    if not isinstance(name, str):
        return Reading(
            Invalid(reason=f"the action's name is no string: {short(repr(name))}", code=ErrorCode.UNKNOWN_ACTION)
        )
    return read_named(name, inside, actions)


def read_named(name: str, arguments: dict[str, Any], actions: Actions) -> Reading:
    """The action of a name and arguments in any of the schemes."""
    ours = canonical(name, actions)
    if ours == "terminate" and arguments.get("answer"):
        ours = "answer"  # WEBSERV's terminate(answer)
    if ours not in actions:
        return Reading(read_action({"type": name}, actions))
    renamed = [name] if ours != name else []
    table = (_TARGET if ours in _TARGETED else {}) | _ARGUMENTS.get(ours, {})
    known = actions[ours].model_fields
    data: dict[str, Any] = {}
    for key, value in arguments.items():
        mine = key if key in known and key != "type" else table.get(key, key)
        if mine in data:
            return Reading(Invalid(reason=f"{ours}: {short(mine)} is given twice", code=ErrorCode.BAD_ACTION))
        renamed += [key] if mine != key else []
        data[mine] = value
    return Reading(read_action({**_shaped(ours, name, data), "type": ours}, actions), tuple(renamed))


def short(text: str, limit: int = 60) -> str:
    """A quoted text, cut."""
    quoted = repr(text if len(text) <= limit else text[:limit] + "…")
    return (
        quoted if len(quoted) <= 2 * limit else quoted[: 2 * limit] + "…'"
    )  # of characters that are shown as \\U0001f600


def _unwrapped(arguments: dict[str, Any]) -> dict[str, Any] | Invalid:
    """Arguments that stand in an object of their own, which may be written as a string."""
    for key in _INSIDE:
        inner = arguments.pop(key, None)
        if inner is None:
            continue
        if isinstance(inner, str):
            try:
                inner = json.loads(inner, strict=False)
            except (ValueError, RecursionError):
                return Invalid(reason=f"{key} is not JSON: {short(inner)}", code=ErrorCode.BAD_JSON)
        if not isinstance(inner, dict):
            return Invalid(reason=f"{key} is no object: {short(repr(inner))}", code=ErrorCode.BAD_JSON)
        return {key: each for key, each in inner.items() if key not in _COMMENTS}
    return arguments


def _shaped(ours: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Values as our records have them."""
    if ours in _TARGETED:
        data = _target(data)
    match ours:
        case "drag":
            return {key: _end(value) if key in ("start", "end") else value for key, value in data.items()}
        case "scroll":
            return _scroll(name, data)
        case "press" if isinstance(data.get("key"), list):
            return data | {"key": "+".join(map(str, data["key"]))}
        case "upload" if isinstance(data.get("files"), str):
            return data | {"files": [data["files"]]}
        case "type" if not any(way in data for way in ("element", "mark", "at")):
            # Without a target it is written where the caret is, as by a keyboard: nothing is replaced unless asked for.
            return {"clear": False} | data
        case "check" if name == "uncheck":
            return {"on": False} | data
        case "terminate" if data.get("status") in ("fail", "failed", "infeasible"):
            return data | {"status": "failure"}
    return data


def _target(data: dict[str, Any]) -> dict[str, Any]:
    if "x" in data and "y" in data and "at" not in data:
        data = {key: value for key, value in data.items() if key not in ("x", "y")} | {"at": [data["x"], data["y"]]}
    if isinstance(data.get("element"), list | tuple | dict) and "at" not in data:
        return {key: value for key, value in data.items() if key != "element"} | _end(data["element"])
    return data


def _end(value: Any) -> dict[str, Any]:
    """A target that stands alone: ``3``, ``"menu.save"``, ``[120, 340]`` or an object."""
    if isinstance(value, list | tuple):
        return {"at": value}
    if isinstance(value, dict):
        return _target({_TARGET.get(str(key), str(key)): each for key, each in value.items()})
    return {"element": value}


def _scroll(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Wheel clicks, or lengths in thousandths of the viewport. Qwen's ``pixels`` count upwards (and to the left), ``delta`` down."""
    data = dict(data)
    clicks, pixels = data.pop("clicks", None), data.pop("pixels", None)
    dx, dy = data.pop("delta_x", None), data.pop("delta_y", None)
    if isinstance(clicks, int | float):
        data["amount"] = _amount(clicks * _CLICK_SHARE)
    for length, back, forth in (
        (pixels, *(("left", "right") if name == "hscroll" else ("up", "down"))),
        (dx, "right", "left"),
        (dy, "down", "up"),
    ):
        if isinstance(length, int | float) and length:
            data |= {"direction": back if length > 0 else forth, "amount": _amount(length / GRID)}
    return data


def _amount(length: float) -> float:
    return min(abs(length), MAX_AMOUNT)
