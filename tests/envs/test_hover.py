"""A press comes after what the mouse's coming over an element starts: styles, transitions, timers,
frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from envs.types import Action, Check, Click, DoubleClick, Drag, Target, Type
from tests.builders import page_task

from .acting import on

AT = "position:absolute;left:100px;top:100px;width:80px;height:30px"
GO = f"<button data-t=go id=go style='{AT}'>Go</button>"
MIDDLE = (1000 * 140 / 448, 1000 * 115 / 448)
"""Of the button, in thousandths of a static site's viewport."""
ON = "onclick='document.title = `done`'"


def script(code: str) -> str:
    return f"<script>{code}</script>"


ARM = "go.onclick = () => { document.title = `done` }"
REACTIONS: dict[str, tuple[str, Action]] = {
    "a picture is exchanged": (
        f"<style>#go .on, #go:hover .off {{display:none}} #go:hover .on {{display:block}}</style>"
        f"<a href='#' id=go style='{AT}'><div class=off>off</div><div class=on {ON}>on</div></a>",
        Click(element=1),
    ),
    "a transition takes a cover away": (
        f"<style>#cover {{transition:transform .4s}} #box:hover #cover {{transform:translateX(200px)}}</style>"
        f"<div id=box style='{AT}'><button {ON} style='width:80px;height:30px'>Go</button>"
        "<div id=cover style='position:absolute;inset:0;background:red'>cover</div></div>",
        Click(at=MIDDLE),
    ),
    "an animation brings a button": (
        f"<style>@keyframes come {{from {{left:300px}} to {{left:0}}}} #late {{position:absolute;left:300px;width:80px;height:30px}}"
        f"#box:hover #late {{animation:come .4s forwards}}</style>"
        f"<div id=box style='{AT}'><button id=late {ON}>Go</button></div>",
        Click(at=MIDDLE),
    ),
    "a timer": (GO + script(f"go.onmouseenter = () => setTimeout(() => {{ {ARM} }}, 250)"), Click(element=1)),
    "a listener of the document and a timer": (
        GO + script(f"document.addEventListener('mouseover', (e) => e.target === go && setTimeout(() => {{ {ARM} }}))"),
        Click(element=1),
    ),
    "frames": (
        GO
        + script(
            f"go.onpointerenter = () => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {{ {ARM} }})))"
        ),
        DoubleClick(element=1),
    ),
    "moves are listened to": (
        GO
        + script(
            f"addEventListener('mousemove', async () => {{ await new Promise((r) => setTimeout(r, 50)); {ARM} }})"
        ),
        Click(at=MIDDLE),
    ),
    "the element moves away": (
        GO + script(f"{ARM}; go.onmouseenter = () => setTimeout(() => {{ go.style.left = '400px' }}, 50)"),
        Click(element=1),
    ),
    "a style moves the element": (
        "<style>#wrap:hover #go {top:300px !important}</style>"
        f"<div id=wrap style='position:absolute;inset:0'>{GO}</div>" + script(ARM),
        Click(element=1),
    ),
    "in a frame": (
        "<iframe style='position:absolute;left:90px;top:90px' srcdoc=\"<button id=go style='position:absolute;left:10px;top:10px;"
        "width:80px;height:30px'>Go</button><script>go.onmouseenter = () => setTimeout(() => {"
        " go.onclick = () => { parent.document.title = `done` } }, 50)"
        '</script>"></iframe>',
        Click(at=MIDDLE),
    ),
    "a style in a frame": (
        "<iframe style='position:absolute;left:90px;top:90px' srcdoc=\"<style>#cover {transition:transform .4s}"
        "#box:hover #cover {transform:translateX(200px)}</style>"
        "<div id=box style='position:absolute;left:10px;top:10px;width:80px;height:30px'>"
        "<button onclick='parent.document.title = `done`' style='width:80px;height:30px'>Go</button>"
        "<div id=cover style='position:absolute;inset:0;background:red'>cover</div></div>\"></iframe>",
        Click(at=MIDDLE),
    ),
    "in a shadow root": (
        f"<div id=host style='{AT}'></div>"
        + script(
            "const root = host.attachShadow({mode: 'closed'}), sheet = new CSSStyleSheet(); sheet.replaceSync("
            "':host(:hover) #off {display:none} button {position:absolute;inset:0}'); root.adoptedStyleSheets = [sheet];"
            "root.innerHTML = '<button id=on>on</button><button id=off>off</button>';"
            "root.getElementById('on').onclick = () => { document.title = `done` }"
        ),
        Click(at=MIDDLE),
    ),
    "a checkbox": (
        f"<input type=checkbox id=go style='{AT}'>"
        + script(
            "go.onclick = (e) => e.preventDefault(); go.onmouseenter = () => setTimeout(() => { go.onclick = () => { document.title = `done` } }, 50)"
        ),
        Check(element=1),
    ),
    "a field": (
        f"<input id=go style='{AT}'>"
        + script(
            "go.onmouseenter = () => setTimeout(() => { go.onmousedown = () => { document.title = `done` } }, 50)"
        ),
        Type(element=1, text="x"),
    ),
    "a drag": (
        GO
        + script(
            "go.onmouseenter = () => setTimeout(() => { go.onmousedown = () => { onmouseup = () => { document.title = `done` } } }, 50)"
        ),
        Drag(start=Target(element=1), end=Target(at=(900, 900))),
    ),
}


async def test_a_press_comes_after_what_the_mouse_starts(pages: Callable[..., Any]) -> None:
    missed = []
    bodies = {f"{number}.html": body for number, (body, _) in enumerate(REACTIONS.values())}
    async with pages(bodies, screenshots=False) as (pool, site), pool.lease(site) as session:
        for number, (name, (_, action)) in enumerate(REACTIONS.items()):
            await session.reset(page_task(f"/{number}.html"), 0)
            result = await session.step(action)
            if result.observation.title != "done":
                missed.append(f"{name}: {result.observation.error}")
    assert missed == []


async def test_no_time_passes_where_the_page_does_not_react() -> None:
    async with on(GO + script("hear('keydown keyup keypress beforeinput input click')")) as here:
        await here.cdp.value("go.onmousedown = () => { window.at = Date.now() }")
        for action in (Click(element=1), Click(at=(175, 191.7)), Click(element=1)):
            before = await here.cdp.value("Date.now()")
            await here.act(action, settle=False)
            assert await here.cdp.value("at") == before
            await here.settle()
        assert not [each for each in await here.log() if "click" not in each]
