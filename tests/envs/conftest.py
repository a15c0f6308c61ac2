"""Fixtures of the web side: real Chromium, real pages, only loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from envs.browser import BrowserPool
from envs.sites import MiniWobSite, Site, StaticSite
from envs.sites.miniwob import import_tasks
from envs.types import WebTask
from tests.envs.acting import browsers, launched

Opened = tuple[BrowserPool, Site]
Opener = Callable[..., AbstractAsyncContextManager[Opened]]


@pytest.fixture(scope="session")
def miniwob_tasks() -> dict[str, WebTask]:
    """Tasks of all MiniWoB pages by kind."""
    return {task.kind: task for task in import_tasks()}


@asynccontextmanager
async def _opened(site: Site, options: dict[str, Any]) -> AsyncIterator[Opened]:
    await site.start()
    try:
        async with BrowserPool(**options) as pool:
            yield pool, site
    finally:
        await site.close()


@pytest.fixture
def miniwob() -> Opener:
    """``async with miniwob(**pool_options) as (pool, site)`` on MiniWoB."""
    return lambda **options: _opened(MiniWobSite(), options)


@pytest.fixture(scope="module")
async def one_browser() -> AsyncIterator[None]:
    """One Chromium for all stages of a module."""
    async with launched() as browser:
        browsers.append(browser)
        yield
        browsers.remove(browser)


@pytest.fixture
def pages(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Opened]]:
    """``async with pages({"index.html": ...}, **pool_options) as (pool, site)`` on a static site of
    these bodies."""

    def opener(files: dict[str, str], /, **options: Any) -> AbstractAsyncContextManager[Opened]:
        for name, body in files.items():
            page = f"<!DOCTYPE html><html><head><title>t</title></head><body>{body}</body></html>"
            (tmp_path / name).write_text(page, encoding="utf-8")
        return _opened(StaticSite("pages", tmp_path), options)

    return opener
