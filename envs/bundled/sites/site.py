"""A bundled site as a session sees it. Pages on loopback, with server state for each episode."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from envs.bundled.sites.app import Application, AppVisitor, make_app
from envs.bundled.sites.states import AppState, AppStates
from envs.observation import ObservationOptions
from envs.sites.recipes.front import COOKIE, FrontedEpisode, FrontedSite, address_at
from envs.sites.server_state import SiteState
from envs.sites.site_guest.state import hash_tables
from envs.types import WebTask

VIEWPORT = (1008, 756)
"""Multiples of 28 (a merged patch of Qwen2-VL) with the shape of a laptop's window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundledAttempt(FrontedEpisode):
    """State of a bundled site for one episode: its own database."""

    state: SiteState
    kept: AppState
    states: AppStates
    grading_token: str
    """Token by which grading asks."""

    async def hash_state(self) -> dict[str, str]:
        """Return a hash for each table."""
        with self.kept.lock:
            return hash_tables(self.kept.connection)

    async def close(self) -> None:
        """Drop the state."""
        for token in (self.token, self.grading_token):
            self.front.instances.pop(token, None)
        self.states.close(self.kept)


class BundledSite(FrontedSite):
    """The `Site` of an `Application`.

    The seed of an episode is that of its world. Every episode has its own browser context and its
    own database.
    """

    repeatable = True
    observation = ObservationOptions(offscreen=True)
    """Elements out of view are listed too: pages are short, and text policies need not scroll."""

    def __init__(self, application: Application, name: str = "", viewport: tuple[int, int] = VIEWPORT) -> None:
        super().__init__(name or application.name, viewport)
        self.states = AppStates(application.build)
        self._app = make_app(application)

    async def close(self) -> None:
        """Stop serving, and drop all states."""
        await super().close()
        self.states.close_all()

    async def open_episode(self, task: WebTask, seed: int) -> BundledAttempt:
        """Copy the world of the seed for an episode."""
        origin = self.origin
        opening = asyncio.get_running_loop().run_in_executor(None, self.states.open, seed)
        try:
            kept = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(self._drop)  # the thread goes on, and its caller cannot close what it opens
            raise
        return self.admitted(kept, origin, task.path)

    def admitted(self, kept: AppState, origin: str, path: str) -> BundledAttempt:
        """Return the episode of an opened state, answered from now on."""
        token, grading = (self._front.admit(AppVisitor(self._app, kept, grading)) for grading in (False, True))
        asked = SiteState(origin=origin, databases={"": kept.uri}, headers={"cookie": f"{COOKIE}={grading}"})
        return BundledAttempt(
            path=self._front.entrance(token, path),
            address=address_at(origin, token),
            state=asked,
            front=self._front,
            token=token,
            kept=kept,
            states=self.states,
            grading_token=grading,
        )

    def _drop(self, opened: asyncio.Future[AppState]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            self.states.close(opened.result())
