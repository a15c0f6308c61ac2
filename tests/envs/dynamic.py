"""The dynamic site behind a pool, as sessions meet it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from envs.browser import BrowserPool
from envs.sites.static_server import StaticSite
from envs.types import Click, WebTask
from tests.builders import make_task
from tests.envs.dynamic_site import FOLDER, DynamicSite
from tests.envs.dynamic_site import GO as PLACE

VIEWPORT = (600, 400)

GO = Click(at=(1000 * PLACE[0] / VIEWPORT[0], 1000 * PLACE[1] / VIEWPORT[1]))
"""Press the button of a fixture page."""


class ServedSite(StaticSite):
    """A `Site` that somebody else serves."""

    def __init__(self, origin: str, hosts: tuple[str, ...]) -> None:
        super().__init__("dynamic", FOLDER, viewport=VIEWPORT)
        self._at = origin
        self.hosts = hosts

    @property
    def origin(self) -> str:
        return self._at


@asynccontextmanager
async def dynamic_pool(**options: Any) -> AsyncIterator[tuple[BrowserPool, ServedSite]]:
    """A pool and the dynamic site; both of its origins may be reached."""
    with DynamicSite() as served:
        async with BrowserPool(**options) as pool:
            yield pool, ServedSite(served.origin, (served.other_origin,))


def page(path: str) -> WebTask:
    """A task on a page of the dynamic site."""
    return make_task(f"dynamic{path}", site="dynamic", kind="page", path=path, horizon=5)
