"""Sites that somebody else serves, such as the open web or a WebArena host.

A task's site is then a host (``shop.example``, ``shop.example:8443``) or a name that the
configuration gives an address. Its pages reach that host and nothing else, unless the configuration
says more. Nothing is started, and nothing is known of a page but what it shows: no seed, no
declared end. An answer ends an episode.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path

from envs.egress import AllowList
from envs.egress.addresses import as_address, canonical_host, is_local_name, is_this_machine
from envs.sites.base import Site, SiteEpisode
from envs.sites.login_script import LOGINS, run_login
from envs.sites.scripted_browser import find_script
from envs.sites.server_state import SiteState
from envs.sites.storage_state import read_storage_state
from envs.types import ConfigError, WebTask
from envs.types.extensions import is_reference


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """A run's settings for the sites that it does not serve itself."""

    addresses: dict[str, str] = field(default_factory=dict)
    """Addresses of sites by name.

    For example ``{"gitlab": "http://127.0.0.1:8023", "admin": "http://shop.example:7780/admin"}``.
    Tasks begin below the path of an address. Other hosts are ``https://<host>``.
    """
    subdomains: bool = False
    """True if pages may reach the subdomains of their host too (without a leading ``www.``)."""
    reach: tuple[str, ...] = ()
    """Further origins that they may reach: ``https://*.cdn.example``."""
    logins: dict[str, str] = field(default_factory=dict)
    """Log-ins by the site's name: a file, or a script as ``module:function``.

    A file has the form of Playwright's storage state and is read where the browser runs. A script
    (`envs.sites.login_script`) is run there once, before the first episode. One key is no site:
    ``shopping_site_admin``, the account with which WebArena's checks ask the shop.
    """
    login: str = ""
    """Log-in of the sites that ``logins`` does not name."""
    pictures: str = ""
    """Folder of the pictures that tasks and their checks name (`envs.sites.pictures`)."""
    recipes: dict[str, str] = field(default_factory=dict)
    """Recipes that serve hosts in place of their owners, by host: ``{"shop.example": "oscar"}``.

    Tasks that begin on one of these hosts reach all of them (`SiteGroup`), over HTTPS.
    """


class LiveSite(Site):
    """The `Site` of one host. A new browser context resets the browser, not the server."""

    foreign = True
    background = True
    """Real pages keep content in the browser's stores, and draw it when those have answered."""

    def __init__(self, name: str, options: LiveOptions | None = None) -> None:
        """
        Raises:
            ConfigError: no host has this name, or it is one of this machine or of a private network
                that the configuration does not name.
        """
        options = options or LiveOptions()
        self.name = name
        self._origin, below = _locate(name, options.addresses)
        self.below = below
        """Path below which tasks begin."""
        self.hosts = (*(_domain_origins(self._origin) if options.subdomains else ()), *options.reach)
        AllowList.of(self._origin, *self.hosts)
        self.login = options.logins.get(name, options.login)
        """Its log-in: a file, a script, or empty."""

    @property
    def origin(self) -> str:
        """Origin of the host, or of the address that the configuration gives it."""
        return self._origin

    async def start(self) -> None:
        """Read the log-in's file or run its script, if there is one.

        The site itself is not started: if it is down, its pages show that.

        Raises:
            SiteError: The file cannot be read, or the script fails.
            ConfigError: The script cannot be imported.
        """
        if not self.login:
            return
        if is_reference(self.login):
            state = await run_login(self.login, self._origin + self.below, AllowList.of(self._origin, *self.hosts))
        else:
            state = await asyncio.to_thread(read_storage_state, Path(self.login))
        self.cookies, self.stores = state.cookies, state.stores

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        """Return the address of the task, and a state that asks the server with GET.

        The server's state is shared by everybody.
        """
        state = SiteState(origin=self.origin, allow=AllowList.of(self.origin))
        return SiteEpisode(self.below + task.path, state)


def check_login(login: str) -> None:
    """Check that a log-in can be used here: its file is read, its script imported.

    Raises:
        SiteError: The file cannot be read.
        ConfigError: The script cannot be imported.
    """
    if is_reference(login):
        find_script(LOGINS, login)
    else:
        read_storage_state(Path(login))


def split_address(address: str) -> tuple[str, str]:
    """Split a site's address into origin and path, without a ``/`` at the end.

    Raises:
        ConfigError: it is no valid address of a site.
    """
    match = re.fullmatch(r"([a-z]+://[^/?#]*)([^?#]*)", address)
    if match is None or "*" in address:
        raise ConfigError(f"address {address!r}: write scheme://host:port or scheme://host:port/path")
    AllowList.of(match[1])
    return match[1], match[2].rstrip("/")


def _locate(name: str, addresses: dict[str, str]) -> tuple[str, str]:
    """Return the origin of a site, and the path that its tasks begin below."""
    if name in addresses:
        return split_address(addresses[name])
    if "*" in name:
        raise ConfigError(f"site {name!r}: a wildcard is no host; name one, and give the others in tasks.reach")
    try:
        (origin,) = AllowList.of(f"https://{name}").origins
    except ConfigError as error:
        raise ConfigError(f"site {name!r} has no address: {error}; or {_give_address(name)}") from error
    if is_this_machine(origin.host):
        raise ConfigError(
            f"site {name!r} is on this machine, whose ports no task reaches by itself; "
            f"to allow it {_give_address(name, f'http://{name}')}"
        )
    if as_address(origin.host) is None and "." not in origin.host:
        raise ConfigError(f"no site named {name!r}, and it is no host; {_give_address(name)}")
    return f"https://{name}", ""


def _give_address(name: str, address: str = "http://…") -> str:
    """Format the remedy for a site without an address, in a run and in `open_env`."""
    return (
        f"give its address: in a run --set tasks.addresses.{name}={address}, "
        f"for open_env live=LiveOptions(addresses={{{name!r}: {address!r}}})"
    )


def _domain_origins(origin: str) -> tuple[str, ...]:
    """Return the origins of a host's domain and subdomains; none of IP and local addresses."""
    (only,) = AllowList.of(origin).origins
    domain = canonical_host(only.host.removeprefix("www."))
    if domain is None or "." not in domain or as_address(domain) is not None or is_local_name(domain):
        return ()
    return tuple(f"{only.scheme}://{host}:{only.port}" for host in (domain, f"*.{domain}"))
