"""Where the pages of tasks come from.

A site serves pages on loopback, says how an episode is reset from a seed, and reads the facts that the page declares
about it. It knows no browser process, no policy and no run; a session asks it for scripts and a URL.
"""

from collections.abc import Callable
from functools import partial

from envs.sites.base import Site, SiteEpisode, StatefulSite
from envs.sites.bundled import APPLICATIONS, BundledSite
from envs.sites.design2code import Design2CodeSite
from envs.sites.live import LiveOptions, LiveSite, split_address
from envs.sites.miniwob import MiniWobSite
from envs.sites.static_server import StaticServer, StaticSite
from envs.types import ConfigError, TaskError
from envs.types.near import near

SITES: dict[str, Callable[[], Site]] = {
    "design2code": Design2CodeSite,
    "miniwob": MiniWobSite,
    **{name: partial(BundledSite, application) for name, application in APPLICATIONS.items()},
}
"""Sites by the name that ``WebTask.site`` refers to."""


def make_site(name: str, live: LiveOptions | None = None) -> Site:
    """A new, not yet started site: one of ours by its name, else the live site of that name or host.

    Raises:
        TaskError: it is neither; with the names of ours.
    """
    if name in SITES and name not in (live or LiveOptions()).addresses:
        return SITES[name]()
    try:
        return LiveSite(name, live)
    except ConfigError as error:
        raise TaskError(f"{error}. {near(name, SITES).capitalize()}Bundled sites are: {', '.join(SITES)}") from error


__all__ = [
    "BundledSite",
    "Design2CodeSite",
    "LiveOptions",
    "LiveSite",
    "MiniWobSite",
    "Site",
    "SiteEpisode",
    "StatefulSite",
    "StaticServer",
    "StaticSite",
    "make_site",
    "split_address",
]
