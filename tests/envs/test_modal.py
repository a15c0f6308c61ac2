"""While a modal dialog is open, nothing else of its document can be used, and nothing else is
listed as if it could."""

from __future__ import annotations

from typing import Any

from envs.browser import PageStep
from envs.types import Click
from tests.builders import page_task
from tests.envs.dynamic import dynamic_pool, page


def usable(result: PageStep) -> list[str]:
    return [element.text for element in result.observation.elements if element.in_viewport]


async def test_behind_a_modal_dialog_nothing_can_be_used() -> None:
    async with dynamic_pool() as (pool, site), pool.lease(site) as session:
        assert usable(await session.reset(page("/modal.html"), 0)) == ["Modal", "Plain"]
        result = await session.step(Click(element="modal"))
        assert usable(result) == ["Close", "Framed"]
        assert result.observation.hidden.covered == 2
        assert "Behind are words." in result.observation.text, "it can be read still"
        close = next(element.index for element in result.observation.elements if element.text == "Close")
        assert usable(await session.step(Click(element=close))) == ["Modal", "Plain"]
        assert usable(await session.step(Click(element="plain"))) == ["Modal", "Plain", "Said"]


async def test_so_it_is_without_frames(pages: Any) -> None:
    html = """<button onclick="document.querySelector('dialog').showModal()">Open</button><button>Behind</button>
              <dialog><button onclick="this.closest('dialog').close()">Close</button></dialog>"""

    async with pages({"index.html": html}) as (pool, site), pool.lease(site) as session:
        assert usable(await session.reset(page_task("/index.html"), 0)) == ["Open", "Behind"]
        assert usable(await session.step(Click(element=1))) == ["Close"]
        assert usable(await session.step(Click(element=1))) == ["Open", "Behind"]
