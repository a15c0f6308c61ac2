"""Adds sites' credentials to requests after they left the browser, so that no page, prompt or log
ever holds them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from envs.egress.allow import Origin, parse_origin
from envs.types import ConfigError

HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?")
"""Visible ASCII: a line break would end the header and begin another."""
OWNED = frozenset({"host", "connection", "content-length", "transfer-encoding", "proxy-authorization", "upgrade"})
"""Headers that say where a message goes or how long it is; the relay's own."""


class SiteSecrets:
    """Headers by origin: ``SiteSecrets({"http://127.0.0.1:8080": {"Authorization": "Bearer …"}})``.

    They are added to plain HTTP requests of exactly that origin. A tunnel (HTTPS, websockets) is
    opaque to the proxy and gets none.
    """

    def __init__(self, headers: Mapping[str, Mapping[str, str]] | None = None) -> None:
        """Raises `ConfigError` (without the value) for an origin or header that cannot be sent."""
        self._headers: dict[tuple[str, int], tuple[tuple[str, str], ...]] = {}
        for site, own in (headers or {}).items():
            origin = parse_origin(site)
            _check(site, origin, own)
            self._headers[origin.host, origin.port] = tuple(own.items())

    def __repr__(self) -> str:
        """Show the names of the headers by host, never a value."""
        shown = ", ".join(
            f"{host}:{port}: {[name for name, _ in headers]}" for (host, port), headers in self._headers.items()
        )
        return f"SiteSecrets({shown})"

    def __reduce__(self) -> tuple[object, ...]:
        """Refused: a pickle would carry the values to a scheduler's log or another machine's
        disk."""
        raise TypeError("SiteSecrets are not sent between processes; read them where the proxy runs")

    def add_to(self, host: str, port: int, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """The headers of a request with the site's own: a cookie joins the page's cookies, any
        other replaces the page's."""
        own = self._headers.get((host, port))
        if not own:
            return headers
        replaced = {name.lower() for name, _ in own}
        cookies = [value for name, value in headers if name.lower() == "cookie"]
        kept = [(name, value) for name, value in headers if name.lower() not in replaced]
        return kept + [(n, "; ".join([*cookies, v])) if n.lower() == "cookie" else (n, v) for n, v in own]


def _check(site: str, origin: Origin, headers: Mapping[str, str]) -> None:
    if origin.scheme != "http" or origin.host.startswith("*."):
        raise ConfigError(
            f"secrets of {site!r}: only an exact http origin can be given headers; a tunnel is opaque to the proxy"
        )
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name) or name.lower() in OWNED:
            raise ConfigError(f"secrets of {site!r}: {name!r} is no header that a site may be given")
        if not HEADER_VALUE.fullmatch(value):
            raise ConfigError(
                f"secrets of {site!r}: the value of {name!r} is empty, or not of visible ASCII characters"
            )
