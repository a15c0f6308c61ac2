"""Recipes and sites of these tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from envs.sites.recipes.build import build_site
from envs.sites.recipes.instance import SiteInstance
from envs.sites.recipes.recipe import read_recipe
from envs.sites.recipes.site import RecipeSite

CANARY = Path(__file__).parent / "canary"
VALUES: dict[str, Any] = {
    "kind": "wsgi",
    "build": {"code": str(CANARY), "seed": ["python", "-m", "canary"]},
    "start": {"application": "canary:application", "after_fork": "canary:remade"},
    "warm": ["/"],
    "state": {"databases": {"": "shop.sqlite"}},
    "limits": {"free_memory_mb": 64, "disk_mb": 256},
}


def write_recipe(folder: Path, name: str = "canary", /, **changes: Any) -> Path:
    """Write the recipe of the canary application with some keys changed."""
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**VALUES, **changes}, sort_keys=False))
    return path


@asynccontextmanager
async def started(path: Path, *, isolate: bool = True) -> AsyncIterator[RecipeSite]:
    """The started site of a recipe, built first."""
    recipe = read_recipe(path)
    build_site(recipe)
    site = RecipeSite(recipe, isolate=isolate)
    try:
        await site.start()
        yield site
    finally:
        await site.close()


class Visitor:
    """Asks one instance through the front."""

    def __init__(self, site: RecipeSite, instance: SiteInstance) -> None:
        self.site, self.instance = site, instance

    async def ask(self, path: str, item: str = "") -> httpx.Response:
        """Answer to a GET, or to a POST of a form with ``item``."""
        async with httpx.AsyncClient(base_url=self.site.origin, trust_env=False, timeout=30) as client:
            headers = dict(self.site.server_of(self.instance).headers)
            if item:
                return await client.post(path, data={"item": item}, headers=headers)
            return await client.get(path, headers=headers)

    async def text(self, path: str) -> str:
        """The text of a page."""
        answer = await self.ask(path)
        assert answer.status_code == 200, answer.text
        return answer.text


@asynccontextmanager
async def visited(site: RecipeSite) -> AsyncIterator[Visitor]:
    """A new instance, dropped at the end."""
    instance = await site.launch()
    try:
        yield Visitor(site, instance)
    finally:
        await site.drop(instance)
