"""Tasks on single pages, for measuring."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from envs.sites.static_server import StaticSite
from envs.types import SeedRange, Split, WebTask

PAGES = Path(__file__).parents[1] / "pages"
"""Folder of the pages that rates are measured on."""
VIEWPORT = (1280, 720)


def page_task(path: str) -> WebTask:
    """A task on a page of a static site."""
    return WebTask(
        task_id=f"pages{path}",
        site="pages",
        kind="page",
        path=path,
        instruction="Look.",
        difficulty=1,
        horizon=10,
        seeds={Split.TRAIN: SeedRange(start=0, stop=1)},
    )


@asynccontextmanager
async def static_pages(folder: Path) -> AsyncIterator[StaticSite]:
    """A site of the pages in a folder."""
    site = StaticSite("pages", folder, viewport=VIEWPORT)
    await site.start()
    try:
        yield site
    finally:
        await site.close()
