"""Sites: they serve the pages of tasks.

A site serves pages on loopback, resets an episode from a seed, and reads the facts that its pages
declare. It knows no browser process, no policy and no run; a session asks it for scripts and a URL.
"""

from typing import TYPE_CHECKING

from envs.egress import AllowList
from envs.lazy import lazy_names
from envs.sites.base import Site, SiteEpisode
from envs.sites.design2code import Design2CodeSite
from envs.sites.live import LiveOptions, LiveSite, check_login, split_address
from envs.sites.miniwob import MiniWobSite
from envs.sites.server_state import SiteState
from envs.sites.static_server import StaticServer, StaticSite
from envs.sites.storage_state import read_storage_state

if TYPE_CHECKING:
    from envs.sites.mirror.record import record_site
    from envs.sites.recipes.build import build_of, build_site, clean_builds
    from envs.sites.recipes.check import check_site, visit_of
    from envs.sites.recipes.engine import find_engine
    from envs.sites.recipes.group import SiteGroup
    from envs.sites.recipes.kinds import site_of
    from envs.sites.recipes.recipe import find_recipe, recipe_files
    from envs.sites.recipes.site import RecipeSite
    from envs.sites.registry import SITES, is_served, make_site
    from envs.sites.shared import SharedSites

__all__ = [
    "SITES",
    "AllowList",
    "Design2CodeSite",
    "LiveOptions",
    "LiveSite",
    "MiniWobSite",
    "RecipeSite",
    "SharedSites",
    "Site",
    "SiteEpisode",
    "SiteGroup",
    "SiteState",
    "StaticServer",
    "StaticSite",
    "build_of",
    "build_site",
    "check_login",
    "check_site",
    "clean_builds",
    "find_engine",
    "find_recipe",
    "is_served",
    "make_site",
    "read_storage_state",
    "recipe_files",
    "record_site",
    "site_of",
    "split_address",
    "visit_of",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.sites.mirror.record": ("record_site",),
        "envs.sites.recipes.build": ("build_of", "build_site", "clean_builds"),
        "envs.sites.recipes.check": ("check_site", "visit_of"),
        "envs.sites.recipes.engine": ("find_engine",),
        "envs.sites.recipes.recipe": ("find_recipe", "recipe_files"),
        "envs.sites.recipes.group": ("SiteGroup",),
        "envs.sites.recipes.kinds": ("site_of",),
        "envs.sites.recipes.site": ("RecipeSite",),
        "envs.sites.registry": ("SITES", "is_served", "make_site"),
        "envs.sites.shared": ("SharedSites",),
    },
)
