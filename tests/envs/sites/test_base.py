"""A site needs a name and an origin; what it does not say has a default."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs import Site, WebTask
from envs.browser import BrowserPool
from envs.sites import SiteEpisode, StaticServer
from envs.types import BrowserError
from tests.builders import make_task


def task(path: str) -> WebTask:
    return make_task("mine/page", path=path)


class Mine(Site):
    """Pages of a server that is started by somebody else."""

    name = "mine"

    def __init__(self, origin: str) -> None:
        self._origin = origin

    @property
    def origin(self) -> str:
        return self._origin


class Worlds(Mine):
    """Each seed has a page of its own."""

    foreign = True
    cookies = ({"name": "who", "value": "ada", "domain": "127.0.0.1"},)

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        return SiteEpisode(f"/{seed}.html")


async def test_a_name_and_an_origin_are_enough_for_an_episode(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text("<button>Hello</button><script>document.write(document.cookie)</script>")
    (tmp_path / "4.html").write_text("<script>document.write('<h1>Fourth of ' + document.cookie)</script>")
    server = StaticServer(tmp_path)
    await server.start()
    try:
        async with BrowserPool(max_sessions=1) as pool:
            async with pool.lease(Mine(server.origin)) as session:
                page = await session.reset(task("/page.html"), 0)
                assert "Hello" in page.observation.text and "ada" not in page.observation.text
                assert (session.server, page.done, page.page_facts) == (None, False, {})
                with pytest.raises(BrowserError, match="404"):
                    await session.reset(task("/nowhere.html"), 0)
            async with pool.lease(Worlds(server.origin)) as session:
                assert "Fourth of who=ada" in (await session.reset(task("/page.html"), 4)).observation.text
                assert "Not Found" in (await session.reset(task("/page.html"), 5)).observation.text
    finally:
        await server.close()


def test_a_site_without_an_origin_cannot_be_made() -> None:
    class Nowhere(Site):
        name = "nowhere"

    with pytest.raises(TypeError, match="origin"):
        Nowhere()  # type: ignore[abstract]
