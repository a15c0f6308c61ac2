"""Translates names and arguments of actions, ours and those of other schemes, to our records.

Other schemes are WebArena's and BrowserGym's actions, WebGym's tools, computer use as Qwen's,
Anthropic's and OpenAI's models write it, UI-TARS, and WEBSERV. Coordinates are thousandths, 0 to
1000, as in Qwen3-VL; fractions are scaled, and a box becomes its middle. Tables map names, and
functions convert values. Names that are in no table are passed on, and the record refuses them.
Actions without a counterpart here (``mouse_down``, ``keyboard_up``, ``hold_key``, ``focus``,
``zoom``) are unknown.
"""

from __future__ import annotations

import json
import re
from typing import Any

from envs.actions.parsing.names import (
    ARGUMENT_KEYS,
    ARGUMENTS,
    BUTTONS,
    CLICK_SHARE,
    CLICKS,
    COMMENTS,
    FROM_ZERO,
    IGNORED_ARGUMENTS,
    IMPLIED,
    IN_MILLISECONDS,
    MARKS_TOOL,
    MAX_DIGITS,
    MAX_POINT,
    MODIFIERS,
    NAMES,
    SIDEWAYS,
    SQUASHED,
    TARGET,
    TARGETED,
    TOOLS,
    WRAPPER_KEYS,
)
from envs.types import Action, ErrorCode, Invalid, read_action
from envs.types.actions import GRID, MAX_AMOUNT, Actions


def canonical(name: str, actions: Actions) -> str:
    """Return our name for an action."""
    name = _spelled(name)
    return name if name in actions else NAMES.get(name, name)


def _spelled(name: str) -> str:
    """Return a name in snake case: ``rightClick`` is ``right_click``."""
    name = name.strip().lower()
    return SQUASHED.get(name.replace("_", "").replace("-", ""), name)


def read_mapping(value: dict[str, Any], actions: Actions) -> Action:
    """Return the action of a JSON object in any of the schemes."""
    for key in WRAPPER_KEYS:
        inner = value.get(key)
        if isinstance(inner, list) and len(inner) > 1:  # browser-use means all of them to be done
            return Invalid(reason=f"{key} has {len(inner)} actions; name one", code=ErrorCode.BAD_ACTION)
        inner = inner[0] if isinstance(inner, list) and inner else inner
        if isinstance(inner, dict):  # {"type": "function", "function": {…}}, {"thought": …, "action": {…}}
            value = inner
    if len(value) == 1 and canonical(only := str(next(iter(value))), actions) in actions:
        value = {"name": only, "arguments": value[only]} if isinstance(value[only], dict) else value
    name_key = next((key for key in ("action", "name", "type") if value.get(key) is not None), None)
    if name_key is None:
        return Invalid(reason="the object has no action", code=ErrorCode.UNKNOWN_ACTION)
    name = value[name_key]
    arguments = {key: item for key, item in value.items() if key != name_key and key not in COMMENTS}
    inside = _unwrapped(arguments)
    if isinstance(inside, Invalid):
        return inside
    tool = name
    if isinstance(name, str) and name in TOOLS:
        name = inside.pop("action", None) or inside.pop("type", None)
    if not isinstance(name, str):
        return Invalid(
            reason=f"the action's name is no string: {shorten_name(repr(name))}", code=ErrorCode.UNKNOWN_ACTION
        )
    return _read_web_interaction(name, inside, actions) if tool == MARKS_TOOL else read_named(name, inside, actions)


def _read_web_interaction(name: str, arguments: dict[str, Any], actions: Actions) -> Action:
    """Read WebGym's tool for a screenshot with marks.

    Its labels are the marks, and it sends typed text with Enter.
    """
    marked = {"mark" if key == "element_id" else key: value for key, value in arguments.items()}
    if canonical(name, actions) == "type":
        marked = {"enter": True} | marked
    return read_named(name, marked, actions)


def read_named(name: str, arguments: dict[str, Any], actions: Actions) -> Action:
    """Return the action of a name and arguments in any of the schemes.

    An argument that is null, or an empty list of keys, has no meaning.
    """
    arguments = {
        key: value
        for key, value in arguments.items()
        if value is not None and (key, value) != ("keys", []) and key not in IGNORED_ARGUMENTS
    }
    ours, spelled = canonical(name, actions), _spelled(name)
    if ours == "terminate" and (arguments.get("answer") or (spelled == "done" and "text" in arguments)):
        ours = "answer"  # WEBSERV's terminate(answer), browser-use's done
    if ours == "goto" and arguments.pop("new_tab", False):
        ours = "new_tab"
    if ours == "type" and str(arguments.get("content", "")).endswith("\n"):
        arguments = {"enter": True} | arguments  # UI-TARS submits so
    if ours in CLICKS and arguments.get("button") in ("back", "forward"):
        ours, arguments = str(arguments["button"]), {}  # OpenAI's mice have these buttons
    if ours not in actions:
        return read_action({"type": name}, actions)
    table = (TARGET if ours in TARGETED else {}) | ARGUMENTS.get(ours, {})
    known = actions[ours].model_fields
    data: dict[str, Any] = {}
    implied = IMPLIED.get(spelled, {})
    for key, value in arguments.items():
        if key in implied and implied[key] is None:
            continue
        mine = key if key in known and key != "type" else table.get(key, key)
        if mine in data:
            return Invalid(reason=f"{ours}: {shorten_name(mine)} is given twice", code=ErrorCode.BAD_ACTION)
        data[mine] = value
    data = {key: value for key, value in implied.items() if value is not None} | data
    return read_action({**_shaped(ours, spelled, data), "type": ours}, actions)


def shorten_name(text: str) -> str:
    """Return a text in quotes, cut to 60 characters."""
    quoted = repr(text if len(text) <= 60 else text[:60] + "…")
    return quoted if len(quoted) <= 120 else quoted[:120] + "…'"  # of characters that are shown as \\U0001f600


def _unwrapped(arguments: dict[str, Any]) -> dict[str, Any] | Invalid:
    """Return the arguments in an object of their own, which may be written as a string."""
    for key in ARGUMENT_KEYS:
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
        return {key: value for key, value in inner.items() if key not in COMMENTS}
    return arguments


def _shaped(ours: str, name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Convert values to those of our records."""
    if ours in TARGETED:
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
            # Without a target the text goes to the caret, as from a keyboard: nothing is replaced
            # unless asked for.
            return {"clear": False} | data
        case "switch_tab" if name in FROM_ZERO:
            return data | {"tab": _one_more(data.get("tab"))}
        case "wait":
            return _wait(name, data)
        case "terminate" if data.get("status") in ("fail", "failed", "infeasible"):
            return data | {"status": "failure"}
    return data


def _target(data: dict[str, Any]) -> dict[str, Any]:
    if "x" in data and "y" in data and "at" not in data:
        data = {key: value for key, value in data.items() if key not in ("x", "y")} | {"at": [data["x"], data["y"]]}
    element = data.get("element")
    if "at" not in data and (isinstance(element, list | tuple | dict) or isinstance(_point(element), list)):
        data = {key: value for key, value in data.items() if key != "element"} | _target_of_value(data["element"])
    return data | {"at": _point(data["at"])} if "at" in data else data


def _target_of_value(value: Any) -> dict[str, Any]:
    """Return the target that one value names.

    It may be ``3``, ``"menu.save"``, ``[120, 340]``, ``"(120,340)"`` or an object.
    """
    if isinstance(value, dict):
        return _target({TARGET.get(str(key), str(key)): part for key, part in value.items()})
    point = _point(value)
    return {"at": point} if isinstance(point, list | tuple) else {"element": value}


_TAGGED = re.compile(r"<[^<>]{0,20}>")
_NUMBERS = re.compile(r"[(\[]?\s*(-?\d+(?:\.\d+)?(?:[\s,]+-?\d+(?:\.\d+)?){1,3})\s*[)\]]?")


def _point(value: Any) -> Any:
    """Return a point that another scheme writes.

    It may be ``"(1,2)"``, ``"<point>1 2</point>"``, ``{"x": 1, "y": 2}``, or a box, which gives its
    middle. Numbers of 0 to 1, if one lies between, are fractions of the picture.
    """
    if isinstance(value, str) and len(value) <= MAX_POINT:
        match = _NUMBERS.fullmatch(_TAGGED.sub(" ", halfwidth(value)).strip())
        parts = re.split(r"[\s,]+", match[1]) if match else []
        value = [float(part) for part in parts] if match else value
    if isinstance(value, dict) and value.keys() == {"x", "y"}:
        value = [value["x"], value["y"]]
    if (
        isinstance(value, list | tuple)
        and all(isinstance(part, int | float) and 0 <= part <= 1 for part in value)
        and any(0 < part < 1 for part in value)
    ):
        value = [part * GRID for part in value]
    if isinstance(value, list | tuple) and len(value) == 4 and all(isinstance(part, int | float) for part in value):
        return [(value[0] + value[2]) / 2, (value[1] + value[3]) / 2]
    return value


_HALFWIDTH = str.maketrans("（）［］【】，：＝", "()[][],:=")
_PARTS = re.compile(
    r"""(?P<kept>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|“(?P<double>[^”]*)”|‘(?P<single>[^’]*)’|(?P<other>[^"'“‘]+|.)""",
    re.DOTALL,
)


def halfwidth(text: str) -> str:
    """Return the text with ASCII in place of full-width brackets, commas and quotes.

    Chinese models write these. Texts in quotes do not change.
    """

    def ascii_part(part: re.Match[str]) -> str:
        quoted = part["double"] if part["double"] is not None else part["single"]
        return (
            json.dumps(quoted, ensure_ascii=False)
            if quoted is not None
            else part["kept"] or part["other"].translate(_HALFWIDTH)
        )

    return _PARTS.sub(ascii_part, text)


def _mouse(data: dict[str, Any]) -> dict[str, Any]:
    """Convert buttons and the keys held with them to our names."""
    held = data.get("modifiers")
    if isinstance(held, str):
        held = [part for part in re.split(r"[+\s]+", held) if part]
    if isinstance(held, list | tuple):
        held = [MODIFIERS.get(name.lower(), name) if isinstance(name, str) else name for name in held]
        data = data | {"modifiers": held}
    if data.get("modifiers", ()) is None:
        data = {key: value for key, value in data.items() if key != "modifiers"}
    if "button" in data:
        button = str(data["button"]).lower()
        data = data | {"button": BUTTONS.get(button, button)}
    return data


def _drag(data: dict[str, Any]) -> dict[str, Any]:
    """Return two ends and the points between, also from a ``path`` (OpenAI) or four numbers
    (BrowserGym)."""
    data = dict(data)
    for end, corner in (("start", ("from_x", "from_y")), ("end", ("to_x", "to_y"))):
        if corner[0] in data and corner[1] in data:
            data[end] = [data.pop(corner[0]), data.pop(corner[1])]
    if data.keys() >= {"x", "y", "destination_x", "destination_y"}:  # Gemini's
        data["start"] = [data.pop("x"), data.pop("y")]
        data["end"] = [data.pop("destination_x"), data.pop("destination_y")]
    path = data.get("path")
    if isinstance(path, list | tuple) and len(path) >= 2 and not data.keys() & {"start", "end", "via"}:
        data = {key: value for key, value in data.items() if key != "path"}
        data |= {"start": path[0], "via": path[1:-1], "end": path[-1]}
    data |= {end: _target_of_value(data[end]) for end in ("start", "end") if end in data}
    via = data.get("via")
    return data | {"via": [_point(point) for point in via]} if isinstance(via, list | tuple) else data


def _chord(value: Any) -> Any:
    """Return ``ctrl+a`` for ``["ctrl", "a"]`` and UI-TARS's ``ctrl a``."""
    if isinstance(value, list):
        return "+".join(map(str, value))
    parts = value.split() if isinstance(value, str) else []
    return "+".join(parts) if len(parts) > 1 and all(part.lower() in MODIFIERS for part in parts[:-1]) else value


def _one_more(tab: Any) -> Any:
    if isinstance(tab, str) and tab.strip().isdigit() and len(tab) <= MAX_DIGITS:
        tab = int(tab)
    return tab + 1 if isinstance(tab, int) and not isinstance(tab, bool) else tab


def _wait(name: str, data: dict[str, Any]) -> dict[str, Any]:
    data = dict(data)
    if name in IN_MILLISECONDS and "seconds" in data:
        data["milliseconds"] = data.pop("seconds")
    if isinstance(data.get("milliseconds"), int | float) and "seconds" not in data:
        data["seconds"] = max(data.pop("milliseconds"), 1) / 1000.0
    return data


def _scroll(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """Convert wheel clicks, or lengths in thousandths of the viewport.

    Qwen's ``pixels`` count upwards (and to the left), ``delta`` down. A given direction holds;
    signs decide only without one. Two lengths without a direction are passed on under a name that
    the record refuses.
    """
    data = dict(data)
    if isinstance(data.get("down"), bool):  # browser-use's
        data |= {"direction": "down" if data.pop("down") else "up"}
    if isinstance(data.get("magnitude"), int | float):  # Gemini's, in thousandths
        data["amount"] = _amount(data.pop("magnitude") / GRID)
    given = data.get("direction")
    if isinstance(given, str):
        given = data["direction"] = given.strip().lower()
    clicks, pixels = data.pop("clicks", None), data.pop("pixels", None)
    dx, dy = data.pop("delta_x", None), data.pop("delta_y", None)
    if isinstance(clicks, int | float) and clicks:
        data["amount"] = _amount(clicks * CLICK_SHARE)
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
        # The length along the direction counts.
        along = [length for length in lengths if (length[1] in SIDEWAYS) == (given in SIDEWAYS)]
        lengths = along or lengths
    elif dx and dy:
        return data | {"delta_x beside delta_y": dx}
    if lengths:
        length, direction = max(lengths, key=lambda entry: abs(entry[0]))
        data |= {"direction": direction if given is None else given, "amount": _amount(length / GRID)}
    return data


def _amount(length: float) -> float:
    return min(abs(length), MAX_AMOUNT)
