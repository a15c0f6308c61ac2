"""The page's time goes on between the keys of one action, as a person's does, and what is due then
runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envs.types import Press, Type

from .due import Row, script, wrong


def boxes(moves_on: str, event: str = "input") -> str:
    """A code of six digits whose focus moves on; ``moves_on`` calls ``f``."""
    return "<p id=boxes></p>" + script(
        "for (let k = 0; k < 6; k++) { const i = document.createElement('input'); i.maxLength = 1; i.style.width = '30px'; boxes.append(i);"
        f"i.addEventListener('{event}', (e) => {{ const f = () => i.nextSibling?.focus(); if (i.value) {{ {moves_on} }} }}) }}",
        "[...boxes.children].map((i) => i.value || '_').join('')",
    )


FIELD = "<input id=field style='width:200px'>"
AREA = "<textarea id=field rows=5></textarea>"
CODE = [Type(element=1, text="123456")]
HELLO = [Type(element=1, text="hello")]
LONG = "The quick brown fox jumps over the lazy dog. " * 8

TYPING: dict[str, Row] = {
    "focus moves on at once": (boxes("f()"), CODE, "123456"),
    "focus moves on in a timer": (boxes("setTimeout(f)"), CODE, "123456"),
    "focus moves on after 50 ms": (boxes("setTimeout(f, 50)"), CODE, "123456"),
    "focus moves on in a frame": (boxes("requestAnimationFrame(f)"), CODE, "123456"),
    "focus moves on in two frames": (boxes("requestAnimationFrame(() => requestAnimationFrame(f))"), CODE, "123456"),
    "focus moves on in a promise": (boxes("Promise.resolve().then(f)"), CODE, "123456"),
    "focus moves on in a message": (
        boxes("const c = new MessageChannel(); c.port1.onmessage = f; c.port2.postMessage(0)"),
        CODE,
        "123456",
    ),
    "focus moves on when idle": (boxes("requestIdleCallback(f)"), CODE, "123456"),
    "focus moves on after a request": (boxes("fetch(location.href).then(f)"), CODE, "123456"),
    "focus moves on after the key is up": (boxes("setTimeout(f)", "keyup"), CODE, "123456"),
    "focus moves on by a poll": (
        "<p id=boxes><input maxlength=1><input maxlength=1><input maxlength=1></p>"
        + script(
            "setInterval(() => { const a = document.activeElement; if (a.value && a.nextSibling) a.nextSibling.focus() }, 40)",
            "[...boxes.children].map((i) => i.value).join('')",
        ),
        [Type(element=1, text="123")],
        "123",
    ),
    "a pending timer takes what is there": (
        FIELD + script("field.onclick = () => setTimeout(() => { seen = field.value }, 1000); let seen", "seen.length"),
        [Type(element=1, text="a text that takes more than a second")],
        1,
    ),
    "the field is made anew": (
        "<p id=p><input id=field></p>"
        + script(
            "p.addEventListener('input', (e) => { const old = e.target, v = old.value; if (v.length < 3) setTimeout(() => {"
            "const n = document.createElement('input'); n.value = v; old.replaceWith(n); n.focus(); "
            "n.setSelectionRange(v.length, v.length) }) })",
            "p.firstChild.value",
        ),
        HELLO,
        "hello",
    ),
    "chips": (
        FIELD
        + "<p id=chips></p>"
        + script(
            "field.oninput = () => { if (field.value.endsWith(',')) setTimeout(() => { const b = document.createElement('b');"
            "b.textContent = `[${field.value.slice(0, -1)}]`; chips.append(b); field.value = '' }) }",
            "chips.textContent",
        ),
        [Type(element=1, text="red,green,blue,")],
        "[red][green][blue]",
    ),
    "a mask in a timer": (
        FIELD
        + script(
            "field.oninput = () => setTimeout(() => { field.value = field.value.replace(/\\D/g, '').replace(/(\\d{4})(?=\\d)/g, '$1 ') })",
            "field.value",
        ),
        [Type(element=1, text="4111111111111111")],
        "4111 1111 1111 1111",
    ),
    "an editor that draws its state in a frame": (
        "<div id=field contenteditable style='width:200px;height:60px'></div>"
        + script(
            "let text = ''; field.onbeforeinput = (e) => { e.preventDefault(); text += e.data || ''; "
            "requestAnimationFrame(() => { field.textContent = text;"
            "getSelection().collapse(field, 1) }) }",
            "field.textContent",
        ),
        [Type(element=1, text="words", clear=False)],
        "words",
    ),
    "a popup takes the keys after its sign": (
        f"{AREA}<p id=popup></p>"
        + script(
            "field.oninput = () => { if (field.value.endsWith('@')) setTimeout(() => { const i = "
            "document.createElement('input'); popup.append(i); i.focus() }) }",
            "field.value + '|' + popup.firstChild.value",
        ),
        [Type(element=1, text="hi @ann")],
        "hi @|ann",
    ),
    "keys have their own times": (
        FIELD
        + script(
            "const times = []; field.onkeydown = (e) => { if (e.key.length === 1 && !e.ctrlKey) times.push(Date.now()) }",
            "times.slice(1).every((each, k) => each - times[k] >= 16 && each - times[k] < 250)",
        ),
        HELLO,
        True,
    ),
    "a search waits for the whole word": (
        FIELD
        + script(
            "let wait; const asked = []; field.oninput = () => { clearTimeout(wait); wait = setTimeout(() => "
            "asked.push(field.value), 150) }",
            "asked.join()",
        ),
        HELLO,
        "hello",
    ),
    **{
        f"Enter takes what was found after {wait} ms": (
            f"<form onsubmit='event.preventDefault(); sent = found || `nothing`'>{FIELD}</form>"
            + script(
                "let found = '', sent = '', wait; field.oninput = () => { found = ''; clearTimeout(wait);"
                f"wait = setTimeout(async () => {{ await fetch(location.href); found = field.value + ' found' }}, {wait}) }}",
                "sent",
            ),
            [Type(element=1, text="ber", enter=True)],
            "ber found",
        )
        for wait in (0, 150, 300)
    },
    "what the focus starts is over before the first key": (
        "<input id=field value=old>"
        + script("field.onfocus = () => setTimeout(() => { field.value = ''; field.focus() }, 100)", "field.value"),
        [Type(element=1, text="new", clear=False)],
        "new",
    ),
    "a long text is typed as a short one": (
        AREA
        + script(
            "let keys = 0; field.onkeydown = (e) => { keys += e.key.length === 1 && !e.ctrlKey }; field.oninput = () => setTimeout(() => {"
            "field.value = field.value.toUpperCase() })",
            "[keys, field.value]",
        ),
        [Type(element=1, text=LONG)],
        [len(LONG), LONG.upper()],
    ),
    "a game sees a key that is held": (
        "<div id=board tabindex=0>board</div>"
        + script(
            "let down = false, frames = 0; board.focus(); onkeydown = () => { down = true }; onkeyup = () => { down = false };"
            "setInterval(() => { frames += down }, 16)",
            "frames > 1",
        ),
        [Press(key="w")],
        True,
    ),
    "a chord has its time between keys": (
        FIELD
        + script(
            "let armed = false, done = ''; onkeydown = (e) => { if (e.key === 'Control') setTimeout(() => { armed = true }, 50);"
            "if (e.key === 'k') done = armed ? 'open' : 'too soon' }",
            "done",
        ),
        [Press(key="Control+k")],
        "open",
    ),
}

REAL = (
    *(
        "focus moves on in a timer",
        "focus moves on after 50 ms",
        "focus moves on in a frame",
        "focus moves on after a request",
    ),
    *(
        "the field is made anew",
        "chips",
        "Enter takes what was found after 300 ms",
        "a long text is typed as a short one",
    ),
)
"""Rows that are tried without a held clock too."""


async def test_what_is_due_between_keys_runs(pages: Callable[..., Any]) -> None:
    assert await wrong(TYPING, pages) == {}


async def test_real_time_passes_between_keys_without_a_held_clock(pages: Callable[..., Any]) -> None:
    rows = {name: row for name, row in TYPING.items() if name in REAL}
    assert len(rows) == len(REAL)
    assert await wrong(rows, pages, virtual_time=False) == {}
