"""A browser for the tests of a module that each draw one page."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import pytest

from envs.browser import BrowserPool
from envs.episodes.page_renderer import PageRenderer, RenderedPage


@pytest.fixture(scope="module")
def shared_drawer() -> Iterator[Callable[[str], RenderedPage]]:
    """``shared_drawer(html)`` draws a page."""
    with asyncio.Runner() as runner:
        pool = BrowserPool()
        drawer = PageRenderer(pool)
        yield lambda html: runner.run(drawer.render(html))
        runner.run(pool.close())
