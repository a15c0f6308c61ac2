"""Fields that are easily got wrong: weeks, seconds, legends of field sets that are off, labels that
wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envs.observation.options import FULL, SMALL, ObservationOptions
from envs.types import Click, Press, Type
from tests.builders import page_task

BODY = """<label>Week<input type=week></label> <label>Time<input type=time step=1></label> <label>Short<input type=time></label>
<fieldset disabled><legend>Head <button>Usable</button><input aria-label=Off disabled></legend><legend><button>Second</button></legend>
<button>Inside</button></fieldset>
<div style='width:300px'><label>Range<input type=range style='width:150px'></label><label>Number<input style='width:200px'></label></div>"""


MENU = """<div role=menu tabindex=0 onkeydown='heard.push(event.key)' style='padding:9px'><div role=menuitem>Cut</div></div>
<script>const heard = []</script>"""


async def test_a_menu_that_takes_the_focus_is_pressed(pages: Callable[..., Any]) -> None:
    async with pages({"index.html": MENU}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        (menu,) = [element.index for element in result.observation.elements if element.tag == "item"]
        result = await session.step(Press(element=menu, key="ArrowDown"))
        assert await session.page.tab.evaluate("heard") == ["ArrowDown"]
        assert [element.focused for element in result.observation.elements] == [True, False]


AREAS = {
    "in a box without a size": "<div style='overflow:hidden;width:3px;height:0'><textarea id=area style='width:999px;height:1em'></textarea></div>",
    "of a pixel": "<textarea id=area style='position:absolute;width:1px;height:1px;padding:0;border:0'></textarea>",
    "transparent": "<textarea id=area style='position:absolute;opacity:0;width:7px;height:14px'></textarea>",
    "in a box of the editor's size": "<div style='position:absolute;inset:0;pointer-events:none'>"
    "<textarea id=area style='width:1px;height:1px;padding:0;border:0'></textarea></div>",
    "beside the page": "<textarea id=area style='position:absolute;left:-999px;width:0;height:0;padding:0;border:0'></textarea>",
}
"""How code editors and terminals hide the text area that takes their keys."""

EDITOR = """<div id=editor style='position:relative;width:300px;height:120px;font:14px monospace'>%s<div id=lines style='height:100%%'></div></div>
<button>Run</button><script>
let text = "old code", all = false;
const draw = () => { lines.replaceChildren(...text.split("\\n").map((line) => Object.assign(document.createElement("pre"), {textContent: line}))); };
lines.onmousedown = (event) => { event.preventDefault(); area.focus(); };
area.onkeydown = (event) => {
  if (event.ctrlKey && event.key === "a") all = true;
  if (event.key === "Backspace") { text = all ? "" : text.slice(0, -1); all = false; draw(); }
};
area.oninput = () => { text = (all ? "" : text) + area.value; all = false; area.value = ""; draw(); };
draw();
</script>"""


@pytest.mark.parametrize("hidden", AREAS)
async def test_an_editor_that_its_page_draws_is_a_field(pages: Callable[..., Any], hidden: str) -> None:
    async with pages({"index.html": EDITOR % AREAS[hidden]}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        assert [element.tag for element in result.observation.elements] == ["textarea", "button"]
        for action, text in (
            (Type(element=1, text="new();\n\tcode()"), "new();\n\tcode()"),
            (Type(element=1, text=";", clear=False), "new();\n\tcode();"),
            (Type(at=(50, 60), text="at a point"), "at a point"),
            (Type(element=1, text=""), ""),
        ):
            assert (await session.step(action)).error is None
            assert await session.page.tab.evaluate("text") == text


async def test_a_hidden_text_area_of_no_editor_is_not_listed(pages: Callable[..., Any]) -> None:
    beside = "<form onclick=1><input aria-label=a><br>{}</form><p onclick=1>Card</p>"
    forms = "".join(map(beside.format, AREAS.values()))
    async with (
        pages({"index.html": forms + "<br><br>".join(AREAS.values())}) as (pool, site),
        pool.lease(site) as session,
    ):
        result = await session.reset(page_task("/index.html"), 0)
        assert [element.tag for element in result.observation.elements] == ["input", "item"] * len(AREAS)


@pytest.mark.parametrize(
    ("field", "text"), [("week", "2024-W20"), ("time", "21:05:33"), ("time", "09:05"), ("short", "21:05:33")]
)
async def test_every_part_is_typed(pages: Callable[..., Any], field: str, text: str) -> None:
    async with pages({"index.html": BODY}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        result = await session.step(Type(element=field, text=text))
        (value,) = [element.value for element in result.observation.elements if element.id == field]
        assert value == text


async def test_the_first_legend_of_a_field_set_stays_usable(pages: Callable[..., Any]) -> None:
    async with pages({"index.html": BODY}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        off = {element.text: element.disabled for element in result.observation.elements}
        assert (off["Usable"], off["Off"], off["Second"], off["Inside"]) == (False, True, True, True)
        (usable,) = [element.id for element in result.observation.elements if element.text == "Usable"]
        assert (await session.step(Click(element=usable))).error is None


@pytest.mark.parametrize("options", [FULL, SMALL])
async def test_states_of_fields_are_read_only_where_they_are_shown(
    pages: Callable[..., Any], options: ObservationOptions
) -> None:
    body = "<label>All<input type=checkbox id=all></label><button>Go</button><script>all.indeterminate = true</script>"

    async with pages({"index.html": body}) as (pool, site):
        site.observation = options
        async with pool.lease(site) as session:
            first = await session.reset(page_task("/index.html"), 0)
            second = await session.step(Click(element=2))
            for result in (first, second):
                assert ("partly checked" in result.observation.elements[0].states) == (options is FULL)
            looked = session.page.tab.clock.looked
            assert looked is not None and bool(looked.fields.mixed) == (options is FULL)


async def test_a_label_that_wraps_covers_nothing_beside_it(pages: Callable[..., Any]) -> None:
    async with pages({"index.html": BODY}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        assert {"Range", "Number"} <= {element.text for element in result.observation.elements}
        assert result.observation.hidden.covered == 0
