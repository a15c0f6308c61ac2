"""Shifts within 500 ms of an input are input shifts, by the time of the page and whenever their
frame is drawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from envs.browser import BrowserPool
from envs.sites import Site
from envs.types import Click, Press, Wait, WebTask
from tests.builders import page_task

GROW = "document.getElementById('top').style.height = '60px'"
PAGE = f"""<div id=top style="height:0"></div><div style="height:300px; width:400px; background:navy">block</div>
<button id=b style="position:fixed; top:350px; left:0">b</button><script>
const after = Number(location.search.slice(1)), grow = () => setTimeout(() => {{ {GROW} }}, after);
if (location.search.includes(".")) setTimeout(grow, 2500); else b.onclick = b.onkeydown = grow;
</script>"""


async def shifts(pool: BrowserPool, site: Site, task: WebTask, action: Any) -> tuple[bool, bool]:
    """Whether an input shift was seen, and whether another."""
    async with pool.lease(site) as session:
        await session.reset(task, 1)
        if isinstance(action, Press):
            await session.page.tab.evaluate("b.focus()")
        seen = [(await session.step(each)).signals for each in (action, Wait(seconds=2))]
    assert all(each is not None for each in seen)
    return any(each.input_shift for each in seen if each), any(each.layout_shift for each in seen if each)


@pytest.mark.parametrize("budget", [500.0, 1200.0], ids=["as in a run", "longer than an input counts"])
async def test_shifts_soon_after_an_input_are_input_shifts(pages: Any, budget: float) -> None:
    async with (
        pages({"shift.html": PAGE}, signals=True, settle_budget_ms=budget) as (pool, site),
        asyncio.TaskGroup() as rows,
    ):
        tasks = {
            (after, action.type): rows.create_task(shifts(pool, site, page_task(f"/shift.html?{after}"), action))
            for after in (0, 100, 400, 600, 900)
            for action in (Click(element=1), Press(key="a"))
        }
        alone = rows.create_task(shifts(pool, site, page_task("/shift.html?0.0"), Wait(seconds=3)))
    assert {row: task.result() for row, task in tasks.items()} == {row: (row[0] <= 500, row[0] > 500) for row in tasks}
    assert alone.result() == (False, True)
