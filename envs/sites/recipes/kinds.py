"""Makes the site of a recipe, by its kind."""

from __future__ import annotations

from envs.bundled.sites import APPLICATIONS, BundledSite
from envs.sites.base import Site
from envs.sites.mirror.site import MirrorSite
from envs.sites.recipes.group import SiteGroup
from envs.sites.recipes.recipe import SiteRecipe, find_recipe, recipe_files
from envs.sites.recipes.site import RecipeSite
from envs.sites.static_server import StaticSite
from envs.types import ConfigError
from envs.types.near import near


def site_of(recipe: SiteRecipe) -> Site:
    """Make the site of a recipe, not started.

    Raises:
        ConfigError: It names an application or a recipe that is not there.
    """
    if recipe.kind == "static":
        return StaticSite(recipe.name, recipe.path_of(recipe.start.folder), viewport=recipe.viewport)
    if recipe.kind == "group":
        recipes = {host: find_recipe(name) for host, name in recipe.sites.items()}
        return SiteGroup(recipe.name, recipes, viewport=recipe.viewport)
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
        if recipe.start.site not in APPLICATIONS:
            known = ", ".join(APPLICATIONS)
            raise ConfigError(
                f"recipe {recipe.name}: start.site: no application {recipe.start.site!r}; "
                f"{near(recipe.start.site, APPLICATIONS)}there are {known}"
            )
        return BundledSite(APPLICATIONS[recipe.start.site], recipe.name)
    return RecipeSite(recipe)


def recipe_site(name: str) -> Site | None:
    """Make the site of the recipe of a name; ``None`` if there is no such recipe.

    Raises:
        ConfigError: The recipe's file is wrong.
    """
    return site_of(find_recipe(name)) if name in recipe_files() else None
