"""Oracles that type and choose."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.bundled.oracles.parts import (
    FIELDS,
    Oracle,
    click,
    click_label,
    fill,
    labelled,
    ordinal,
    quoted,
    stuck,
    submit,
    tagged,
    wanted,
)
from envs.types import Action, Click, Element, Observation, Select, Type


def _fields(seen: Observation) -> list[Element | None]:
    return [*tagged(seen, *FIELDS)]


def enter_quoted(seen: Observation, history: Sequence[Action]) -> Action:
    """Type the quoted text into every field, then submit."""
    text = quoted(seen)[0]
    return fill(seen, [(field, text) for field in _fields(seen)], submit(seen))


def enter_in_case(seen: Observation, history: Sequence[Action]) -> Action:
    """Type the quoted text in the requested case, then submit."""
    text = quoted(seen)[0]
    text = text.upper() if "upper case" in seen.instruction else text.lower()
    return fill(seen, [(field, text) for field in _fields(seen)], submit(seen))


def enter_shown(seen: Observation, history: Sequence[Action]) -> Action:
    """Type the letters shown on the page, then submit."""
    text = "".join(letter.text for letter in tagged(seen, "text"))
    return fill(seen, [(field, text) for field in _fields(seen)], submit(seen))


def login(seen: Observation, history: Sequence[Action]) -> Action:
    """Type name and password, then click the button. First cancel a pop-up that asks to leave."""
    cancel = labelled(seen, "Cancel", "button")
    if cancel is not None:
        return Click(element=cancel.index)
    texts = quoted(seen)
    return fill(seen, list(zip(_fields(seen), texts, strict=False)), submit(seen))


def choose(seen: Observation, history: Sequence[Action]) -> Action:
    """Choose the option in the list, then submit."""
    label = wanted(seen, r"Select (.*) from the list")
    lists = tagged(seen, "select")
    if lists and lists[0].value != label[:24].strip():
        return Select(element=lists[0].index, text=label)
    return submit(seen)


def arithmetic(seen: Observation, history: Sequence[Action]) -> Action:
    """Compute ``a op b =``, then submit."""
    for shown in tagged(seen, "text"):
        sum_ = re.fullmatch(r"(\d+) ([-+x]) (\d+) =", shown.text)
        if sum_:
            return fill(seen, [(_fields(seen)[0], str(_work_out(int(sum_[1]), sum_[2], int(sum_[3]))))], submit(seen))
    return stuck(seen)


def _work_out(a: int, operator: str, b: int) -> int:
    return a + b if operator == "+" else a - b if operator == "-" else a * b


def algebra(seen: Observation, history: Sequence[Action]) -> Action:
    """Solve ``x op a = b`` or ``a op x = b``, then submit."""
    for shown in tagged(seen, "text"):
        equation = re.fullmatch(r"(\w+) ([-+]) (\w+) = (-?\d+)", shown.text)
        if equation:
            return fill(seen, [(_fields(seen)[0], str(_solve(*equation.groups())))], submit(seen))
    return stuck(seen)


def _solve(left: str, operator: str, right: str, result: str) -> int:
    if left == "x":
        return int(result) - int(right) if operator == "+" else int(result) + int(right)
    return int(result) - int(left) if operator == "+" else int(left) - int(result)


def movie_search(seen: Observation, history: Sequence[Action]) -> Action:
    """Fill genre, director and year into the fields beside these words, then search."""
    genre, name, year = re.findall(r"for (.*) movies directed by (.*) from year (\d+)", seen.instruction)[0]
    wishes: list[tuple[Element | None, str]] = []
    for field in tagged(seen, "input"):
        title = field.text or _beside(seen, field)
        text = genre if "Genre" in title else name if "Director" in title else year
        wishes.append((field, text))
    buttons = tagged(seen, "button", "item")
    return fill(seen, wishes, click(seen, buttons[-1] if buttons else None))


def _beside(seen: Observation, field: Element) -> str:
    """Return the nearest text: left of the field, or directly above or below it."""
    texts = tagged(seen, "text")
    x, y = field.box[0], field.box[1] + field.box[3] / 2

    def distance(text: Element) -> float:
        return abs(text.box[1] + text.box[3] / 2 - y) + abs(text.box[0] - x) / 100

    words = [text for text in texts if re.search("Genre|Director|Year|Released", text.text)]
    return min(words, key=distance).text if words else ""


def guess(seen: Observation, history: Sequence[Action]) -> Action:
    """Type and submit the numbers from 0 up."""
    field = _fields(seen)[0]
    if history and isinstance(history[-1], Type):
        return submit(seen)
    number = sum(isinstance(action, Type) for action in history)
    return stuck(seen) if field is None else Type(element=field.index, text=str(number))


def radio_and_number(seen: Observation, history: Sequence[Action]) -> Action:
    """Choose the nth radio button, type a number into the mth field, then submit."""
    parts = seen.instruction.split(" and enter ")
    radios, fields = tagged(seen, "radio"), tagged(seen, "input")
    radio = radios[ordinal(parts[0]) - 1]
    if not radio.checked:
        return Click(element=radio.index)
    return fill(seen, [(fields[ordinal(parts[1]) - 1], quoted(seen)[0])], submit(seen))


def search_engine(seen: Observation, history: Sequence[Action]) -> Action:
    """Search, turn to the page of the nth result, and click it. A page has three results."""
    field = next(iter(tagged(seen, "input")), None)
    typed = any(isinstance(action, Type) for action in history)
    if not typed or len(history) < 2:
        return fill(seen, [(field, quoted(seen)[0])], click_label(seen, "Search", "button"))
    place = ordinal(seen.instruction) - 1
    turned = len(history) - 2
    if turned < place // 3:
        return click_label(seen, ">", "link")
    results = [link for link in tagged(seen, "link") if not re.fullmatch(r"[<>]|\d+", link.text)]
    return click(seen, results[place % 3] if place % 3 < len(results) else None)


FORMS: dict[str, Oracle] = {
    "choose-list": choose,
    "enter-password": enter_quoted,
    "enter-text": enter_quoted,
    "enter-text-2": enter_in_case,
    "enter-text-dynamic": enter_quoted,
    "form-sequence-2": radio_and_number,
    "guess-number": guess,
    "login-user": login,
    "login-user-popup": login,
    "multi-layouts": movie_search,
    "multi-orderings": movie_search,
    "search-engine": search_engine,
    "simple-algebra": algebra,
    "simple-arithmetic": arithmetic,
    "text-transform": enter_shown,
}
"""Oracles of kinds that need typing or choosing."""
