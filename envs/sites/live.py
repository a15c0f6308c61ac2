"""Sites that somebody else serves: the open web, a WebArena host, an application on a port of this machine.

A task's site is then a host (``shop.example``, ``shop.example:8443``) or a name that the configuration gives an address. Its pages reach that
host and nothing else, unless the configuration says more. Nothing is started, and nothing is known of a page but what it shows: no seed, no
declared end. An answer ends an episode.
"""

from __future__ import annotations

import asyncio
import re
from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from envs.egress import AllowList
from envs.egress.addresses import as_address, canonical_host, is_local_name
from envs.sites.base import Site, SiteEpisode
from envs.sites.server_state import SiteState
from envs.types import ConfigError, SiteError, WebTask
from envs.types.paths import AnyPath

COOKIE_FIELDS = ("path", "secure", "httpOnly", "sameSite")
"""What else the browser is told of a cookie."""
SAME_SITE = ("Strict", "Lax", "None")
"""What a cookie's ``sameSite`` may be."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """What a run says of the sites that it does not serve itself."""

    addresses: dict[str, str] = field(default_factory=dict)
    """Where a site is, by its name: ``{"gitlab": "http://127.0.0.1:8023", "admin": "http://shop.example:7780/admin"}``. With a path, tasks begin
    below it. Other hosts are ``https://<host>``."""
    subdomains: bool = False
    """Their pages may reach the subdomains of their host too (without a leading ``www.``)."""
    reach: tuple[str, ...] = ()
    """Further origins that they may reach: ``https://*.cdn.example``."""
    logins: dict[str, str] = field(default_factory=dict)
    """Files with the cookies of a log-in by the site's name, in the form of Playwright's storage state, read where the browser runs. Not of
    a site: ``shopping_site_admin``, the account that WebArena's checks ask the shop as."""


class LiveSite(Site):
    """The `Site` of one host. A browser context of its own is the reset of an episode; what it did to the server stays."""

    foreign = True
    background = True
    """Real pages keep what they show in the browser's stores, and draw it when those have answered."""

    def __init__(self, name: str, options: LiveOptions | None = None) -> None:
        """
        Raises:
            ConfigError: no host has this name, or it is one of this machine or of a private network that the configuration does not name.
        """
        options = options or LiveOptions()
        self.name = name
        self._origin, self._below = _place(name, options.addresses)
        self.hosts = (*(_around(self._origin) if options.subdomains else ()), *options.reach)
        AllowList.of(self._origin, *self.hosts)
        self._login = options.logins.get(name, "")

    @property
    def origin(self) -> str:
        """Of the host, or of the address that the configuration gives it."""
        return self._origin

    async def start(self) -> None:
        """Read the log-in, if there is one. The site itself is there, or its pages say that it is not.

        Raises:
            SiteError: the file of the log-in cannot be read.
        """
        if self._login:
            self.cookies = await asyncio.to_thread(read_cookies, Path(self._login))

    async def open_episode(self, task: WebTask, seed: int) -> SiteEpisode:
        """Where the task begins. Its server's state is that of everybody; what it answers to a GET can be asked for."""
        state = SiteState(origin=self.origin, allow=AllowList.of(self.origin))
        return SiteEpisode(self._below + task.path, state)


def read_cookies(path: AnyPath) -> tuple[Mapping[str, Any], ...]:
    """The cookies of a storage state (``{"cookies": […], "origins": […]}``), as the browser is given them. What pages keep beside cookies is
    not restored.

    Raises:
        SiteError: no such file, or not of this form. The message has none of its values.
    """
    try:
        given = orjson.loads(Path(path).read_bytes().removeprefix(BOM_UTF8))["cookies"]
    except OSError as error:
        raise SiteError(f"log-in {path}: cannot be read: {error.strerror}") from None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        given = None
    if not isinstance(given, list):
        raise SiteError(f"log-in {path}: is no storage state; expected cookies with name, value and domain")
    for number, each in enumerate(given, start=1):
        if wrong := _wrong_with(each):
            raise SiteError(f"log-in {path}: cookie {number} of {len(given)}: {wrong}")
    return tuple(map(_cookie, given))


def _wrong_with(given: object) -> str:
    """What no browser would take of a cookie, without its values; empty if it is one."""
    if not isinstance(given, dict):
        return "is no object; expected name, value and domain"
    for name in ("name", "value", "domain"):
        if not isinstance(given.get(name), str):
            return f"{name} is missing or no text"
    if not isinstance(given.get("path", "/"), str):
        return "path is no text"
    for name in ("secure", "httpOnly"):
        if not isinstance(given.get(name, False), bool):
            return f"{name} is not true or false"
    if given.get("sameSite", "Lax") not in SAME_SITE:
        return f"sameSite is none of {', '.join(SAME_SITE)}"
    expires = given.get("expires", -1)
    if type(expires) not in (int, float) or (expires < 0 and expires != -1):
        return "expires is no time in seconds since 1970, and not -1"
    return ""


def _cookie(given: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: given[name] for name in COOKIE_FIELDS if name in given}
    made = {"name": given["name"], "value": given["value"], "domain": given["domain"], "path": "/", **kept}
    # -1 stands for the end of the session, which the browser wants left out.
    return made if given.get("expires", -1) == -1 else {**made, "expires": given["expires"]}


def split_address(address: str) -> tuple[str, str]:
    """Origin and path (without a ``/`` at its end) of a site's address.

    Raises:
        ConfigError: it is none that a site may have.
    """
    found = re.fullmatch(r"([a-z]+://[^/?#]*)([^?#]*)", address)
    if found is None or "*" in address:
        raise ConfigError(f"address {address!r}: write scheme://host:port or scheme://host:port/path")
    AllowList.of(found[1])
    return found[1], found[2].rstrip("/")


def _place(name: str, addresses: dict[str, str]) -> tuple[str, str]:
    """Origin of a site, and the path that its tasks begin below."""
    if name in addresses:
        return split_address(addresses[name])
    if "*" in name:
        raise ConfigError(f"site {name!r}: a wildcard is no host; name one, and give the others in tasks.reach")
    try:
        (origin,) = AllowList.of(f"https://{name}").origins
    except ConfigError as error:
        raise ConfigError(f"site {name!r} has no address: {error}; or {_give_address(name)}") from error
    address = as_address(origin.host)
    if is_local_name(origin.host) or (address is not None and address.is_loopback):
        raise ConfigError(
            f"site {name!r} is on this machine, whose ports no task reaches by itself; "
            f"to allow it {_give_address(name, f'http://{name}')}"
        )
    if address is None and "." not in origin.host:
        raise ConfigError(f"no site named {name!r}, and it is no host; {_give_address(name)}")
    return f"https://{name}", ""


def _give_address(name: str, address: str = "http://…") -> str:
    """The remedy for a site without an address, in a run and in `open_env`."""
    return (
        f"give its address: in a run --set tasks.addresses.{name}={address}, "
        f"for open_env live=LiveOptions(addresses={{{name!r}: {address!r}}})"
    )


def _around(origin: str) -> tuple[str, ...]:
    """The domain of a host and its subdomains; none of an address or a name of this machine."""
    (only,) = AllowList.of(origin).origins
    domain = canonical_host(only.host.removeprefix("www."))
    if domain is None or "." not in domain or as_address(domain) is not None or is_local_name(domain):
        return ()
    return tuple(f"{only.scheme}://{host}:{only.port}" for host in (domain, f"*.{domain}"))
