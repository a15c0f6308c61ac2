"""Tables from the names of other schemes' actions and arguments to ours.

`vocabulary` reads them. Sources: tests/envs/test_vocabularies.py.
"""

from __future__ import annotations

from typing import Any

from envs.types.actions import ACTIONS, WITH_MEMORY

NAMES = {
    "click_at": "click",
    "click_element": "click",
    "click_element_by_index": "click",
    "close": "close_tab",
    "dblclick": "double_click",
    "done": "terminate",
    "drag_and_drop": "drag",
    "fail": "terminate",
    "fill": "type",
    "finish": "answer",
    "finished": "answer",
    "go_back": "back",
    "go_forward": "forward",
    "go_to_url": "goto",
    "goto_url": "goto",
    "handle_dialog": "dialog",
    "hotkey": "press",
    "hover_at": "hover",
    "hscroll": "scroll",
    "input": "type",
    "input_text": "type",
    "insert_text": "type",
    "key": "press",
    "key_press": "press",
    "key_combination": "press",
    "keyboard_insert_text": "type",
    "keyboard_press": "press",
    "keyboard_type": "type",
    "keypress": "press",
    "left_click": "click",
    "left_click_drag": "drag",
    "left_double": "double_click",
    "left_double_click": "double_click",
    "left_drag": "drag",
    "left_single": "click",
    "middle_click": "click",
    "mouse_click": "click",
    "mouse_dblclick": "double_click",
    "mouse_drag_and_drop": "drag",
    "mouse_move": "hover",
    "mouse_upload_file": "upload",
    "move": "hover",
    "move_to": "hover",
    "navigate": "goto",
    "new_page": "new_tab",
    "noop": "wait",
    "open_tab": "new_tab",
    "open_url": "goto",
    "open_web_browser": "wait",
    "page_close": "close_tab",
    "page_focus": "switch_tab",
    "press_key": "press",
    "reload": "refresh",
    "report_infeasible": "terminate",
    "right_click": "click",
    "right_single": "click",
    "screenshot": "wait",
    "scroll_at": "scroll",
    "scroll_document": "scroll",
    "scroll_down": "scroll",
    "scroll_up": "scroll",
    "select_dropdown": "select",
    "select_dropdown_option": "select",
    "select_option": "select",
    "send_keys": "press",
    "send_msg_to_user": "answer",
    "stop": "answer",
    "submit_html": "submit",
    "submit_page": "submit",
    "switch": "switch_tab",
    "tab_close": "close_tab",
    "tab_focus": "switch_tab",
    "tap": "click",
    "type_text": "type",
    "type_text_at": "type",
    "typewrite": "type",
    "uncheck": "check",
    "upload_file": "upload",
    "wait_5_seconds": "wait",
    "write": "type",
}
SQUASHED = {name.replace("_", ""): name for name in (*NAMES, *WITH_MEMORY)}
"""Names without underscores, for ``goBack`` and ``DoubleClick`` in lower case."""

IMPLIED: dict[str, dict[str, Any]] = {
    "done": {"success": None, "files_to_display": None},
    "fail": {"status": "failure"},
    "fill": {"enable_autocomplete_menu": None},
    "finish": {"text": ""},
    "finished": {"text": ""},
    "middle_click": {"button": "middle"},
    "open_web_browser": {"seconds": 0.1},
    "report_infeasible": {"status": "failure", "reason": None},
    "right_click": {"button": "right"},
    "right_single": {"button": "right"},
    "screenshot": {"seconds": 0.1},
    "scroll_down": {"direction": "down"},
    "scroll_up": {"direction": "up"},
    "stop": {"text": ""},
    "type_text_at": {"enter": True},
    "uncheck": {"on": False},
    "wait_5_seconds": {"seconds": 5},
}
"""Arguments that a name of another scheme implies; ``None`` for one that means nothing here."""

FROM_ZERO = frozenset({"page_focus", "tab_focus"})
"""Names that count tabs from 0 (WebArena's and BrowserGym's); our observations count from 1."""

IN_MILLISECONDS = frozenset({"noop"})
"""Names that wait for milliseconds: BrowserGym's ``noop(1000)`` waits for a second."""

BUTTONS = {"wheel": "middle", "1": "left", "2": "middle", "3": "right"}
"""Button names: OpenAI's name of the middle button, and X11's numbers."""

MODIFIERS = {
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

MARKS_TOOL = "web_interaction"
TOOLS = frozenset({"browser", "browser_action", "computer", "computer_use", "step_browser", "web", MARKS_TOOL})
"""Tools whose argument ``action`` is the action's name."""

TARGET = {
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

CLICK = {"keys": "modifiers", "modifier": "modifiers", "text": "modifiers", "mouse_button": "button"}

ARGUMENTS: dict[str, dict[str, str]] = {
    "answer": {"answer": "text", "content": "text", "value": "text", "message": "text"},
    "check": {"checked": "on", "state": "on"},
    "click": CLICK,
    "close_tab": {"tab_id": "tab", "index": "tab", "page_index": "tab"},
    "dialog": {"prompt_text": "text", "value": "text"},
    "double_click": CLICK,
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
        "num_pages": "amount",
        "pages": "amount",
        "step": "clicks",
        "scroll_y": "delta_y",
        "scroll_x": "delta_x",
    },
    "select": {"value": "text", "option": "text", "label": "text", "options": "text"},
    "submit": {"code": "html", "content": "html", "page": "html", "text": "html"},
    "switch_tab": {"tab_id": "tab", "index": "tab", "tab_index": "tab", "page_index": "tab"},
    "terminate": {"state": "status"},
    "triple_click": CLICK,
    "type": {
        "clear_before_typing": "clear",
        "content": "text",
        "message": "text",
        "value": "text",
        "press_enter": "enter",
        "press_enter_after": "enter",
    },
    "upload": {"file": "files", "path": "files", "paths": "files", "filename": "files"},
    "wait": {
        "time": "seconds",
        "duration": "seconds",
        "wait_ms": "milliseconds",
        "ms": "milliseconds",
    },
}

CLICKS = frozenset({"click", "double_click", "triple_click"})
TARGETED = frozenset(name for name, kind in ACTIONS.items() if "element" in kind.model_fields)

COMMENTS = frozenset(
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
"""Keys beside the action that only explain it."""

IGNORED_ARGUMENTS = frozenset({"element_info", "intent", "safety_decision"})
"""Arguments of GLM's and Gemini's calls that only explain the action."""

ARGUMENT_KEYS = ("arguments", "args", "parameters", "params", "action_input", "input")

WRAPPER_KEYS = ("function", "functionCall", "function_call", "action")
"""Keys of an object that may hold the action's object."""

SIDEWAYS = ("left", "right")

MAX_POINT = 200
"""Maximum number of characters of a point that is written as a text."""

MAX_DIGITS = 9
"""Maximum number of digits of a number that is written as a text."""

CLICK_SHARE = 0.1
"""Share of the viewport's height that a "click" of a scroll wheel moves: browsers go about 100 px
of 1000."""
