"""Fields that are easily got wrong: weeks, seconds, legends of field sets that are off, labels that wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from envs.observation.options import FULL, SMALL, ObservationOptions
from envs.types import Click, Type, WebTask

BODY = """<label>Week<input type=week></label> <label>Time<input type=time step=1></label> <label>Short<input type=time></label>
<fieldset disabled><legend>Head <button>Usable</button><input aria-label=Off disabled></legend><legend><button>Second</button></legend>
<button>Inside</button></fieldset>
<div style='width:300px'><label>Range<input type=range style='width:150px'></label><label>Number<input style='width:200px'></label></div>"""


@pytest.mark.parametrize(
    ("field", "text"), [("week", "2024-W20"), ("time", "21:05:33"), ("time", "09:05"), ("short", "21:05:33")]
)
async def test_every_part_is_typed(
    pages: Callable[..., Any], page_task: Callable[[str], WebTask], field: str, text: str
) -> None:
    async with pages({"index.html": BODY}) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        result = await session.step(Type(element=field, text=text))
        (value,) = [element.value for element in result.observation.elements if element.id == field]
        assert value == text


async def test_the_first_legend_of_a_field_set_stays_usable(
    pages: Callable[..., Any], page_task: Callable[[str], WebTask]
) -> None:
    async with pages({"index.html": BODY}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        off = {element.text: element.disabled for element in result.observation.elements}
        assert (off["Usable"], off["Off"], off["Second"], off["Inside"]) == (False, True, True, True)
        (usable,) = [element.id for element in result.observation.elements if element.text == "Usable"]
        assert (await session.step(Click(element=usable))).error is None


@pytest.mark.parametrize("options", [FULL, SMALL])
async def test_states_of_fields_are_read_only_where_they_are_shown(
    pages: Callable[..., Any], page_task: Callable[[str], WebTask], options: ObservationOptions
) -> None:
    body = "<label>All<input type=checkbox id=all></label><button>Go</button><script>all.indeterminate = true</script>"

    async with pages({"index.html": body}) as (pool, site):
        site.observation = options
        async with pool.lease(site) as session:
            first = await session.reset(page_task("/index.html"), 0)
            second = await session.step(Click(element=2))
            for result in (first, second):
                assert ("partly checked" in result.observation.elements[0].states) == (options is FULL)
            looked = session._page.tab.clock.looked  # type: ignore[union-attr]
            assert looked is not None and bool(looked.fields.mixed) == (options is FULL)


async def test_a_label_that_wraps_covers_nothing_beside_it(
    pages: Callable[..., Any], page_task: Callable[[str], WebTask]
) -> None:
    async with pages({"index.html": BODY}) as (pool, site), pool.lease(site) as session:
        result = await session.reset(page_task("/index.html"), 0)
        assert {"Range", "Number"} <= {element.text for element in result.observation.elements}
        assert result.observation.hidden.covered == 0
