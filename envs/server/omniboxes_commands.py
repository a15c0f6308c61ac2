"""Commands of the Omniboxes protocol: those that act as our actions, those that read as their data.

Elements have the numbers of the observation, which are those of the marks on the screenshot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from envs.types import Element, Observation

VIEWPORT = (1280, 768)
"""Width and height of Omniboxes' pages in CSS pixels."""

PAGE = VIEWPORT[1] - 50
"""CSS pixels of a full page's scroll in Omniboxes."""

SHARE = 0.8
"""Share of a scrolled area's height that ``hover_and_scroll_coords`` scrolls in Omniboxes."""

KEYS = {
    "alt": "Alt",
    "arrowdown": "ArrowDown",
    "arrowleft": "ArrowLeft",
    "arrowright": "ArrowRight",
    "arrowup": "ArrowUp",
    "backspace": "Backspace",
    "cmd": "Meta",
    "ctrl": "Control",
    "delete": "Delete",
    "end": "End",
    "enter": "Enter",
    "esc": "Escape",
    "home": "Home",
    "insert": "Insert",
    "option": "Alt",
    "pagedown": "PageDown",
    "pageup": "PageUp",
    "shift": "Shift",
    "space": "Space",
    "super": "Meta",
    "tab": "Tab",
    "win": "Meta",
}
"""Names of keys that Omniboxes takes besides the browser's own."""

Arguments = Mapping[str, Any]
Actions = list[dict[str, Any]]


class CommandError(ValueError):
    """A command is unknown, or has wrong arguments."""


def actions_of(command: str, arguments: Arguments) -> Actions:
    """Return the actions that carry out a command, as dictionaries that `read_action` reads.

    Raises:
        CommandError: There is no such command, or an argument is missing or wrong.
    """
    make = ACTIONS.get(command)
    if make is None:
        raise CommandError(f"no such command: {command[:100]!r}; there are {', '.join([*ACTIONS, *READERS])}")
    try:
        return make(arguments)
    except KeyError as error:
        raise CommandError(f"{command}: {error.args[0]} is missing") from error
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CommandError(f"{command}: {error}") from error


def _point(arguments: Arguments) -> dict[str, Any]:
    """Return pixels as thousandths of the viewport."""
    x, y = float(arguments["x"]), float(arguments["y"])
    return {"at": (x / VIEWPORT[0] * 1000, y / VIEWPORT[1] * 1000)}


def _element(arguments: Arguments) -> dict[str, Any]:
    return {"element": int(arguments["id"])}


def _typed(arguments: Arguments, target: dict[str, Any]) -> Actions:
    clear, enter = bool(arguments.get("delete_existing", False)), bool(arguments.get("press_enter", True))
    return [{"type": "type", **target, "text": str(arguments["value"]), "clear": clear, "enter": enter}]


def _pressed(arguments: Arguments) -> Actions:
    keys = [str(key) for key in arguments["keys"]]
    return [{"type": "press", "key": "+".join(KEYS.get(key.lower(), key) for key in keys)}]


def _scrolled(direction: str) -> Callable[[Arguments], Actions]:
    def scroll(arguments: Arguments) -> Actions:
        pixels = PAGE if arguments.get("full_page", False) else float(arguments.get("amount", 200))
        return [{"type": "scroll", "direction": direction, "amount": pixels / VIEWPORT[1]}]

    return scroll


def _scrolled_there(arguments: Arguments) -> Actions:
    direction = str(arguments.get("direction", "down")).lower()
    return [{"type": "scroll", **_point(arguments), "direction": direction, "amount": SHARE}]


def _scrolled_element(arguments: Arguments) -> Actions:
    direction = str(arguments["direction"]).lower()
    return [{"type": "scroll", **_element(arguments), "direction": direction, "amount": 1.0}]


ACTIONS: dict[str, Callable[[Arguments], Actions]] = {
    "visit_page": lambda given: [{"type": "goto", "url": str(given["url"])}],
    "back": lambda given: [{"type": "back"}],
    "click_coords": lambda given: [{"type": "click", **_point(given)}],
    "click_id": lambda given: [{"type": "click", **_element(given)}],
    "fill_coords": lambda given: _typed(given, _point(given)),
    "fill_id": lambda given: _typed(given, _element(given)),
    "select_option": lambda given: [{"type": "click", **_element(given)}],
    "hover_id": lambda given: [{"type": "hover", **_element(given)}],
    "hover_coords": lambda given: [{"type": "hover", **_point(given)}],
    "hover_and_scroll_coords": _scrolled_there,
    "keypress": _pressed,
    "page_down": _scrolled("down"),
    "page_up": _scrolled("up"),
    "scroll_id": _scrolled_element,
    "sleep": lambda given: [{"type": "wait", "seconds": float(given["duration"])}],
    "tab_and_enter": lambda given: [{"type": "press", "key": "Tab"}, {"type": "press", "key": "Enter"}],
}
"""Commands that act."""


def _shown(observation: Observation) -> list[Element]:
    """Return the elements that have marks, and those out of view."""
    return [element for element in observation.elements if element.tag != "text"]


def _regions(observation: Observation) -> dict[str, Any]:
    regions = {}
    for element in _shown(observation):
        x, y, width, height = element.box
        box = {"x": x, "y": y, "width": width, "height": height}
        edges = {"left": x, "top": y, "right": x + width, "bottom": y + height}
        names = {"tag_name": element.tag, "role": element.tag, "aria_name": element.text}
        regions[str(element.index)] = {**names, "v_scrollable": False, "rects": [{**box, **edges}]}
    return regions


def _screenshot_info(observation: Observation) -> dict[str, Any]:
    outside = [element for element in _shown(observation) if not element.in_viewport]
    visible = [str(element.index) for element in _shown(observation) if element.in_viewport]
    return {
        "visible_rects": visible,
        "rects_above": [str(element.index) for element in outside if element.box[1] < 0],
        "rects_below": [str(element.index) for element in outside if element.box[1] >= 0],
        "interactive_regions": _regions(observation),
        "id_mapping": {number: number for number in visible},
    }


def _text(observation: Observation, arguments: Arguments) -> dict[str, Any]:
    words = observation.words
    lines = [element.text for element in observation.elements] if words is None else list(words)
    try:
        count = int(arguments.get("n_lines", 100))
    except (TypeError, ValueError, OverflowError) as error:
        raise CommandError(f"get_webpage_text: n_lines: {error}") from error
    return {"text": "\n".join([line for line in lines if line.strip()][: max(0, count)])}


READERS: dict[str, Callable[[Observation, Arguments], dict[str, Any]]] = {
    "get_webpage_text": _text,
    # A page without a title is a page: WebGym's client waits for one in vain.
    "get_page_metadata": lambda seen, given: {"title": seen.title.strip() or seen.url, "url": seen.url},
    "get_interactive_rects": lambda seen, given: _regions(seen),
    "get_screenshot_info": lambda seen, given: _screenshot_info(seen),
    "screenshot": lambda seen, given: {"status": "screenshot_taken"},
}
"""Commands that read."""
