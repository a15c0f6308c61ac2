"""Where the pages of tasks come from.

A site serves pages on loopback, says how an episode is reset from a seed, and reads the facts that the page declares
about it. It knows no browser process, no policy and no run; a session asks it for scripts and a URL.
"""

from collections.abc import Callable
from functools import partial

from envs.sites.base import Site, SiteEpisode, StatefulSite
from envs.sites.bundled import APPLICATIONS, BundledSite
from envs.sites.design2code import Design2CodeSite
from envs.sites.miniwob import MiniWobSite
from envs.sites.static_server import StaticServer, StaticSite
from envs.types import TaskError

SITES: dict[str, Callable[[], Site]] = {
    "design2code": Design2CodeSite,
    "miniwob": MiniWobSite,
    **{name: partial(BundledSite, application) for name, application in APPLICATIONS.items()},
}
"""Sites by the name that ``WebTask.site`` refers to."""


def make_site(name: str) -> Site:
    """A new, not yet started site; ``TaskError`` lists the known ones."""
    if name not in SITES:
        raise TaskError(f"no site named {name!r}; known are: {', '.join(SITES)}")
    return SITES[name]()


__all__ = [
    "BundledSite",
    "Design2CodeSite",
    "MiniWobSite",
    "Site",
    "SiteEpisode",
    "StatefulSite",
    "StaticServer",
    "StaticSite",
    "make_site",
]
