"""Names of actions and arguments, ours and those of other schemes, to our records.

Other schemes: WebArena's and BrowserGym's actions, WebGym's tools, computer use as Qwen's, Anthropic's and OpenAI's models write it, UI-TARS,
WEBSERV. Coordinates are taken as they are: 0..1000, as Qwen3-VL's. Everything is a table; whatever is in none of them goes on as it is and is
refused by the record. What has no counterpart here (``mouse_down``, ``keyboard_up``, ``hold_key``, ``focus``, ``zoom``) is unknown.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from typing import Any

from envs.types import Action, ErrorCode, Invalid, read_action
from envs.types.actions import ACTIONS, GRID, MAX_AMOUNT, WITH_MEMORY, Actions

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
    "insert_text": "type",
    "key": "press",
    "key_press": "press",
    "keyboard_insert_text": "type",
    "keyboard_press": "press",
    "keyboard_type": "type",
    "keypress": "press",
    "left_click": "click",
    "left_click_drag": "drag",
    "left_double": "double_click",
    "left_single": "click",
    "middle_click": "click",
    "mouse_click": "click",
    "mouse_dblclick": "double_click",
    "mouse_drag_and_drop": "drag",
    "mouse_move": "hover",
    "mouse_upload_file": "upload",
    "move": "hover",
    "navigate": "goto",
    "new_page": "new_tab",
    "noop": "wait",
    "open_url": "goto",
    "page_close": "close_tab",
    "page_focus": "switch_tab",
    "press_key": "press",
    "reload": "refresh",
    "report_infeasible": "terminate",
    "right_click": "click",
    "right_single": "click",
    "screenshot": "wait",
    "scroll_at": "scroll",
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
_SQUASHED = {name.replace("_", ""): ours for name, ours in (_NAMES | {name: name for name in WITH_MEMORY}).items()}
"""The same as ``goBack`` and ``DoubleClick`` have them, in lower case."""

_IMPLIED: dict[str, dict[str, Any]] = {
    "fill": {"enable_autocomplete_menu": None},
    "finish": {"text": ""},
    "finished": {"text": ""},
    "middle_click": {"button": "middle"},
    "report_infeasible": {"status": "failure", "reason": None},
    "right_click": {"button": "right"},
    "right_single": {"button": "right"},
    "screenshot": {"seconds": 0.1},
    "stop": {"text": ""},
    "uncheck": {"on": False},
}
"""Arguments that a name of another scheme has without saying so; ``None`` for one that means nothing here."""

_FROM_ZERO = frozenset({"page_focus", "tab_focus"})
"""WebArena and BrowserGym count tabs from 0, our observations from 1."""

_IN_MILLISECONDS = frozenset({"noop"})
"""BrowserGym's ``noop(1000)`` waits for a second."""

_BUTTONS = {"wheel": "middle", "1": "left", "2": "middle", "3": "right"}
"""OpenAI's name of the middle button, and X11's numbers."""

_MODIFIERS = {
    "alt": "Alt",
    "cmd": "Meta",
    "command": "Meta",
    "control": "Control",
    "controlormeta": "Control",
    "ctrl": "Control",
    "meta": "Meta",
    "option": "Alt",
    "shift": "Shift",
    "super": "Meta",
    "win": "Meta",
}

_MARKS_TOOL = "web_interaction"
_TOOLS = frozenset({"browser", "browser_action", "computer", "computer_use", "step_browser", "web", _MARKS_TOOL})
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
    "start_point": "at",
    "target": "element",
}

_CLICK = {"keys": "modifiers", "modifier": "modifiers", "text": "modifiers", "mouse_button": "button"}

_ARGUMENTS: dict[str, dict[str, str]] = {
    "answer": {"answer": "text", "content": "text", "value": "text", "message": "text"},
    "check": {"checked": "on", "state": "on"},
    "click": _CLICK,
    "close_tab": {"tab_id": "tab", "index": "tab", "page_index": "tab"},
    "dialog": {"prompt_text": "text", "value": "text"},
    "double_click": _CLICK,
    "drag": {
        "from": "start",
        "from_bid": "start",
        "source": "start",
        "start_box": "start",
        "start_coordinate": "start",
        "start_point": "start",
        "to": "end",
        "to_bid": "end",
        "destination": "end",
        "end_box": "end",
        "end_coordinate": "end",
        "end_point": "end",
        "coordinate": "end",
        "keys": "modifiers",
        "text": "modifiers",
    },
    "goto": {"href": "url", "link": "url"},
    "press": {"keys": "key", "text": "key", "key_comb": "key", "hotkey": "key"},
    "scroll": {
        "scroll_direction": "direction",
        "scroll_amount": "clicks",
        "dy": "delta_y",
        "dx": "delta_x",
        "scroll_y": "delta_y",
        "scroll_x": "delta_x",
    },
    "select": {"value": "text", "option": "text", "label": "text", "options": "text"},
    "submit": {"code": "html", "content": "html", "page": "html", "text": "html"},
    "switch_tab": {"tab_id": "tab", "index": "tab", "tab_index": "tab", "page_index": "tab"},
    "terminate": {"state": "status"},
    "triple_click": _CLICK,
    "type": {"content": "text", "value": "text", "press_enter": "enter", "press_enter_after": "enter"},
    "upload": {"file": "files", "path": "files", "paths": "files", "filename": "files"},
    "wait": {
        "time": "seconds",
        "duration": "seconds",
        "wait_ms": "milliseconds",
        "ms": "milliseconds",
    },
}

_CLICKS = frozenset({"click", "double_click", "triple_click"})
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

_SIDEWAYS = ("left", "right")

MAX_POINT = 200
"""Characters of a point that is written as a text."""

MAX_DIGITS = 9
"""Of a number that is written as a text."""

_CLICK_SHARE = 0.1
"""Part of the viewport's height that a "click" of a scroll wheel is: browsers go about 100 px of 1000."""


@dataclass(frozen=True)
class NamedAction:
    """An action and the foreign names that it was written with."""

    action: Action
    renamed: tuple[str, ...] = ()


def canonical(name: str, actions: Actions) -> str:
    """Our name for an action."""
    name = name.strip().lower()
    if name in actions:
        return name
    return _NAMES.get(name) or _SQUASHED.get(name.replace("_", "").replace("-", ""), name)


def read_mapping(value: dict[str, Any], actions: Actions) -> NamedAction:
    """The action of a JSON object in any of the schemes."""
    for key in ("function", "action"):
        if isinstance(value.get(key), dict):  # {"type": "function", "function": {…}}, {"thought": …, "action": {…}}
            value = value[key]
    name_key = next((key for key in ("action", "name", "type") if value.get(key) is not None), None)
    if name_key is None:
        return NamedAction(Invalid(reason="the object has no action", code=ErrorCode.UNKNOWN_ACTION))
    name = value[name_key]
    arguments = {key: each for key, each in value.items() if key != name_key and key not in _COMMENTS}
    inside = _unwrapped(arguments)
    if isinstance(inside, Invalid):
        return NamedAction(inside)
    tool = name
    if isinstance(name, str) and name in _TOOLS:
        name = inside.pop("action", None) or inside.pop("type", None)
    if not isinstance(name, str):
        return NamedAction(
            Invalid(reason=f"the action's name is no string: {shorten_name(repr(name))}", code=ErrorCode.UNKNOWN_ACTION)
        )
    return _read_web_interaction(name, inside, actions) if tool == _MARKS_TOOL else read_named(name, inside, actions)


def _read_web_interaction(name: str, arguments: dict[str, Any], actions: Actions) -> NamedAction:
    """WebGym's tool for a screenshot with marks: its labels are the marks, and what it types is sent with Enter."""
    marked = {"mark" if key == "element_id" else key: each for key, each in arguments.items()}
    if canonical(name, actions) == "type":
        marked = {"enter": True} | marked
    reading = read_named(name, marked, actions)
    return replace(reading, renamed=(*reading.renamed, *({"element_id"} & arguments.keys())))


def read_named(name: str, arguments: dict[str, Any], actions: Actions) -> NamedAction:
    """The action of a name and arguments in any of the schemes.

    An argument that is null, or holds no keys, says nothing.
    """
    arguments = {key: each for key, each in arguments.items() if each is not None and (key, each) != ("keys", [])}
    ours = canonical(name, actions)
    if ours == "terminate" and arguments.get("answer"):
        ours = "answer"  # WEBSERV's terminate(answer)
    if ours in _CLICKS and arguments.get("button") in ("back", "forward"):
        ours, arguments = str(arguments["button"]), {}  # OpenAI's mice have these buttons
    if ours not in actions:
        return NamedAction(read_action({"type": name}, actions))
    renamed = [name] if ours != name else []
    table = (_TARGET if ours in _TARGETED else {}) | _ARGUMENTS.get(ours, {})
    known = actions[ours].model_fields
    data: dict[str, Any] = {}
    implied = _IMPLIED.get(name.strip().lower(), {})
    for key, value in arguments.items():
        if key in implied and implied[key] is None:
            continue
        mine = key if key in known and key != "type" else table.get(key, key)
        if mine in data:
            return NamedAction(
                Invalid(reason=f"{ours}: {shorten_name(mine)} is given twice", code=ErrorCode.BAD_ACTION)
            )
        renamed += [key] if mine != key else []
        data[mine] = value
    data = {key: each for key, each in implied.items() if each is not None} | data
    return NamedAction(
        read_action({**_shaped(ours, name.strip().lower(), data), "type": ours}, actions), tuple(renamed)
    )


def shorten_name(text: str, limit: int = 60) -> str:
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
                return Invalid(reason=f"{key} is not JSON: {shorten_name(inner)}", code=ErrorCode.BAD_JSON)
        if not isinstance(inner, dict):
            return Invalid(reason=f"{key} is no object: {shorten_name(repr(inner))}", code=ErrorCode.BAD_JSON)
        return {key: each for key, each in inner.items() if key not in _COMMENTS}
    return arguments


def _shaped(ours: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Values as our records have them."""
    if ours in _TARGETED:
        data = _target(data)
    match ours:
        case "click" | "double_click" | "triple_click":
            return _mouse(data)
        case "drag":
            return _drag(_mouse(data))
        case "scroll":
            return _scroll(name, data)
        case "press":
            return data | {"key": _chord(data["key"])} if "key" in data else data
        case "select" if isinstance(data.get("text"), list | tuple) and data["text"]:
            return {**data, "text": data["text"][0], "also": data["text"][1:]} if "also" not in data else data
        case "upload" if isinstance(data.get("files"), str):
            return data | {"files": [data["files"]]}
        case "type" if not any(way in data for way in ("element", "mark", "at")):
            # Without a target it is written where the caret is, as by a keyboard: nothing is replaced unless asked for.
            return {"clear": False} | data
        case "switch_tab" if name in _FROM_ZERO:
            return data | {"tab": _one_more(data.get("tab"))}
        case "wait":
            return _wait(name, data)
        case "terminate" if data.get("status") in ("fail", "failed", "infeasible"):
            return data | {"status": "failure"}
    return data


def _target(data: dict[str, Any]) -> dict[str, Any]:
    if "x" in data and "y" in data and "at" not in data:
        data = {key: value for key, value in data.items() if key not in ("x", "y")} | {"at": [data["x"], data["y"]]}
    if isinstance(data.get("element"), list | tuple | dict) and "at" not in data:
        data = {key: value for key, value in data.items() if key != "element"} | _end(data["element"])
    return data | {"at": _point(data["at"])} if "at" in data else data


def _end(value: Any) -> dict[str, Any]:
    """A target that stands alone: ``3``, ``"menu.save"``, ``[120, 340]``, ``"(120,340)"`` or an object."""
    if isinstance(value, dict):
        return _target({_TARGET.get(str(key), str(key)): each for key, each in value.items()})
    point = _point(value)
    return {"at": point} if isinstance(point, list | tuple) else {"element": value}


_TAGGED = re.compile(r"<[^<>]{0,20}>")
_NUMBERS = re.compile(r"[(\[]?\s*(-?\d+(?:\.\d+)?(?:[\s,]+-?\d+(?:\.\d+)?){1,3})\s*[)\]]?")


def _point(value: Any) -> Any:
    """A point as other schemes have it: ``"(1,2)"``, ``"<point>1 2</point>"``, ``{"x": 1, "y": 2}``, or a box, whose middle it is."""
    if isinstance(value, str) and len(value) <= MAX_POINT:
        match = _NUMBERS.fullmatch(_TAGGED.sub(" ", value).strip())
        value = [float(each) for each in re.split(r"[\s,]+", match[1])] if match else value
    if isinstance(value, dict) and value.keys() == {"x", "y"}:
        value = [value["x"], value["y"]]
    if isinstance(value, list | tuple) and len(value) == 4 and all(isinstance(each, int | float) for each in value):
        return [(value[0] + value[2]) / 2, (value[1] + value[3]) / 2]
    return value


def _mouse(data: dict[str, Any]) -> dict[str, Any]:
    """Buttons and the keys held with them by our names."""
    held = data.get("modifiers")
    if isinstance(held, str):
        held = [part for part in re.split(r"[+\s]+", held) if part]
    if isinstance(held, list | tuple):
        held = [_MODIFIERS.get(each.lower(), each) if isinstance(each, str) else each for each in held]
        data = data | {"modifiers": held}
    if data.get("modifiers", ()) is None:
        data = {key: each for key, each in data.items() if key != "modifiers"}
    if "button" in data:
        button = str(data["button"]).lower()
        data = data | {"button": _BUTTONS.get(button, button)}
    return data


def _drag(data: dict[str, Any]) -> dict[str, Any]:
    """Two ends and what is between them, also from a ``path`` (OpenAI) or four numbers (BrowserGym)."""
    data = dict(data)
    for end, corner in (("start", ("from_x", "from_y")), ("end", ("to_x", "to_y"))):
        if corner[0] in data and corner[1] in data:
            data[end] = [data.pop(corner[0]), data.pop(corner[1])]
    path = data.get("path")
    if isinstance(path, list | tuple) and len(path) >= 2 and not data.keys() & {"start", "end", "via"}:
        data = {key: each for key, each in data.items() if key != "path"}
        data |= {"start": path[0], "via": path[1:-1], "end": path[-1]}
    data |= {end: _end(data[end]) for end in ("start", "end") if end in data}
    via = data.get("via")
    return data | {"via": [_point(each) for each in via]} if isinstance(via, list | tuple) else data


def _chord(value: Any) -> Any:
    """``["ctrl", "a"]`` and UI-TARS's ``ctrl a`` are ``ctrl+a``."""
    if isinstance(value, list):
        return "+".join(map(str, value))
    parts = value.split() if isinstance(value, str) else []
    return "+".join(parts) if len(parts) > 1 and all(part.lower() in _MODIFIERS for part in parts[:-1]) else value


def _one_more(tab: Any) -> Any:
    if isinstance(tab, str) and tab.strip().isdigit() and len(tab) <= MAX_DIGITS:
        tab = int(tab)
    return tab + 1 if isinstance(tab, int) and not isinstance(tab, bool) else tab


def _wait(name: str, data: dict[str, Any]) -> dict[str, Any]:
    data = dict(data)
    if name in _IN_MILLISECONDS and "seconds" in data:
        data["milliseconds"] = data.pop("seconds")
    if isinstance(data.get("milliseconds"), int | float) and "seconds" not in data:
        data["seconds"] = max(data.pop("milliseconds"), 1) / 1000.0
    return data


def _scroll(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Wheel clicks, or lengths in thousandths of the viewport.

    Qwen's ``pixels`` count upwards (and to the left), ``delta`` down.

    A direction that is given holds; signs only tell it where it is not.
    """
    data = dict(data)
    given = data.get("direction")
    if isinstance(given, str):
        given = data["direction"] = given.strip().lower()
    clicks, pixels = data.pop("clicks", None), data.pop("pixels", None)
    dx, dy = data.pop("delta_x", None), data.pop("delta_y", None)
    if isinstance(clicks, int | float) and clicks:
        data["amount"] = _amount(clicks * _CLICK_SHARE)
    lengths = [
        (length, back if length > 0 else forth)
        for length, back, forth in (
            (pixels, *(("left", "right") if name == "hscroll" else ("up", "down"))),
            (dy, "down", "up"),
            (dx, "right", "left"),
        )
        if isinstance(length, int | float) and length
    ]
    if given is not None:
        # Of two lengths the one along the direction counts.
        along = [each for each in lengths if (each[1] in _SIDEWAYS) == (given in _SIDEWAYS)]
        lengths = along or lengths
    if lengths:
        length, direction = max(lengths, key=lambda each: abs(each[0]))
        data |= {"direction": direction if given is None else given, "amount": _amount(length / GRID)}
    return data


def _amount(length: float) -> float:
    return min(abs(length), MAX_AMOUNT)
