"""The server of one episode, and its state as facts read it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from envs.sites.recipes.container import ContainerTemplate
from envs.sites.recipes.recipe import POSTGRES
from envs.sites.recipes.template import SiteTemplate
from envs.sites.server_state import SiteState


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
