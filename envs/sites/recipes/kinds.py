"""Makes the site of a recipe, by its kind."""

from __future__ import annotations

from collections.abc import Mapping

from envs.bundled.sites.app import Application
from envs.bundled.sites.site import BundledSite
from envs.sites.base import Site
from envs.sites.mirror.site import MirrorSite
from envs.sites.recipes.group import SiteGroup
from envs.sites.recipes.recipe import SiteRecipe, find_recipe
from envs.sites.recipes.site import RecipeSite
from envs.sites.static_server import StaticSite
from envs.types import ConfigError
from envs.types.extensions import Extensions

OURS: Extensions[Application] = Extensions("application", "rollwright.applications", {})
"""Applications of kind ``app``, as ``module:name``."""


def site_of(recipe: SiteRecipe) -> Site:
    """Make the site of a recipe, not started.

    Raises:
        ConfigError: It names an application or a recipe that is not there.
    """
    if recipe.kind == "static":
        return StaticSite(recipe.name, recipe.path_of(recipe.start.folder), viewport=recipe.viewport)
    if recipe.kind == "group":
        return SiteGroup(recipe.name, sites_of(recipe.sites), viewport=recipe.viewport)
    if recipe.kind == "mirror":
        start = recipe.start
        return MirrorSite(
            recipe.name,
            recipe.path_of(start.recording),
            address=start.address,
            ignored=start.ignored,
            viewport=recipe.viewport,
        )
    if recipe.kind == "app":
        application = OURS.find(recipe.start.application)
        if not isinstance(application, Application):
            raise ConfigError(
                f"recipe {recipe.name}: start.application: {recipe.start.application} is {application!r}; expected an "
                "envs.bundled.sites.Application"
            )
        return BundledSite(application, recipe.name, recipe.viewport)
    return RecipeSite(recipe)


def sites_of(recipes: Mapping[str, str]) -> dict[str, Site]:
    """Make the sites of hosts, given the names of their recipes; hosts of one recipe share a site.

    Raises:
        ConfigError: A recipe is not there, or its file is wrong.
    """
    made = {name: site_of(find_recipe(name)) for name in dict.fromkeys(recipes.values())}
    return {host: made[name] for host, name in recipes.items()}
