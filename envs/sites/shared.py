"""Started sites that several environments of one event loop share."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack

from envs.sites.base import Site
from envs.sites.registry import make_site


class SharedSites:
    """Sites by name, each started at its first use and closed together."""

    def __init__(self) -> None:
        self._sites: dict[str, Site] = {}
        self._starting: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def started(self, name: str) -> Site:
        """Return the started site of a name.

        Raises:
            TaskError: No site has this name.
            SiteError: It cannot be served.
        """
        async with self._starting[name]:
            if name not in self._sites:
                site = make_site(name)
                try:
                    await site.start()
                except BaseException:
                    await site.close()
                    raise
                self._sites[name] = site
        return self._sites[name]

    async def close(self) -> None:
        """Close all sites, also if one fails; raise what failed."""
        async with AsyncExitStack() as stack:
            for site in self._sites.values():
                stack.push_async_callback(site.close)
            self._sites.clear()
