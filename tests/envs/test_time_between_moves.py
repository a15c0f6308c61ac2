"""The page's time goes on between the moves of a drag, and between press and release, as a person's
does, and what is due then runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envs.types import Click, DoubleClick, Drag, Hover, Press, Target, TripleClick

from .due import Row, at, script, wrong

AT = "position:absolute;left:100px;top:100px;width:80px;height:30px"
BUTTON = f"<button id=go style='{AT}'>Go</button>"
FIELD = "<input id=field style='width:200px'>"

PLACE = "position:absolute;left:20px;top:20px;width:80px;height:40px;background:#cde"
CARD = f"<div id=card style='{PLACE};user-select:none;touch-action:none'>card</div>"
ZONE = "<div id=zone style='position:absolute;left:250px;top:250px;width:150px;height:150px;background:#eee'>zone</div>"
DROP = [Drag(start=Target(at=at(60, 40)), end=Target(at=at(325, 325)))]
UNDER = "const under = (e) => document.elementsFromPoint(e.clientX, e.clientY).includes(zone); let log = '';"


def dragged(down: str, move: str, up: str) -> Row:
    """A card that is dragged by pointer events; right is ``log === 'dropped'``."""
    return (
        CARD
        + ZONE
        + script(
            f"{UNDER} let over = false, armed = false, wait, q; card.onpointerdown = (e) => {{ const x = e.clientX, y = e.clientY; {down};"
            f"onpointermove = (e) => {{ {move} }}; onpointerup = (e) => {{ {up}; onpointermove = onpointerup = null }} }}",
            "log",
        ),
        DROP,
        "dropped",
    )


NATIVE = f"<div id=card draggable=true style='{PLACE}'>card</div>"
LATE = "zone.ondragover = (e) => e.preventDefault(); zone.ondrop = (e) => { e.preventDefault(); log += 'dropped' };"

DRAGGING: dict[str, Row] = {
    **{
        f"is held for {ms} ms first": dragged(
            f"armed = false; wait = setTimeout(() => {{ armed = true }}, {ms})",
            "if (!armed && Math.hypot(e.clientX - x, e.clientY - y) > 5) { clearTimeout(wait); onpointermove = onpointerup = null }",
            "if (armed && under(e)) log = 'dropped'",
        )
        for ms in (100, 250, 300)
    },
    "is followed in frames": dragged(
        "", "cancelAnimationFrame(q); q = requestAnimationFrame(() => { over = under(e) })", "if (over) log = 'dropped'"
    ),
    **{
        f"is looked at every {ms} ms": dragged(
            "",
            f"if (!armed) {{ armed = true; setTimeout(() => {{ armed = false }}, {ms}); over = under(e) }}",
            "if (over) log = 'dropped'",
        )
        for ms in (50, 200)
    },
    "is noted when it stands": dragged(
        "",
        "clearTimeout(wait); over = false; wait = setTimeout(() => { over = under(e) }, 50)",
        "if (over) log = 'dropped'",
    ),
    "has a speed": dragged(
        "over = performance.now()",
        "",
        "const ms = performance.now() - over; if (under(e) && ms > 300 && ms < 3000) log = 'dropped'",
    ),
    "opens its zone in a timer": dragged(
        "zone.style.display = 'none'; setTimeout(() => { zone.style.display = 'block' }, 300)",
        "over = under(e)",
        "if (over) log = 'dropped'",
    ),
    "opens its zone in a transition": (
        "<style>#zone { transition: width .3s; width: 0 !important } #zone.open { width: 150px !important }</style>"
        + dragged("", "zone.className = 'open'; over = under(e)", "if (over) log = 'dropped'")[0],
        DROP,
        "dropped",
    ),
    "is sorted in frames": (
        "<style>li { height:40px;width:200px;background:#cde;margin:4px;user-select:none }</style><ul id=list "
        "style='margin:0;padding:0'><li>1<li>2<li>3</ul>"
        + script(
            "let it, q; list.onpointerdown = (e) => { it = e.target.closest('li'); onpointermove = (m) => { cancelAnimationFrame(q);"
            "q = requestAnimationFrame(() => { const over = document.elementFromPoint(m.clientX, "
            "m.clientY)?.closest('li'); if (over && over !== it) {"
            "const a = [...list.children]; a.indexOf(over) > a.indexOf(it) ? over.after(it) : over.before(it) } }) };"
            "onpointerup = () => { onpointermove = null } }",
            "list.innerText.replace(/\\s/g, '')",
        ),
        [Drag(start=Target(at=at(80, 30)), end=Target(at=at(80, 125)))],
        "231",
    ),
    "draws with the mouse in frames": (
        "<canvas id=board width=400 height=400></canvas>"
        + script(
            "const line = []; let at, last; board.onpointerdown = () => { const draw = () => { if (at && at !== last) line.push(last = at);"
            "if (!done) requestAnimationFrame(draw) }; let done = false; onpointermove = (e) => { at = e.clientX }; "
            "onpointerup = () => { done = true }; draw() }",
            "line.length > 9 && line.at(-1) === 300",
        ),
        [Drag(start=Target(at=at(50, 50)), end=Target(at=at(300, 50)), via=(at(100, 200), at(200, 50), at(250, 200)))],
        True,
    ),
    "moves a thumb in frames": (
        "<div id=bar style='position:absolute;left:50px;top:50px;width:300px;height:20px;background:#ccc'><div "
        "id=thumb style='position:absolute;"
        "left:0;width:20px;height:20px;background:#36c'></div></div>"
        + script(
            "thumb.onpointerdown = (e) => { thumb.setPointerCapture(e.pointerId); thumb.onpointermove = (m) => "
            "requestAnimationFrame(() => {"
            "thumb.style.left = `${m.clientX - 60}px` }); thumb.onpointerup = () => { thumb.onpointermove = null; "
            "value = thumb.offsetLeft } }; let value",
            "value",
        ),
        [Drag(start=Target(at=at(60, 60)), end=Target(at=at(260, 60)))],
        200,
    ),
    "native, with a zone that is shown late": (
        NATIVE
        + ZONE
        + script(
            f"let log = ''; zone.style.display = 'none'; card.ondragstart = (e) => {{ e.dataTransfer.setData('text/plain', 'x');"
            f"setTimeout(() => {{ zone.style.display = 'block' }}, 50) }}; {LATE}",
            "log",
        ),
        DROP,
        "dropped",
    ),
    "native, with a zone that is armed late": (
        NATIVE
        + ZONE
        + script(
            "let log = ''; zone.ondragenter = () => setTimeout(() => { zone.ondragover = (e) => e.preventDefault() }, 100);"
            "zone.ondrop = (e) => { e.preventDefault(); log += 'dropped' }",
            "log",
        ),
        DROP,
        "dropped",
    ),
    "native, sorted in timers": (
        "<style>li { height:40px;width:200px;background:#cde;margin:4px }</style><ul id=list style='margin:0;padding:0'>"
        "<li draggable=true>1<li draggable=true>2<li draggable=true>3</ul>"
        + script(
            "let it, wait; list.ondragstart = (e) => { it = e.target; e.dataTransfer.setData('text/plain', '') }; "
            "list.ondragover = (e) => { e.preventDefault();"
            "const over = e.target.closest?.('li'); clearTimeout(wait); wait = setTimeout(() => { if (over && over !== it) {"
            "const a = [...list.children]; a.indexOf(over) > a.indexOf(it) ? over.after(it) : over.before(it) } }, 30) }",
            "list.innerText.replace(/\\s/g, '')",
        ),
        [Drag(start=Target(at=at(80, 30)), end=Target(at=at(80, 125)))],
        "231",
    ),
}

CLICK = [Click(element=1)]
HELD = "let log = ''; const say = (word) => { log += word };"

PRESSING: dict[str, Row] = {
    **{
        f"a button that arms within {ms} ms": (
            BUTTON
            + script(
                f"{HELD} let wait; go.onpointerdown = () => {{ wait = setTimeout(say, {ms}, 'armed ') }}; "
                f"go.onpointerup = () => {{ clearTimeout(wait); say('up') }}",
                "log",
            ),
            CLICK,
            "armed up",
        )
        for ms in (0, 50, 100)
    },
    "a long press is none": (
        BUTTON
        + script(
            f"{HELD} let wait; go.onpointerdown = () => {{ wait = setTimeout(say, 250, 'menu ') }}; go.onpointerup = "
            f"() => {{ clearTimeout(wait) }}; go.onclick = () => say('click')",
            "log",
        ),
        CLICK,
        "click",
    ),
    "pressed in a frame": (
        BUTTON
        + script(
            f"{HELD} go.onmousedown = () => requestAnimationFrame(() => say('frame ')); go.onmouseup = () => say('up')",
            "log",
        ),
        CLICK,
        "frame up",
    ),
    "what covers it after the press takes the release": (
        BUTTON
        + script(
            f"{HELD} go.onmousedown = () => setTimeout(() => {{ const c = document.createElement('div'); "
            f"c.style.cssText = 'position:fixed;inset:0';"
            "c.onmouseup = () => say('cover'); document.body.append(c) }); go.onclick = () => say('click')",
            "log",
        ),
        CLICK,
        "cover",
    ),
    **{
        f"a double click within {ms} ms": (
            BUTTON
            + script(
                f"{HELD} let wait; go.onclick = () => {{ clearTimeout(wait); wait = setTimeout(say, {ms}, 'single ') "
                f"}}; go.ondblclick = () => {{ clearTimeout(wait); say('double ') }}",
                "log",
            ),
            [DoubleClick(element=1)],
            "double ",
        )
        for ms in (200, 250, 300)
    },
    "two clicks in two steps are no double click": (
        BUTTON
        + script(
            f"{HELD} let wait; go.onclick = () => {{ if (wait) {{ clearTimeout(wait); wait = 0; say('double ') }} "
            f"else wait = setTimeout(() => {{ wait = 0; say('single ') }}, 250) }}",
            "log",
        ),
        [*CLICK, *CLICK],
        "single single ",
    ),
    "a double click by its time": (
        BUTTON
        + script(
            f"{HELD} let last = 0; go.onmousedown = (e) => {{ if (e.timeStamp - last < 500 && e.timeStamp - last > "
            f"50) say('double'); last = e.timeStamp }}",
            "log",
        ),
        [DoubleClick(element=1)],
        "double",
    ),
    "three clicks": (
        "<p id=go style='position:absolute;left:100px;top:100px'>three words here</p>"
        + script(f"{HELD} go.onclick = (e) => setTimeout(say, 0, e.detail)", "log + getSelection()"),
        [TripleClick(at=at(110, 126))],
        "123three words here",
    ),
    "a menu that opens on hover": (
        f"{BUTTON}<button id=item style='position:absolute;left:100px;top:130px;display:none'>Item</button>"
        + script(
            f"{HELD} go.onmouseenter = () => setTimeout(() => {{ item.style.display = 'block' }}, 200); item.onclick = () => say('item')",
            "log",
        ),
        [Hover(element=1), Click(element=2)],
        "item",
    ),
    "a key that is held": (
        FIELD
        + script(
            f"{HELD} let wait; onkeydown = () => {{ wait = setTimeout(say, 50, 'held ') }}; onkeyup = () => {{ "
            f"clearTimeout(wait); say('up') }}",
            "log",
        ),
        [Press(key="F2")],
        "held up",
    ),
    "a modifier is held before the click": (
        BUTTON
        + script(
            f"{HELD} let on = false; onkeydown = () => setTimeout(() => {{ on = true }}, 20); onkeyup = () => "
            f"setTimeout(() => {{ on = false }}, 20);"
            "go.onclick = (e) => say(`${on} ${e.ctrlKey}`)",
            "log",
        ),
        [Click(element=1, modifiers=("Control",))],
        "true true",
    ),
}

REAL = (
    *(
        "is held for 250 ms first",
        "is looked at every 50 ms",
        "is sorted in frames",
        "native, with a zone that is shown late",
    ),
    *("a button that arms within 100 ms", "a long press is none", "a menu that opens on hover"),
)
"""Rows that are tried without a held clock too."""


async def test_what_is_due_between_moves_runs(pages: Callable[..., Any]) -> None:
    assert await wrong(DRAGGING, pages) == {}


async def test_what_is_due_between_press_and_release_runs(pages: Callable[..., Any]) -> None:
    assert await wrong(PRESSING, pages) == {}


async def test_real_time_passes_between_moves_without_a_held_clock(pages: Callable[..., Any]) -> None:
    rows = {name: row for name, row in (DRAGGING | PRESSING).items() if name in REAL}
    assert len(rows) == len(REAL)
    assert await wrong(rows, pages, virtual_time=False) == {}
