"""Tasks whose start and end are Playwright functions, as in BrowserGym.

::

    class Checkout:
        async def setup(page):
            await page.goto(urljoin(page.url, "/basket"))

        async def validate(page):
            await expect(page.get_by_text("Thank you")).to_be_visible()

A task names them in ``script`` (``my_tasks:Checkout``, or a module that has them). ``setup`` runs
before the first observation. ``validate`` runs after the end: what it returns (0 to 1, True or
False) is the task's reward, ``None`` counts as 1, and a failed ``assert`` or ``expect`` as 0. Any
other exception is a fault of the script, and the episode abstains. Either may be left out.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from envs.types import BrowserError, ConfigError
from envs.types.extensions import Extensions

if TYPE_CHECKING:
    from playwright.async_api import Page

    from envs.episodes.episode import WebEpisode

SCRIPTS: Extensions[Any] = Extensions("page script", "rollwright.page_scripts", {})
"""Scripts by name: an installed one, or ``module:Class``."""

SCRIPT_SECONDS = 120.0
"""Real seconds that a function of a script may take."""

MAX_MESSAGE = 300
"""Characters of a failed assertion that are kept as the reward's evidence."""


class PageScript:
    """The functions of a task's script."""

    def __init__(self, name: str) -> None:
        """
        Args:
            name: ``module:Class``, the name of an installed script, or a module.

        Raises:
            ConfigError: It cannot be imported, or has neither function.
        """
        self.name = name
        # A module alone is found by an attribute that each has.
        script = SCRIPTS.find(name if ":" in name or name in SCRIPTS else f"{name}:__spec__")
        holder = sys.modules[name] if isinstance(script, ModuleSpec) else script
        self._functions = {
            part: getattr(holder, part) for part in ("setup", "validate") if callable(getattr(holder, part, None))
        }
        for part, function in self._functions.items():
            if not inspect.iscoroutinefunction(function):
                raise ConfigError(f"page script {name}: {part} is no coroutine function; write async def {part}(page)")
        if not self._functions:
            raise ConfigError(f"page script {name}: has neither async def setup(page) nor async def validate(page)")

    @property
    def sets_up(self) -> bool:
        """True if it has a ``setup``."""
        return "setup" in self._functions

    async def setup(self, episode: WebEpisode) -> None:
        """Run ``setup``, if there is one.

        Raises:
            BrowserError: It failed, or the browser did.
        """
        if self.sets_up:
            async with episode.playwright() as page:
                try:
                    await self._run("setup", page)
                except AssertionError as error:
                    raise BrowserError(f"page script {self.name}: setup: {error}") from error

    async def validate(self, episode: WebEpisode) -> tuple[float, str] | None:
        """Run ``validate``: the reward and its evidence; ``None`` without one.

        Raises:
            BrowserError: It failed, or the browser did.
        """
        if "validate" not in self._functions:
            return None
        async with episode.playwright() as page:
            try:
                value = await self._run("validate", page)
            except AssertionError as error:
                return 0.0, " ".join(str(error).split())[:MAX_MESSAGE] or "an assertion failed"
        reward = 1.0 if value is None else float(value)
        if not (math.isfinite(reward) and 0 <= reward <= 1):
            raise BrowserError(f"page script {self.name}: validate gave {value!r}; expected a number from 0 to 1")
        return reward, f"validate gave {value!r}"

    async def _run(self, part: str, page: Page) -> Any:
        try:
            async with asyncio.timeout(SCRIPT_SECONDS):
                return await self._functions[part](page)
        except (AssertionError, BrowserError):
            raise
        except Exception as error:
            raise BrowserError(f"page script {self.name}: {part} raised {type(error).__name__}: {error}") from error
