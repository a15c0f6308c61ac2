"""A bundled site as a session sees it. Pages on loopback, with server state for each episode."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from urllib.parse import quote

from envs.bundled.sites.app import COOKIE, KEY_HEADER, Application, make_app
from envs.bundled.sites.states import AppState, AppStates
from envs.observation import ObservationOptions
from envs.sites.app_server import AppServer
from envs.sites.base import Site, SiteEpisode
from envs.sites.server_state import SiteState
from envs.types import WebTask

VIEWPORT = (1008, 756)
"""Multiples of 28 (a merged patch of Qwen2-VL) with the shape of a laptop's window."""


@dataclass(frozen=True, slots=True)
class BundledAttempt(SiteEpisode):
    """State of a bundled site for one episode: its own database."""

    state: SiteState
    states: AppStates
    token: str

    async def close(self) -> None:
        """Drop the state."""
        self.states.close(self.token)


class BundledSite(Site):
    """The `Site` of an `Application`.

    The seed of an episode is that of its world. Every episode has its own browser context and its
    own database.
    """

    observation = ObservationOptions(offscreen=True)
    """Elements out of view are listed too: pages are short, and text policies need not scroll."""
    viewport = VIEWPORT

    def __init__(self, application: Application, name: str = "") -> None:
        self.name = name or application.name
        self._key = secrets.token_urlsafe(24)
        self.states = AppStates(application.build)
        self.app = make_app(application, self.states, self._key)
        """The ASGI application, for callers that use it without a socket."""
        self._server = AppServer(self.app, application.name)

    @property
    def origin(self) -> str:
        """``http://127.0.0.1:<port>``."""
        return self._server.origin

    async def start(self) -> None:
        """Begin to serve."""
        await self._server.start()

    async def close(self) -> None:
        """Stop serving, and drop all states."""
        await self._server.close()
        self.states.close_all()

    async def open_episode(self, task: WebTask, seed: int) -> BundledAttempt:
        """Copy the world of the seed for an episode."""
        origin = self.origin
        opening = asyncio.get_running_loop().run_in_executor(None, self.states.open, seed)
        try:
            state = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._drop)  # the thread goes on, and its caller cannot close what it opens
            raise
        headers = {"cookie": f"{COOKIE}={state.token}", KEY_HEADER: self._key}
        asked = SiteState(origin=origin, databases={"": state.uri}, headers=headers)
        path = f"/-/begin/{state.token}?to={quote(task.path)}"
        return BundledAttempt(path, asked, self.states, state.token)

    def _drop(self, opened: asyncio.Future[AppState]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self.states.close(opened.result().token)
