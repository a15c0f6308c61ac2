"""Writes the user turn's text: what the policy reads beside the screenshot.

One function, so that pre-training, demonstrations and rollouts see the same text::

    Page:
    [1] textbox "Username" value "juan"
    [2] checked checkbox "xK3f"
    [3] button "Login"
    Done: type [1] "juan"
    Task: Enter the username "juan" and press login.

The task comes last: with causal attention its tokens can attend to the labels. Page text is
untrusted: text that a chat template or a multimodal plugin would take for a control token is broken
up first.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from envs.types import Element, Memory, MemoryEntry, Observation, break_control_tokens

SHOWN_ACTIONS = 3
"""Number of earlier actions that the prompt repeats; the page's state shows the effect of older
ones."""

MEMORY_BUDGET = 1000
"""Largest number of characters of remembered entries in a prompt: some 300 tokens."""

CUT = "… (cut)"
"""Ending of an entry that was cut to fit."""

ObservationMode = Literal["text", "set_of_marks", "coordinates"]
"""Form in which a page is shown to the policy."""

OFFERS = {"submit": '{"action": "submit", "html": "<!DOCTYPE html>…"} hands in the whole page and ends the episode'}
"""Lines that describe the actions that only some sites take; a policy knows the others."""

_ROLES = {"input": "textbox"}
"""Names of elements in the prompt, where they differ from the observation's tag."""


def user_text(
    observation: Observation,
    history: Sequence[str] = (),
    mode: ObservationMode = "text",
    *,
    memory: Memory | None = None,
    memory_budget: int = MEMORY_BUDGET,
) -> str:
    """Return the user turn's text.

    In this order: the page, alerts, a dialog and tabs, the memory, the last actions, actions that
    only this site takes, the error of the last action, and the task, each on its own line.

    Args:
        history: Responses of the episode so far, oldest first.
        mode: ``text`` shows the page's text where the observation has one, else its elements;
            ``set_of_marks`` the elements whose numbers are on the screenshot; ``coordinates`` the
            screenshot alone.
        memory: Memory of the episode, or ``None`` if it has none: then the text does not mention
            it.
        memory_budget: Largest number of characters of the entries.
    """
    lines = _page(observation, mode)
    lines += [f"Alert: {one_line(notice)}" for notice in observation.notices]
    if observation.dialog:
        lines.append(f"Dialog: {one_line(observation.dialog)}")
    if observation.tabs:
        lines.append(
            "Tabs: " + ", ".join(f"{tab.number}{' (shown)' if tab.active else ''}" for tab in observation.tabs)
        )
    if memory is not None:
        lines += memory_lines(memory, memory_budget)
    if history:
        lines.append("Done: " + "; ".join(one_line(response) for response in history[-SHOWN_ACTIONS:]))
    lines += [f"Action: {OFFERS[name]}" for name in observation.offers]
    if observation.error:
        lines.append(f"Error: {one_line(observation.error)}")
    lines.append(f"Task: {one_line(observation.instruction)}")
    return "\n".join(lines)


def memory_lines(memory: Memory, budget: int) -> list[str]:
    """Return the memory's lines: how to change it, and its newest entries, oldest first.

    The first line counts the entries that do not fit.

    Args:
        budget: Largest number of characters of the entries.
    """
    shown: list[str] = []
    for entry in reversed(memory):
        line = _entry_line(entry)
        if len(line) > budget:
            if shown:
                break
            line = line[: max(budget - len(CUT), 0)] + CUT  # of the newest entry as much as fits
        budget -= len(line)
        shown.append(line)
    left_out = len(memory) - len(shown)
    hidden = "" if not left_out else f", {left_out} older not shown"
    count = f"{len(memory)} kept" if memory else "empty"
    return [f'Memory ({count}{hidden}; remember [key] "value", forget [key]):', *reversed(shown)]


def _entry_line(entry: MemoryEntry) -> str:
    """Return an entry on one line: ``total = "42.50"``.

    Quotes are escaped and control tokens broken up.
    """
    return f"{one_line(entry.key)} = {json.dumps(one_line(entry.value), ensure_ascii=False)}"


def _page(observation: Observation, mode: ObservationMode) -> list[str]:
    if mode == "coordinates":
        return ["Page: see the screenshot; points are 0 to 1000 from its left and from its top."]
    if mode == "text" and observation.text:
        return ["Page:", *(one_line(line) for line in observation.text.split("\n"))]
    return ["Page:", *(element_line(element) for element in observation.elements)]


def element_line(element: Element) -> str:
    """Return an element's line, as ``[2] checked checkbox "xK3f"``.

    With its value, ``[1] textbox "Username" value "juan"``; then the text written on it and its
    states.
    """
    checked = "checked " if element.checked else ""
    shown = "***" if element.tag == "password" else one_line(element.value)
    value = f' value "{shown}"' if element.value else ""
    written = f' showing "{one_line(element.written)}"' if element.written else ""
    states = "".join(f" {one_line(state)}" for state in element.states)
    return f'[{element.index}] {checked}{_ROLES.get(element.tag, element.tag)} "{one_line(element.text)}"{written}{value}{states}'


def one_line(text: str) -> str:
    """Fold white space to single spaces and break up control tokens."""
    return break_control_tokens(" ".join(text.split()))
