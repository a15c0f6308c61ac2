"""Finds the site of a task by its name: ours, installed, recipe, ``module:function`` or live."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from envs.sites.base import Site
from envs.sites.design2code import Design2CodeSite
from envs.sites.live import LiveOptions, LiveSite
from envs.sites.miniwob import MiniWobSite
from envs.sites.recipes.group import SiteGroup
from envs.sites.recipes.kinds import site_of, sites_of
from envs.sites.recipes.recipe import find_recipe, is_recipe, recipe_files
from envs.types import ConfigError, TaskError
from envs.types.extensions import Extensions, is_reference
from envs.types.near import near

SITES: Extensions[Callable[[], Site]] = Extensions(
    "site",
    "rollwright.sites",
    {
        "design2code": Design2CodeSite,
        "miniwob": MiniWobSite,
    },
)
"""Makers of sites, by the name in ``WebTask.site``: the project's own, then installed ones."""


def is_served(name: str, addresses: Mapping[str, str] = MappingProxyType({})) -> bool:
    """Return True if a task's site is started for it: ours, installed, a recipe's, or
    ``module:function``.

    Any other site is a live one.

    Args:
        addresses: Addresses of live sites by name; a name among them is live.
    """
    return name not in addresses and (name in SITES or is_reference(name) or is_recipe(name))


def make_site(name: str, live: LiveOptions | None = None) -> Site:
    """Make a site that is not started yet.

    It is one that is served (`is_served`), else the live site of that name or host.

    Raises:
        TaskError: it is neither; the message lists the served names.
        ConfigError: a site of an extension cannot be imported in this process, or is not a `Site`.
    """
    if is_served(name, (live or LiveOptions()).addresses):
        return _make_served(name)
    try:
        site = LiveSite(name, live)
    except ConfigError as error:
        known = [*SITES, *recipe_files()]
        raise TaskError(f"{error}. {near(name, known).capitalize()}Served sites are: {', '.join(known)}") from error
    return _by_recipes(site, live or LiveOptions())


def _by_recipes(site: LiveSite, live: LiveOptions) -> Site:
    """Return the group of hosts that recipes serve if a site's host is one of them, else the site.

    Its browsers have the log-ins of all of these hosts.
    """
    scheme, _, host = site.origin.partition("://")
    if host not in live.recipes:
        return site
    if scheme != "https":
        raise ConfigError(f"site {site.name}: its address is {site.origin}; recipes serve https://{host}")
    others = [
        file
        for name, file in live.logins.items()
        if urlsplit(live.addresses.get(name, f"//{name}")).hostname in live.recipes
    ]
    logins = dict.fromkeys(filter(None, (site.login, *others)))
    return SiteGroup(site.name, sites_of(live.recipes), main=host, below=site.below, logins=tuple(logins))


def _make_served(name: str) -> Site:
    if name not in SITES and is_recipe(name):
        return site_of(find_recipe(name))
    make = SITES.find(name)
    site = make() if callable(make) else make
    if not isinstance(site, Site):
        raise ConfigError(
            f"site {name!r}: {make!r} made {site!r}; expected an envs.Site, such as a StaticSite or a subclass of Site"
        )
    if site.name != name:
        raise ConfigError(f"site {name!r}: its name is {site.name!r}; it must be the one that tasks give")
    return site
