"""A folder served on loopback, and the simplest site made of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from envs.sites.app_server import AppServer
from envs.sites.base import HostAddress, Site, SiteEpisode
from envs.types import SiteError, WebTask
from envs.types.near import near
from envs.types.paths import AnyPath


class CachedFiles(StaticFiles):
    """Files that do not change while they are served.

    So a browser context asks for each of them once. The maximum age is practically unlimited: the
    browser's cache counts from the answer's date, which is the page's.
    """

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "max-age=3153600000, immutable"
        return response


class StaticServer(AppServer):
    """Serves ``folder`` at ``origin``."""

    def __init__(self, folder: AnyPath) -> None:
        self.folder = Path(folder)
        super().__init__(Starlette(routes=self.routes()), str(folder))

    def routes(self) -> list[BaseRoute]:
        """Return the routes: every file of the folder."""
        return [Mount("/", CachedFiles(directory=self.folder, html=True, check_dir=False))]

    async def start(self) -> None:
        """Bind a free port of loopback and serve. A second start does nothing."""
        if not self.folder.is_dir():
            raise SiteError(f"{self.folder} is no folder; nothing to serve")
        await super().start()


class StaticSite(Site):
    """Pages of a folder."""

    repeatable = True

    def __init__(self, name: str, folder: AnyPath, *, viewport: tuple[int, int] = (448, 448)) -> None:
        self.name = name
        self.viewport = viewport
        self._server = StaticServer(folder)

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``."""
        return self._server.origin

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        """Check that the folder has the task's page.

        Raises:
            SiteError: it has not.
        """
        path = unquote(urlsplit(task.path).path)
        page = self._server.folder / path.lstrip("/")
        if not page.is_file() and not (page / "index.html").is_file():
            beside = [file.name for file in page.parent.glob("*") if file.is_file()]
            raise SiteError(f"{page} is not there; {near(page.name, beside, cutoff=0.75)}correct the path")
        return await super().open_episode(task, seed)

    async def open_host(self, task: WebTask, seed: int) -> SiteEpisode:
        """Do as `open_episode`; the page may be another host's."""
        return SiteEpisode(task.path, address=HostAddress(int(self.origin.rpartition(":")[2])))

    async def close(self) -> None:
        """Stop serving."""
        await self._server.close()
