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
from envs.sites.storage_state import StorageState, read_storage_state

if TYPE_CHECKING:
    from envs.bundled.sites import APPLICATIONS, BundledSite
    from envs.sites.registry import SITES, is_served, make_site
    from envs.sites.shared import SharedSites

__all__ = [
    "APPLICATIONS",
    "SITES",
    "AllowList",
    "BundledSite",
    "Design2CodeSite",
    "LiveOptions",
    "LiveSite",
    "MiniWobSite",
    "SharedSites",
    "Site",
    "SiteEpisode",
    "SiteState",
    "StaticServer",
    "StaticSite",
    "StorageState",
    "check_login",
    "is_served",
    "make_site",
    "read_storage_state",
    "split_address",
]

__getattr__ = lazy_names(
    __name__,
    {
        "envs.bundled.sites": ("APPLICATIONS", "BundledSite"),
        "envs.sites.registry": ("SITES", "is_served", "make_site"),
        "envs.sites.shared": ("SharedSites",),
    },
)
