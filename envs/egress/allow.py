"""The hosts and ports that a run's sites name. Everything else is denied.

A site is written as an origin: ``http://127.0.0.1:8080``, ``https://shop.example``,
``https://*.example.com``. A wildcard stands for subdomains, at any depth, and not for the domain
itself. Loopback is reachable only at the host and port that a site names; no wildcard and no answer
of a name server leads there. Private and link-local addresses cannot be named: publish such a site
on loopback.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from envs.egress.addresses import (
    METADATA_NAMES,
    IpAddress,
    Reason,
    as_address,
    canonical_host,
    is_local_name,
    refuse_address,
)
from envs.types import ConfigError

PORTS = {"http": 80, "https": 443}
WEBSOCKETS = {"ws": "http", "wss": "https"}
BLANK = frozenset({"", "about:blank"})
"""Pages without an origin that every tab begins with."""


@dataclass(frozen=True, slots=True)
class Origin:
    """One entry of the list."""

    scheme: str
    """``http`` or ``https``; websockets are of the scheme that they are upgraded from."""
    host: str
    """Canonical, or ``*.`` and a canonical name."""
    port: int

    def covers(self, host: str, port: int) -> bool:
        """True if a canonical host and port belong to this site."""
        if port != self.port:
            return False
        return host.endswith(self.host[1:]) if self.host.startswith("*.") else host == self.host


@dataclass(frozen=True, slots=True)
class AllowList:
    """The sites of a run; an empty list denies everything. Made by `of`."""

    origins: tuple[Origin, ...] = ()

    @classmethod
    def of(cls, *sites: str) -> AllowList:
        """The list of these origins.

        Raises:
            ConfigError: One is no origin, or names an address that no site may have.
        """
        return cls(tuple(dict.fromkeys(parse_origin(site) for site in sites)))

    def refuse(self, host: str, port: int, scheme: str | None = None) -> Reason | None:
        """Return the reason why a host may not be reached, or ``None``; no name is resolved yet.

        Args:
            host: The host as the request wrote it.
            scheme: ``None`` when it cannot be seen (a tunnel); then a site of either scheme at this
                host and port covers it.
        """
        name = canonical_host(host)
        if name is None:
            return Reason.BAD_HOST
        if name in METADATA_NAMES:
            return Reason.METADATA
        covering = [origin for origin in self.origins if origin.covers(name, port)]
        if covering and scheme is not None and all(origin.scheme != scheme for origin in covering):
            return Reason.SCHEME
        return None if covering else _why_not_listed(name)

    def refuse_answer(self, host: str, address: IpAddress) -> Reason | None:
        """Return the reason why an address of an allowed host may not be connected to, or ``None``.

        A host that is an address was named as such. A name of loopback has to lead there, and every
        other name to a public host.
        """
        name = canonical_host(host)
        if name is None:
            return Reason.BAD_HOST
        if (literal := as_address(name)) is not None:
            return None if literal == address else Reason.NOT_LISTED
        if is_local_name(name):
            return None if address.is_loopback else Reason.NOT_LISTED
        return refuse_address(address)

    def refuse_url(self, url: str) -> Reason | None:
        """Return the reason why an action may not navigate to a URL, or ``None``.

        The browser opens ``file:``, ``chrome:``, ``view-source:``, ``data:`` and ``javascript:``
        itself: they never reach the proxy.
        """
        if url in BLANK:
            return None
        try:
            parts = urlsplit(url.strip())
            host, port = parts.hostname, parts.port
        except ValueError:
            return Reason.BAD_HOST
        if parts.scheme not in PORTS:
            return Reason.SCHEME
        return self.refuse(host or "", PORTS[parts.scheme] if port is None else port, parts.scheme)


def parse_origin(site: str) -> Origin:
    """Parse an entry of the list.

    Raises:
        ConfigError: It is no origin, or names an address that no site may have.
    """
    try:
        parts = urlsplit(site)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"site {site!r}: {error}; write scheme://host:port") from error
    scheme = WEBSOCKETS.get(parts.scheme, parts.scheme)
    if (
        scheme not in PORTS
        or parts.path not in ("", "/")
        or parts.query
        or parts.fragment
        or parts.username is not None
    ):
        raise ConfigError(f"site {site!r} is no origin; write scheme://host:port with http, https, ws or wss")
    host = parts.hostname or ""
    if host.startswith("*."):
        return Origin(scheme, f"*.{_wild_domain(site, host[2:])}", port or PORTS[scheme])
    name = canonical_host(f"[{host}]" if ":" in host else host)
    if name is None:
        raise ConfigError(f"site {site!r}: {host!r} is no host name or address")
    _check_may_be_a_site(site, name)
    return Origin(scheme, name, port or PORTS[scheme])


def _wild_domain(site: str, domain: str) -> str:
    name = canonical_host(domain)
    if name is None or "." not in name or as_address(name) is not None or is_local_name(name):
        raise ConfigError(f"site {site!r}: a wildcard needs a domain of two labels or more, e.g. *.example.com")
    return name


def _check_may_be_a_site(site: str, name: str) -> None:
    address = as_address(name)
    why = Reason.METADATA if name in METADATA_NAMES else refuse_address(address) if address else None
    if why not in (None, Reason.LOOPBACK):
        raise ConfigError(
            f"site {site!r} is at a {why} address, which pages never reach; publish it on a port of loopback"
        )


def _why_not_listed(name: str) -> Reason:
    """Return the kind of the address as the reason, else that no site names it."""
    if is_local_name(name):
        return Reason.LOOPBACK
    address = as_address(name)
    return (refuse_address(address) if address else None) or Reason.NOT_LISTED
