"""Offers the sites of recipes that a worker can serve, as Dask resources ``site=NAME``.

``dask worker ADDRESS --preload tasks_lib.processes.site_offers``: a worker offers what is built on
its machine when it starts. Shards with tasks on such a site go to workers that offer it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import distributed

from envs.sites import LiveOptions, LiveSite, build_of, find_engine, find_recipe, is_served, recipe_files
from envs.types import ConfigError, RollwrightError
from tasks_lib.processes.dask_clients import PRELOAD, workers_offering

UNITS = 1_000_000
"""Units of each site that a worker offers; a shard takes one, so none waits for it."""

logger = logging.getLogger(__name__)


def dask_setup(worker: Any) -> None:
    """Offer the sites that can be served here; called by Dask before a worker registers."""
    resources = {resource_of(name): UNITS for name in recipe_files() if _can_be_served(name)}
    worker.state.total_resources.update(resources)
    worker.state.available_resources.update(resources)


def resource_of(name: str) -> str:
    """Return the Dask resource of workers that can serve a recipe."""
    return f"site={name}"


def needed_offers(sites: Iterable[str], live: LiveOptions) -> dict[str, int]:
    """Return the resources that a worker needs for tasks on these sites.

    Only recipes with server processes need one: every worker serves the other sites.
    """
    files, names = recipe_files(), set[str]()
    for site in sites:
        if not is_served(site, live.addresses):
            if live.recipes and LiveSite(site, live).origin.partition("://")[2] in live.recipes:
                names |= set(live.recipes.values())
        elif site in files:
            names.add(site)
    recipes = [find_recipe(part) for name in names for part in find_recipe(name).built_names]
    return {resource_of(recipe.name): 1 for recipe in recipes if recipe.served_by_process}


def check_offers(client: distributed.Client, sites: Iterable[str], live: LiveOptions, resource: str) -> None:
    """Refuse sites that no worker can serve, before their tasks wait for one.

    Args:
        resource: Resource of the workers that play the tasks.

    Raises:
        ConfigError: No worker offers all that tasks of a site need.
    """
    workers = client.scheduler_info(n_workers=-1)["workers"]
    offers = [workers[address]["resources"].keys() for address in workers_offering(client, resource)]
    for site in sorted(sites):
        needed = needed_offers([site], live)
        if needed and not any(needed.keys() <= offer for offer in offers):
            names = " ".join(name.removeprefix("site=") for name in sorted(needed))
            raise ConfigError(
                f"no worker can serve the site {site}: none offers {' and '.join(sorted(needed))}; run python -m flows.sites "
                f"build {names} on a worker's machine, and start that worker again with --preload {PRELOAD}"
            )


def _can_be_served(name: str) -> bool:
    try:
        recipe = find_recipe(name)
        if recipe.served_by_process:
            build_of(recipe).require_finished()
        if recipe.kind == "container":
            find_engine()
    except RollwrightError as error:
        logger.info("site %s is not offered: %s", name, error)
        return False
    return recipe.served_by_process
