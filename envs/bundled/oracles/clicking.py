"""Oracles that only click."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.bundled.oracles.parts import (
    Oracle,
    click,
    click_label,
    labelled,
    ordinal,
    quoted,
    stuck,
    submit,
    tagged,
    wanted,
)
from envs.types import Action, Click, Element, Observation

WIDGET_TAGS = {"text": "input"}
"""MiniWoB's names of widgets, where our tags differ."""


def only_button(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the only button."""
    return submit(seen)


def button_one(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the button ONE."""
    return click_label(seen, "ONE", "button")


def quoted_button(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the button named in quotes."""
    return click_label(seen, quoted(seen)[0], "button") if quoted(seen) else stuck(seen)


def quoted_link(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the link named in quotes."""
    return click_label(seen, quoted(seen)[0], "link") if quoted(seen) else stuck(seen)


def one_then_two(seen: Observation, history: Sequence[Action]) -> Action:
    """Click ONE, then TWO: the focus shows what was pressed."""
    one = labelled(seen, "ONE", "button")
    return click_label(seen, "TWO", "button") if one is not None and one.focused else click(seen, one)


def named_tab(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the tab that the instruction names."""
    return click_label(seen, wanted(seen, r"(Tab #\d+)"), "tab")


def search_tabs(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the link if it is visible, else the next tab. That is the first tab if none is open."""
    link = labelled(seen, quoted(seen)[0], "link")
    tabs = tagged(seen, "tab")
    if link is not None or not tabs:
        return click(seen, link)
    opened = next((place for place, tab in enumerate(tabs) if tab.checked), -1)
    return Click(element=tabs[(opened + 1) % len(tabs)].index)


def search_sections(seen: Observation, history: Sequence[Action]) -> Action:
    """Search sections like tabs, closing an open one if it may hide those below."""
    link = labelled(seen, quoted(seen)[0], "link")
    if link is not None:
        return Click(element=link.index)
    sections = tagged(seen, "tab")
    visited = sum(isinstance(action, Click) for action in history)
    return Click(element=sections[visited % len(sections)].index) if sections else stuck(seen)


def open_then_submit(seen: Observation, history: Sequence[Action]) -> Action:
    """Open the section, then submit."""
    section = next(iter(tagged(seen, "tab")), None)
    return submit(seen) if section is None or section.checked else Click(element=section.index)


def widget(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the first widget of the named kind."""
    name = quoted(seen)[0]
    return click(seen, next(iter(tagged(seen, WIDGET_TAGS.get(name, name))), None))


def option(seen: Observation, history: Sequence[Action]) -> Action:
    """Choose the radio button, then submit."""
    radio = labelled(seen, wanted(seen, r"Select (.*) and click Submit"), "radio")
    return submit(seen) if radio is not None and radio.checked else click(seen, radio)


def checkboxes(seen: Observation, history: Sequence[Action]) -> Action:
    """Tick the named boxes that are not ticked, then submit."""
    names = wanted(seen, r"Select (.*) and click Submit").split(", ")
    for box in tagged(seen, "checkbox"):
        if (box.text in names) != box.checked:
            return Click(element=box.index)
    return submit(seen)


def focus_nth(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the field with the instruction's number; the only one if there is no number."""
    fields = tagged(seen, "input")
    place = max(ordinal(seen.instruction), 1) - 1
    return click(seen, fields[place] if place < len(fields) else None)


def colour(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the box of the named colour."""
    return click_label(seen, wanted(seen, r"the (\w+) colou?red box"), "item")


def shades(seen: Observation, history: Sequence[Action]) -> Action:
    """Select every box of the named colour, then submit."""
    shade = labelled(seen, wanted(seen, r"shades of (\w+)"), "item")
    return submit(seen) if shade is None else click(seen, shade)


def tree(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the name if it is visible, else open a closed folder.

    Outer folders come first: folders inside folders are empty.
    """
    name = labelled(seen, quoted(seen)[0], "item")
    closed = [item for item in tagged(seen, "item") if item.text.startswith("hitarea expandable")]
    return click(seen, name or min(closed, key=lambda item: item.box[0], default=None))


def odd_or_even(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the button that fits the number in each row, then submit.

    The clicks made so far are the number of rows done.
    """
    numbers = [int(text.text) for text in tagged(seen, "text") if re.fullmatch(r"-?\d+", text.text)]
    if len(history) >= len(numbers):
        return submit(seen)
    row = len(history)
    sort = "Even" if numbers[row] % 2 == 0 else "Odd"
    return Click(element=[button for button in tagged(seen, "button") if button.text == sort][row].index)


def greatest(seen: Observation, history: Sequence[Action]) -> Action:
    """Pick the card with the greatest number, then submit."""
    cards = [item for item in tagged(seen, "item") if item.text.isdigit()]
    return submit(seen) if history or not cards else Click(element=max(cards, key=lambda card: int(card.text)).index)


def generate(seen: Observation, history: Sequence[Action]) -> Action:
    """Generate numbers until one fits, then submit."""
    shown = next((text.text for text in tagged(seen, "text") if text.text.isdigit()), "")
    return click_label(seen, "Submit" if shown and _fits(int(shown), seen.instruction) else "Generate", "button")


def _fits(number: int, instruction: str) -> bool:
    limit = re.search(r"(less|greater) than (\d+)", instruction)
    if limit:
        return number < int(limit[2]) if limit[1] == "less" else number > int(limit[2])
    return number % 2 == (1 if "odd" in instruction else 0)


def email_icon(seen: Observation, history: Sequence[Action]) -> Action:
    """Click the star or the trash in the row of the named sender."""
    icon = "trash" if "trash" in seen.instruction else "star"
    rows = email_rows(seen)
    if not rows:
        return stuck(seen)
    top, bottom = rows[0].box[1], rows[0].box[1] + rows[0].box[3]
    inside = [item for item in tagged(seen, "item") if item.text == icon and top <= item.box[1] < bottom]
    return click(seen, inside[0] if inside else None)


def email_rows(seen: Observation) -> list[Element]:
    """Return the visible rows of the inbox by the named sender. Some names have two words."""
    name = wanted(seen, r"email by (.+?) and ")
    return [item for item in tagged(seen, "item") if item.text.startswith(f"{name} ")]


def phone_book(seen: Observation, history: Sequence[Action]) -> Action:
    """Turn pages until the name is shown, then click the detail that was asked for."""
    name = wanted(seen, r"Find (.+?) in ")
    if not any(text.text == name for text in tagged(seen, "text")):
        return click_label(seen, ">", "link")
    place = ("phone", "email", "address").index(wanted(seen, r"their (phone|email|address)"))
    return click(seen, tagged(seen, "link")[place])


CLICKING: dict[str, Oracle] = {
    "click-button": quoted_button,
    "click-button-sequence": one_then_two,
    "click-checkboxes": checkboxes,
    "click-checkboxes-large": checkboxes,
    "click-checkboxes-transfer": checkboxes,
    "click-collapsible": open_then_submit,
    "click-collapsible-nodelay": open_then_submit,
    "click-collapsible-2": search_sections,
    "click-collapsible-2-nodelay": search_sections,
    "click-color": colour,
    "click-dialog": only_button,
    "click-dialog-2": quoted_button,
    "click-link": quoted_link,
    "click-option": option,
    "click-shades": shades,
    "click-tab": named_tab,
    "click-tab-2": search_tabs,
    "click-tab-2-easy": search_tabs,
    "click-tab-2-hard": search_tabs,
    "click-tab-2-medium": search_tabs,
    "click-test": only_button,
    "click-test-2": button_one,
    "click-test-transfer": button_one,
    "click-widget": widget,
    "email-inbox-delete": email_icon,
    "email-inbox-important": email_icon,
    "find-greatest": greatest,
    "focus-text": focus_nth,
    "focus-text-2": focus_nth,
    "generate-number": generate,
    "navigate-tree": tree,
    "odd-or-even": odd_or_even,
    "phone-book": phone_book,
    "unicode-test": quoted_button,
}
"""Oracles of kinds that need no typing."""
