"""The server of one episode, and its state as facts read it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from envs.sites.recipes.container import ContainerTemplate
from envs.sites.recipes.kept_answers import AskedRequest
from envs.sites.recipes.recipe import POSTGRES, SiteRecipe
from envs.sites.recipes.template import SiteTemplate
from envs.sites.server_state import SiteState
from envs.types import SiteError

READY_PAUSE = 0.02
"""Seconds between tries of an instance that does not answer yet."""


@dataclass(frozen=True)
class SiteInstance:
    """The server of one episode."""

    name: str
    token: str = field(repr=False)
    template: SiteTemplate | ContainerTemplate


@dataclass(frozen=True, kw_only=True)
class InstanceState(SiteState):
    """State of an instance. Its databases are saved from its own mounts for each question."""

    instance: SiteInstance
    files: dict[str, str]
    """Databases by the name that facts give: files below the state folder, or of PostgreSQL."""

    async def sql(self, query: str, database: str) -> list[tuple[Any, ...]]:
        """Return all rows of a ``SELECT`` over the database as it is now."""
        if database not in self.files:
            return await super().sql(query, database)  # which says what there is
        if self.files[database].startswith(POSTGRES):
            assert isinstance(self.instance.template, SiteTemplate) and self.instance.template.postgres is not None
            variable = self.files[database].removeprefix(POSTGRES)
            return await self.instance.template.postgres.rows(self.instance.name, variable, query, self.deadline)
        with tempfile.TemporaryDirectory(dir=self.instance.template.folder) as folder:
            saved = Path(folder) / "saved.sqlite"
            await self.instance.template.ask("save", name=self.instance.name, file=self.files[database], to=str(saved))
            return await SiteState(databases={database: saved}, deadline=self.deadline).sql(query, database)


async def wait_until_ready(instance: SiteInstance, recipe: SiteRecipe) -> None:
    """Ask a new instance the recipe's ready path until it answers below 400.

    Raises:
        SiteError: It ends, or does not in time.
    """
    ready, begun = recipe.ready, time.monotonic()
    asked = AskedRequest("GET", ready.path, ((b"host", b"127.0.0.1"),), b"")
    while True:
        left = max(0.1, ready.seconds - (time.monotonic() - begun))
        try:
            status = (await asked.ask(instance.template.socket_of(instance.name), left)).status
            if status < 400:
                return
            seen = f"status {status}"
        except httpx.TransportError as error:
            seen = type(error).__name__
        look = await instance.template.ask("look", name=instance.name)
        if not look["alive"]:
            limit = f" at {look['limit']} of the recipe" * bool(look["limit"])
            raise SiteError(
                f"site {recipe.name}: an instance ended before it was ready{limit}. Its log:\n{look['log'].strip()}"
            )
        if time.monotonic() - begun > ready.seconds:
            raise SiteError(
                f"site {recipe.name}: {ready.path} answers {seen} after {ready.seconds:g} s; expected a status below "
                f"400. Correct ready in the recipe. The log of the instance:\n{look['log'].strip()}"
            )
        await asyncio.sleep(READY_PAUSE)
