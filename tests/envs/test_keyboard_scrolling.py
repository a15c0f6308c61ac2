"""Keys and scripts that scroll have scrolled when the next page is seen, on a held clock too."""

from __future__ import annotations

from typing import Any

import pytest

from envs.types import Click, Press
from tests.builders import page_task

PAGE = "<button onclick=\"window.scrollTo({top: 900, behavior: 'smooth'})\">Down</button><div style='height: 5000px'></div>"


@pytest.mark.parametrize("options", [{}, {"screenshots": False}, {"max_sessions": 16}])
async def test_a_key_that_scrolls_shows_at_once(pages: Any, options: dict[str, Any]) -> None:
    async with pages({"index.html": PAGE}, **options) as (pool, site), pool.lease(site) as session:
        await session.reset(page_task("/index.html"), 0)
        seen = []
        for action in (
            Press(key="PageDown"),
            Press(key="ArrowDown"),
            Press(key="Home"),
            Click(element=1),
            Press(key="End"),
        ):
            result = await session.step(action)
            assert result.observation.error is None
            seen.append(result.observation.scroll[1])
        end = result.observation.page_size[1] - result.observation.viewport[1]
        down, further, home, button, last = seen
        assert 0 < down < further and home == 0 and button == 900 and last == end
        assert await session.page.tab.evaluate("scrollY") == end
