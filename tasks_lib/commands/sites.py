"""The parts of ``flows.sites``: list, start and check the sites of recipes."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import yaml

from envs.sites import (
    RecipeSite,
    Site,
    SiteGroup,
    build_of,
    check_site,
    find_recipe,
    recipe_files,
    record_site,
    site_of,
)
from envs.types import ConfigError, RollwrightError, SeedRange, WebTask


def list_sites() -> list[str]:
    """Return a line for each recipe: name, kind, whether it is built, and what it is.

    A recipe that is wrong has its error in place of these.
    """
    lines = []
    for name in sorted(recipe_files()):
        try:
            recipe = find_recipe(name)
            parts = [find_recipe(part) for part in recipe.built_names]
        except RollwrightError as error:
            lines.append(f"{name:16} {error}")
            continue
        built = all(not part.served_by_process or build_of(part).finished for part in parts)
        lines.append(f"{name:16} {recipe.kind:8} {'built' if built else 'not built':10} {recipe.about}")
    return lines


def serve_site(name: str, path: str) -> None:
    """Serve one instance of a site until Ctrl-C, for a person's own browser."""
    asyncio.run(_serve(name, path))


def check(name: str) -> tuple[bool, list[str]]:
    """Check a site and return whether two instances are alike, and lines on what was seen.

    Raises:
        ConfigError: Its recipe has no processes of its own to compare.
        SiteError: It is not built, or cannot be launched.
    """
    return asyncio.run(_check(name))


def record(options: argparse.Namespace) -> list[str]:
    """Record a site with the arguments of ``flows.sites record``; return lines on what was seen.

    The archive replaces an older one; a recipe that is there stays as it is.

    Raises:
        ConfigError: An argument is wrong.
        SiteError: The site cannot be visited.
    """
    archive, recipe = options.to / f"{options.name}.har", options.to / f"{options.name}.yaml"
    address = options.address.rstrip("/")
    visit = asyncio.run(
        record_site(address, archive, hosts=tuple(options.host), paths=tuple(options.path), script=options.script)
    )
    if not recipe.exists():
        start = {"recording": archive.name, "address": address}
        recipe.write_text(yaml.safe_dump({"kind": "mirror", "start": start}, sort_keys=False))
    skipped = [f"not replayed: {count} {reason}" for reason, count in visit.recording.skipped.items()]
    refused = [f"not recorded: {host} was not named; --host https://{host} adds it" for host in visit.refused]
    return [f"{archive}: {len(visit.recording.exchanges)} exchanges", *skipped, *refused, f"{recipe}: serves them"]


async def _serve(name: str, path: str) -> None:
    site = site_of(find_recipe(name))
    if isinstance(site, SiteGroup):
        raise ConfigError(f"site {name}: only browsers of an episode find its hosts; start {_members(name)}")
    visit = WebTask(
        task_id=name, site=name, kind="visit", path=path, instruction="Look.", difficulty=1, horizon=1,
        seeds={"train": SeedRange(start=0, stop=1)},
    )  # fmt: skip
    async with _started(site):
        episode = await site.open_episode(visit, 0)
        try:
            if episode.routes:
                raise ConfigError(f"site {name}: only browsers of an episode find {site.origin}; play a task of it")
            print(f"{name}: {site.origin}{episode.path}", flush=True)
            await asyncio.Event().wait()
        finally:
            await episode.close()


async def _check(name: str) -> tuple[bool, list[str]]:
    site = site_of(find_recipe(name))
    if isinstance(site, SiteGroup):
        raise ConfigError(f"site {name} is a group of hosts; check {_members(name)}")
    if not isinstance(site, RecipeSite):
        raise ConfigError(
            f"site {name} is of kind {find_recipe(name).kind}, whose states are exact copies; nothing to check"
        )
    async with _started(site):
        seen = await check_site(site)
        assert site.report is not None
        how = f"{'forked' if site.report.warm else 'cold'}, {site.report.storage} state"
        isolated = "own namespaces" if site.report.isolated else "no namespaces"
    lines = [f"{name}: {how}, {isolated}; {seen.requests} requests to two instances"]
    lines += [f"notice: {notice}" for notice in seen.notices]
    lines += [f"changed: {', '.join(seen.changed) or 'nothing'}"]
    lines += [f"differs: {difference}" for difference in seen.differences]
    return seen.ok, [*lines, f"{name}: {'alike' if seen.ok else 'not alike'}"]


def _members(name: str) -> str:
    return " or ".join(find_recipe(name).built_names)


@asynccontextmanager
async def _started(site: Site) -> AsyncIterator[Site]:
    try:
        await site.start()
        yield site
    finally:
        await site.close()
