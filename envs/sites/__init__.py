"""Where the pages of tasks come from.

A site serves pages on loopback, says how an episode is reset from a seed, and reads the facts that the page declares
about it. It knows no browser process, no policy and no run; a session asks it for scripts and a URL.
"""

from envs.sites.base import Site
from envs.sites.live import LiveOptions, LiveSite
from envs.sites.miniwob import MiniWobSite
from envs.sites.static_server import StaticServer, StaticSite
from envs.types import ConfigError, TaskError

SITES = {"miniwob": MiniWobSite}
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
        raise TaskError(f"{error}. Sites of ours are: {', '.join(SITES)}") from error


__all__ = ["LiveOptions", "LiveSite", "MiniWobSite", "Site", "StaticServer", "StaticSite", "make_site"]
