"""Key events of a US keyboard for CDP, by names of keys and chords, and how they are sent.

The events are parameters of ``Input.dispatchKeyEvent``. Codes are those of the W3C UI Events
specifications (``KeyboardEvent.key``, ``.code``) and of Windows virtual keys, which browsers report
as ``keyCode``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from envs.actions.pace import HAND_MS, KEY_MS, share

if TYPE_CHECKING:
    from envs.actions.context import ActionContext

KEY_EVENT = "Input.dispatchKeyEvent"

MODIFIERS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
"""Bits of CDP's ``modifiers``. Keyboards have two of each of these keys; ours is the left one."""

_NAMED = {
    "Alt": 18,
    "ArrowDown": 40,
    "ArrowLeft": 37,
    "ArrowRight": 39,
    "ArrowUp": 38,
    "Backspace": 8,
    "CapsLock": 20,
    "ContextMenu": 93,
    "Control": 17,
    "Delete": 46,
    "End": 35,
    "Enter": 13,
    "Escape": 27,
    "Home": 36,
    "Insert": 45,
    "Meta": 91,
    "PageDown": 34,
    "PageUp": 33,
    "Pause": 19,
    "Shift": 16,
    "Tab": 9,
    **{f"F{number}": 111 + number for number in range(1, 13)},
}
"""Keys without a character, with their virtual key codes."""

_PUNCTUATION = {
    "Backquote": ("`~", 192),
    "Minus": ("-_", 189),
    "Equal": ("=+", 187),
    "BracketLeft": ("[{", 219),
    "BracketRight": ("]}", 221),
    "Backslash": ("\\|", 220),
    "Semicolon": (";:", 186),
    "Quote": ("'\"", 222),
    "Comma": (",<", 188),
    "Period": (".>", 190),
    "Slash": ("/?", 191),
}
"""Characters without and with Shift, and the virtual key code, by ``code``."""

_SHIFTED_DIGITS = ")!@#$%^&*("

_ALIASES = {
    "cmd": "Meta",
    "command": "Meta",
    "controlormeta": "Control",
    "ctrl": "Control",
    "del": "Delete",
    "down": "ArrowDown",
    "esc": "Escape",
    "kp_enter": "Enter",
    "left": "ArrowLeft",
    "next": "PageDown",
    "option": "Alt",
    "page_down": "PageDown",
    "page_up": "PageUp",
    "pgdn": "PageDown",
    "pgup": "PageUp",
    "plus": "+",
    "prior": "PageUp",
    "return": "Enter",
    "right": "ArrowRight",
    "space": " ",
    "spacebar": " ",
    "super": "Meta",
    "up": "ArrowUp",
    "win": "Meta",
}
"""Other names in use (xdotool's, pyautogui's), in lower case."""


@dataclass(frozen=True)
class Key:
    """Key of the keyboard."""

    key: str
    """Value of ``KeyboardEvent.key``: a character, or a name such as ``Enter``."""
    code: str
    """Value of ``KeyboardEvent.code``; empty for characters that the keyboard does not have."""
    virtual: int
    text: str = ""
    """Text that it writes."""
    shifted: bool = False
    """True when its character needs Shift."""


def _table() -> dict[str, Key]:
    keys = {name: Key(name, f"{name}Left" if name in MODIFIERS else name, code) for name, code in _NAMED.items()}
    keys["Enter"] = Key("Enter", "Enter", 13, "\r")
    keys[" "] = Key(" ", "Space", 32, " ")
    for digit, sign in enumerate(_SHIFTED_DIGITS):
        keys[str(digit)] = Key(str(digit), f"Digit{digit}", 48 + digit, str(digit))
        keys[sign] = Key(sign, f"Digit{digit}", 48 + digit, sign, shifted=True)
    for letter in "abcdefghijklmnopqrstuvwxyz":
        code, upper = f"Key{letter.upper()}", letter.upper()
        keys[letter] = Key(letter, code, ord(upper), letter)
        keys[upper] = Key(upper, code, ord(upper), upper, shifted=True)
    for code, (pair, virtual) in _PUNCTUATION.items():
        plain, other = pair[0], pair[1]
        keys[plain] = Key(plain, code, virtual, plain)
        keys[other] = Key(other, code, virtual, other, shifted=True)
    return keys


KEYS = _table()
"""All keys by their ``key``."""

_WITH_SHIFT = {
    **{letter: letter.upper() for letter in "abcdefghijklmnopqrstuvwxyz"},
    **{str(digit): sign for digit, sign in enumerate(_SHIFTED_DIGITS)},
    **{pair[0]: pair[1] for pair, _ in _PUNCTUATION.values()},
}
"""Characters with Shift, by those without."""

_BY_NAME = {name.casefold(): name for name in KEYS if len(name) > 1}


@dataclass(frozen=True)
class Chord:
    """Key with held modifiers, in the order in which they go down."""

    held: tuple[Key, ...]
    key: Key


def pastes(chord: Chord) -> bool:
    """Return True if the chord reads the clipboard, which all episodes of a Chromium share."""
    held = {key.key for key in chord.held}
    return (chord.key.key.lower() == "v" and bool(held & {"Control", "Meta"})) or (
        chord.key.key == "Insert" and "Shift" in held
    )


def character(text: str) -> Key:
    """Return the key of one character.

    Characters that the keyboard does not have get no key code. A line break is Enter, a tab is Tab.
    """
    named = {"\n": "Enter", "\r": "Enter", "\t": "Tab"}.get(text, text)
    return KEYS.get(named) or Key(text, "", 0, text)


def parse_chord(text: str) -> Chord | None:
    """Return the chord that ``Control+a``, ``ctrl+shift+ArrowLeft``, ``Enter`` or ``+`` names.

    The answer is ``None`` if the text names no key.
    """
    *names, last = text.split("+") if not text.endswith("+") else [*text[:-1].rstrip("+").split("+"), "+"]
    keys = [_find(name) for name in names if name != ""]
    held = tuple(dict.fromkeys(modifier for modifier in keys if modifier is not None and modifier.key in MODIFIERS))
    key = _find(last)
    if key is None or len(held) < len({*keys}):
        return None
    if held and len(last) == 1 and last.isalpha():
        key = KEYS.get(last.lower(), key)  # a letter means its key: Control+A is Control+a
    if any(modifier.key == "Shift" for modifier in held):
        key = KEYS[_WITH_SHIFT.get(key.key, key.key)] if key.key in KEYS else key
    return Chord(held, key)


def events(chord: Chord) -> list[dict[str, Any]]:
    """Return the key events of pressing and releasing a chord, in order."""
    keys = list(chord.held)
    if chord.key.shifted and not any(key.key == "Shift" for key in keys):
        keys.append(KEYS["Shift"])
    if chord.key.key in MODIFIERS:
        return [event for half in held_down([*keys, chord.key]) for event in half]
    down, up = held_down(keys)
    return [*down, *stroke(chord.key, modifier_bits(keys)), *up]


def select_all() -> list[dict[str, Any]]:
    """Return the key events of Control and A, which select all content of the focused element.

    The command is named as well: Chromium's own keyboard shortcuts are those of its operating
    system.
    """
    control, a_key, *rest = events(Chord((KEYS["Control"],), KEYS["a"]))
    return [control, {**a_key, "commands": ["selectAll"]}, *rest]


def typed(text: str) -> list[list[dict[str, Any]]]:
    """Return the key events of typing ``text``, character by character.

    Shift goes down before a character that needs it and up after it.
    """
    sent: list[list[dict[str, Any]]] = []
    down, up = held_down([KEYS["Shift"]])
    shift = False
    for key in map(character, text):
        before = () if key.shifted == shift else up if shift else down
        shift = key.shifted
        sent.append([*before, *stroke(key, MODIFIERS["Shift"] if shift else 0)])
    if shift:
        sent[-1] += up
    return sent


def held_down(keys: Sequence[Key]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the key events of pressing modifiers, in order, and those of releasing them."""
    down = [
        {"type": "rawKeyDown", **_fields(key), "modifiers": modifier_bits(keys[: place + 1])}
        for place, key in enumerate(keys)
    ]
    up = [{"type": "keyUp", **_fields(key), "modifiers": modifier_bits(keys[:place])} for place, key in enumerate(keys)]
    return down, up[::-1]


def modifier_bits(keys: Iterable[Key]) -> int:
    """Return CDP's ``modifiers`` while these keys are held."""
    return sum({MODIFIERS[key.key] for key in keys})


def stroke(key: Key, modifiers: int = 0) -> list[dict[str, Any]]:
    """Return the events of one key, down and up.

    With Control, Alt or Meta held nothing is written: it is a command.
    """
    common = {**_fields(key), "modifiers": modifiers}
    if key.text and not modifiers & ~MODIFIERS["Shift"]:
        return [{"type": "keyDown", "text": key.text, **common}, {"type": "keyUp", **common}]
    return [{"type": "rawKeyDown", **common}, {"type": "keyUp", **common}]


async def press(context: ActionContext, chord: Chord) -> None:
    """Press and release a chord, with a person's time between its keys."""
    await _spaced(context, events(chord), KEY_MS)


async def press_enter(context: ActionContext) -> None:
    """Press Enter after typing, when the page has reacted to the text."""
    await context.clock.give(HAND_MS)
    await press(context, Chord((), KEYS["Enter"]))


async def type_keys(context: ActionContext, text: str) -> None:
    """Type ``text`` into the focused element; each key is held for a moment, as games need it."""
    sent = [event for keys in typed(text) for event in keys]
    await _spaced(context, sent, share(KEY_MS, len(sent)))


async def send_keys(context: ActionContext, keys: Sequence[dict[str, Any]]) -> None:
    """Send key events to the focused element, in order and at once."""
    await asyncio.gather(*(context.cdp.send(KEY_EVENT, key) for key in keys))


async def _spaced(context: ActionContext, keys: Sequence[dict[str, Any]], pause: float) -> None:
    """Send key events, with ``pause`` milliseconds of the page's time between each two."""
    for number, key in enumerate(keys):
        if number:
            await context.clock.give(pause)
        await context.cdp.send(KEY_EVENT, key)


def _find(name: str) -> Key | None:
    if len(name) == 1:
        return KEYS.get(name)
    bare = name.strip()
    known = _BY_NAME.get(bare.casefold()) or _ALIASES.get(bare.casefold())
    return KEYS[known] if known else KEYS.get(bare)


def _fields(key: Key) -> dict[str, Any]:
    fields: dict[str, Any] = {"key": key.key}
    if key.code:
        fields |= {"code": key.code, "windowsVirtualKeyCode": key.virtual}
    return fields | ({"location": 1} if key.key in MODIFIERS else {})  # the left key
