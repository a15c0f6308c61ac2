"""A look that uses the scene of the look before says what a first look says, whatever has changed
between them."""

from __future__ import annotations

from typing import Any

from playwright.async_api import CDPSession, Page

from envs.observation import Observer, Reading
from envs.observation.last_scene import LastScene
from envs.observation.snapshot import capture, decode

VIEWPORT = (1280, 720)

PAGE = """
<style>#cover {position: absolute; left: 0; top: 0; width: 200px; height: 100px; pointer-events: none} .solid {background: red}</style>
<button id=one style="position: absolute; left: 10px; top: 10px">One</button>
<button id=two style="position: absolute; left: 10px; top: 60px">Two</button>
<p id=words style="position: absolute; left: 10px; top: 85px; margin: 0">words</p><div id=cover></div>
<svg width=50 height=50 style="position: absolute; left: 300px; top: 0">
  <a href=#shape><polygon id=shape points="0,0 50,0 50,50 0,50"/></a></svg>
<div id=scrolled style="position: absolute; left: 400px; top: 0; width: 100px; height: 50px; overflow: auto">
  <button>In</button><div style="height: 200px"></div><button>Below</button></div>
<select id=list><option>a<option>b</select> <dialog id=dialog><button>Close</button></dialog>
<input id=field style="position: absolute; left: 10px; top: 200px"> <a id=link style="position: absolute; left: 600px; top: 5px" href=#x>link</a>
"""

CHANGES = (
    "words.firstChild.data = 'other'",
    "cover.className = 'solid'",
    "cover.style.background = 'rgba(0, 0, 255, .5)'",
    "cover.style.background = 'rgb(0, 0, 255)'",
    "cover.style.pointerEvents = 'auto'",
    "cover.style.opacity = 0.5",
    "cover.style.visibility = 'hidden'",
    "one.style.color = 'green'",
    "words.style.color = 'transparent'",
    "one.style.left = '120px'",
    "two.style.zIndex = -1",
    "shape.setAttribute('points', '0,0 50,50 0,50')",
    "scrolled.scrollTop = 160",
    "scrolled.style.overflow = 'visible'",
    "link.removeAttribute('href')",
    "link.style.cursor = 'pointer'",
    "two.disabled = true",
    "field.value = 'typed'",
    "field.type = 'checkbox'",
    "list.selectedIndex = 1",
    "words.before(document.createElement('hr'))",
    "two.style.clipPath = 'inset(0 0 20px 0)'",
    "one.replaceWith(one.cloneNode(true))",
    "scrollBy(0, 30)",
    "dialog.showModal()",
)


def said(reading: Reading) -> Any:
    points = [handle.point for handle in reading.handles.values()]
    elements = [element.model_dump(exclude={"id"}) for element in reading.observation.elements]
    return points, elements, reading.observation.text, reading.observation.hidden


async def test_a_later_look_says_what_a_first_one_says(on_page: Any) -> None:
    async def script(page: Page, cdp: CDPSession) -> list[str]:
        observer, wrong = Observer(), []
        for change in CHANGES:
            await observer.observe(cdp, viewport=VIEWPORT, instruction="")
            await page.evaluate(change)
            later = await observer.observe(cdp, viewport=VIEWPORT, instruction="")
            first = await Observer().observe(cdp, viewport=VIEWPORT, instruction="")
            wrong += [change] if said(later) != said(first) else []
        return wrong

    assert await on_page(PAGE, script) == []


async def test_a_scene_is_kept_while_only_words_and_colours_change(on_page: Any) -> None:
    kept = {"one.style.color = 'green'": True, "cover.className = 'solid'": False, "one.style.left = '120px'": False}

    async def script(page: Page, cdp: CDPSession) -> dict[str, bool]:
        scenes, found = LastScene(), {}
        before = scenes.stage(decode(await capture(cdp)), VIEWPORT)
        for change in kept:
            await page.evaluate(change)
            scene = scenes.stage(decode(await capture(cdp)), VIEWPORT)
            found[change], before = scene.rects is before.rects, scene
        return found

    assert await on_page(PAGE, script) == kept
