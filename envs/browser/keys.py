"""Trusted mouse and keyboard events through CDP.

The messages of one gesture are sent without waiting for each other: Chromium handles them in order, and one round trip
is paid instead of one per event. A page sees exactly what a person's mouse and keyboard give (``isTrusted`` is true).
"""

from __future__ import annotations

import asyncio
from typing import Any

from envs.browser.cdp import Cdp

KEYS = {"Home": 36, "ArrowDown": 40, "Backspace": 8}
"""Named keys that are used, with their virtual key codes (DOM ``keyCode``)."""

MAX_TYPED = 200
"""Characters typed key by key; a longer text is inserted at once, as a paste, to bound the number of messages."""


async def move(cdp: Cdp, x: float, y: float) -> None:
    """Move the mouse to a point of the viewport, in CSS pixels."""
    await cdp.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})


async def click(cdp: Cdp, x: float, y: float) -> None:
    """Move to a point, press and release the left button."""
    press = {"x": x, "y": y, "button": "left", "clickCount": 1}
    await _all(
        cdp,
        "Input.dispatchMouseEvent",
        {"type": "mouseMoved", "x": x, "y": y},
        {"type": "mousePressed", "buttons": 1, **press},
        {"type": "mouseReleased", "buttons": 0, **press},
    )


async def replace_text(cdp: Cdp, text: str) -> None:
    """Select everything in the focused field and type ``text`` over it; an empty text clears the field."""
    select = {"key": "a", "code": "KeyA", "windowsVirtualKeyCode": 65, "modifiers": 2}
    events = [{"type": "rawKeyDown", "commands": ["selectAll"], **select}, {"type": "keyUp", **select}]
    if not text:
        events += _named("Backspace")
    elif len(text) <= MAX_TYPED:
        events += [event for character in text for event in _character(character)]
    await _all(cdp, "Input.dispatchKeyEvent", *events)
    if len(text) > MAX_TYPED:
        await cdp.send("Input.insertText", {"text": text})


async def choose_option(cdp: Cdp, index: int) -> None:
    """In the focused drop-down list, go to its first option and then ``index`` options down."""
    await _all(cdp, "Input.dispatchKeyEvent", *_named("Home"), *(e for _ in range(index) for e in _named("ArrowDown")))


def _named(key: str) -> list[dict[str, Any]]:
    event = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key]}
    return [{"type": "rawKeyDown", **event}, {"type": "keyUp", **event}]


def _character(character: str) -> list[dict[str, Any]]:
    if character == "\n":
        enter = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        return [{"type": "keyDown", "text": "\r", **enter}, {"type": "keyUp", **enter}]
    event: dict[str, Any] = {"key": character}
    if character.isascii() and (character.isalnum() or character == " "):
        # Only for these is the virtual key code the character's own; for others it depends on the keyboard's layout.
        event["windowsVirtualKeyCode"] = ord(character.upper())
    return [{"type": "keyDown", "text": character, **event}, {"type": "keyUp", **event}]


async def _all(cdp: Cdp, method: str, *params: dict[str, Any]) -> None:
    await asyncio.gather(*(cdp.send(method, each) for each in params))
