"""Design2Code: write the page that a picture shows, and submit it.

The site shows the picture of a reference page and nothing else: no address gives the page's source.
The policy ends the episode with a `Submit` action. The submitted page is drawn and compared with
the reference afterwards, in `envs.rewards.design2code`.

The bundled pages are our own (``datasets/design2code``: ``N.html`` with its picture ``N.png``).
Another folder of that form works as well (`envs.tasks.imports` reads one as tasks).
"""

from __future__ import annotations

from html import escape
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from envs.observation import ObservationOptions
from envs.sites.static_server import StaticServer, StaticSite
from envs.types import SeedRange, SiteError, Split, WebTask
from envs.types.paths import AnyPath

FOLDER = Path(__file__).parents[2] / "datasets" / "design2code"
"""Folder of the bundled pages."""

VIEWPORT = (1288, 728)
"""Size in CSS pixels in which pages are shown and drawn.

The smallest multiples of 28 (a merged patch of Qwen2-VL) around the paper's 1280 x 720.
"""

INSTRUCTION = "Write one HTML page that looks like this screenshot, and submit it."

HORIZON = 4
"""Steps of an episode: a longer page can be scrolled through before it is written."""

SPLITS = {Split.TRAIN: range(1, 6), Split.HELD_OUT: range(6, 8), Split.VALIDATION: range(8, 9)}
"""Numbers of the bundled pages by split."""

_PAGE = """<!DOCTYPE html><html><head><meta charset="utf-8"><title>Design {name}</title>
<style>body {{margin: 0}} img {{display: block; max-width: 100%}}</style></head><body><img src="/pictures/{name}.png" alt=""></body></html>"""


def import_tasks() -> list[WebTask]:
    """Make a task for each bundled page. ``datasets/tasks/design2code.jsonl`` is this, saved."""
    return [_task(number, split) for split, numbers in SPLITS.items() for number in numbers]


def _task(number: int, split: Split) -> WebTask:
    return WebTask(
        task_id=f"design2code/{number}",
        site="design2code",
        kind="design2code",
        path=f"/{number}.png",
        instruction=INSTRUCTION,
        difficulty=1,
        horizon=HORIZON,
        seeds={split: SeedRange(start=0, stop=1)},
    )


class PictureServer(StaticServer):
    """Serves ``N.png`` of a folder as a page that shows it, and nothing else."""

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the page, ``/N.png``, and its picture, ``/pictures/N.png``."""
        return [Route("/pictures/{name:str}.png", self._picture), Route("/{name:str}.png", self._page)]

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(_PAGE.format(name=escape(self._file(request).stem)))

    async def _picture(self, request: Request) -> Response:
        return FileResponse(self._file(request), headers={"Cache-Control": "max-age=86400, immutable"})

    def _file(self, request: Request) -> Path:
        file = self.folder / f"{request.path_params['name']}.png"
        if file.parent != self.folder or not file.is_file():
            raise HTTPException(404)
        return file


class Design2CodeSite(StaticSite):
    """The `Site` of pictures of pages."""

    offers = ("submit",)
    observation = ObservationOptions(max_elements=0, text_chars=None)
    """Only the picture is observed."""

    def __init__(self, folder: AnyPath = FOLDER) -> None:
        super().__init__("design2code", folder, viewport=VIEWPORT)
        self._server = PictureServer(folder)

    def reference(self, task: WebTask) -> str:
        """Return the HTML of the page whose picture a task shows.

        Raises:
            SiteError: the folder has no such page, or it cannot be read.
        """
        file = self._server.folder / f"{Path(task.path).stem}.html"
        if not file.is_file():
            raise SiteError(f"{task.task_id}: {file} is not there; expected the page of {task.path} beside its picture")
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SiteError(f"{task.task_id}: {file} cannot be read as UTF-8: {error}") from error
