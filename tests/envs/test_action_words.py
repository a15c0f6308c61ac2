"""Actions without a page: the words of refusals, names of keys, addresses."""

from __future__ import annotations

from typing import Any

import pytest

from envs.actions import ActionError, check_action
from envs.actions.errors import closest_names, name_similarity
from envs.actions.keyboard import KEYS, parse_chord
from envs.actions.navigate import checked_url
from envs.types import (
    Click,
    ErrorCode,
    Invalid,
    Scroll,
    Select,
    Type,
)

from .acting import Seen


def seen(index: int, tag: str, text: str = "", name: str = "", **more: Any) -> Seen:
    return Seen(
        index,
        name,
        tag,
        text,
        **({"point": (1, 1), "options": None, "disabled": False, "backend_node_id": index} | more),
    )


def test_the_lines_that_policies_have_learned() -> None:
    handles = {1: seen(1, "select", options=("Red", "Blue")), 2: seen(2, "button", "Go")}
    lines = {
        Click(element=9): "unknown_element: there is no element 9; choose 1 to 2",
        Type(element=2, text="x"): "not_editable: element 2 is a button; click it",
        Select(element=2, text="x"): "not_a_list: element 2 is a button; select needs a drop-down list",
        Invalid(reason="no action found"): "invalid_action: no action found",
    }
    for action, line in lines.items():
        error = check_action(action, handles)
        assert error is not None and error.line() == line
    assert check_action(Click(element=2), handles) is None and check_action(Scroll(), handles) is None
    error = check_action(Click(element=1), {})
    assert error is not None and error.hint == "the page shows none"


def test_candidates_are_the_closest_names_first() -> None:
    assert closest_names("savv", ["cancel", "save", "saved", "a"]) == ("save", "saved")
    assert closest_names("zzz", ["cancel"]) == ()
    assert name_similarity("Save", "save changes now and for ever") == 0.5


@pytest.mark.parametrize(
    ("text", "held", "key"),
    [
        ("Enter", [], "Enter"),
        ("return", [], "Enter"),
        ("ctrl+shift+T", ["Control", "Shift"], "T"),
        ("Control++", ["Control"], "+"),
        ("+", [], "+"),
        (" ", [], " "),
        ("cmd+space", ["Meta"], " "),
        ("PGDN", [], "PageDown"),
        ("F12", [], "F12"),
        ("Control", [], "Control"),
    ],
)
def test_names_of_keys(text: str, held: list[str], key: str) -> None:
    chord = parse_chord(text)
    assert chord is not None and ([each.key for each in chord.held], chord.key.key) == (held, key)


@pytest.mark.parametrize("text", ["", "Entr", "a+b", "Enter+a", "Control+Entr", "F13", "\u00e9\u00e9"])
def test_what_is_no_key(text: str) -> None:
    assert parse_chord(text) is None


def test_the_keyboard_has_all_of_ascii() -> None:
    assert all(chr(code) in KEYS and KEYS[chr(code)].text == chr(code) for code in range(32, 127))
    assert len({(key.code, key.shifted) for key in KEYS.values()}) == len(KEYS)


class Anywhere:
    """An action context as far as addresses need it."""

    allowed = staticmethod(lambda url: "bad.example" not in url)


@pytest.mark.parametrize(
    ("url", "whole"),
    [
        ("http://a.example/x", "http://a.example/x"),
        (" https://a.example ", "https://a.example"),
        ("a.example/x", "http://a.example/x"),
        ("localhost:8000/x", "http://localhost:8000/x"),
        ("/x?y", "http://here.example/x?y"),
        ("../z", "http://here.example/z"),
        ("?q=1", "http://here.example/dir/page?q=1"),
        ("about:blank", "about:blank"),
        ("javascript:alert(1)", ErrorCode.BLOCKED_HOST),
        ("data:text/html,x", ErrorCode.BLOCKED_HOST),
        ("file:///etc/passwd", ErrorCode.BLOCKED_HOST),
        ("chrome://version", ErrorCode.BLOCKED_HOST),
        ("view-source:http://a.example", ErrorCode.BLOCKED_HOST),
        ("//bad.example/", ErrorCode.BLOCKED_HOST),
        ("http://bad.example/", ErrorCode.BLOCKED_HOST),
        ("http://", ErrorCode.BAD_ACTION),
        ("http://a:99999/", ErrorCode.BAD_ACTION),
        ("http://[::1", ErrorCode.BAD_ACTION),
    ],
)
def test_addresses(url: str, whole: str) -> None:
    found = checked_url(url, "http://here.example/dir/page", Anywhere())  # type: ignore[arg-type]
    assert (found.code if isinstance(found, ActionError) else found) == whole
