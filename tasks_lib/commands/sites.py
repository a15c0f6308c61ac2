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
    visit_of,
)
from envs.types import ConfigError, RollwrightError


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
    """Check a site and return whether two episodes are alike, and lines on what was seen.

    Raises:
        ConfigError: Its recipe is wrong.
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
    async with _started(site):
        episode = await site.open_episode(visit_of(find_recipe(name), path), 0)
        try:
            if episode.routes:
                raise ConfigError(f"site {name}: only browsers of an episode find {site.origin}; play a task of it")
            print(f"{name}: {site.origin}{episode.path}", flush=True)
            await asyncio.Event().wait()
        finally:
            await episode.close()


async def _check(name: str) -> tuple[bool, list[str]]:
    recipe = find_recipe(name)
    site = site_of(recipe)
    async with _started(site):
        seen = await check_site(site, recipe)
    members = site.members.items() if isinstance(site, SiteGroup) else [(name, site)]
    lines = [line for place, member in members for line in _described(place, member)]
    lines += [f"{name}: {seen.requests} requests in two episodes"]
    lines += [f"not forked: {seen.fork_problem}"] if seen.fork_problem else ["a fork was compared too"]
    lines += [f"changed: {', '.join(seen.changed) or 'nothing'}"]
    lines += [f"differs: {difference}" for difference in seen.differences]
    return seen.ok, [*lines, f"{name}: {'alike' if seen.ok else 'not alike'}"]


def _described(place: str, site: Site) -> list[str]:
    """Return how the episodes of a checked site are served, and what is missing here."""
    report = site.report if isinstance(site, RecipeSite) else None
    if report is None:
        return [f"{place}: served by this process"]
    how = f"{'forked' if report.warm else 'cold'}, {report.storage} state"
    isolated = "own namespaces" if report.isolated else "no namespaces"
    return [f"{place}: {how}, {isolated}", *(f"notice: {notice}" for notice in report.notices)]


def _members(name: str) -> str:
    return " or ".join(find_recipe(name).built_names)


@asynccontextmanager
async def _started(site: Site) -> AsyncIterator[Site]:
    try:
        await site.start()
        yield site
    finally:
        await site.close()
