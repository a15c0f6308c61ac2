"""One bounded question to a site's server over HTTP.

It ends within its deadline, its answer is limited in length, redirects are not followed, and
nothing of this process's environment (a proxy, credentials) is used. Any failure is a `SiteError`;
its message has neither headers nor the sent body.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import httpx
import orjson

from envs.egress import AllowList, Refused, resolve_allowed
from envs.types import SiteError

DEADLINE = 5.0
"""Seconds for one question. A query over a bundled site's database takes milliseconds."""
MAX_ANSWER = 4_000_000
"""Largest answer, in bytes."""
_HEADER = re.compile(r"[!-~]+([ \t]+[!-~]+)*|")
"""Valid values of a header."""
_MAX_SHOWN = 200
"""Length of a question in an error, in characters."""


@dataclass(frozen=True)
class Server:
    """A server that is asked.

    Example::

        status, body = await Server("http://127.0.0.1:8080").ask("/api/order/12")
    """

    origin: str
    """Start of every asked address (``http://127.0.0.1:8080``); empty if there is none."""
    allow: AllowList | None = None
    """Addresses that may be reached.

    The address of the origin's name is checked like those of pages (a public name may not lead to
    this machine or a private network), and only that one is connected to. ``None`` for a server of
    ours, which is not checked.
    """
    deadline: float = DEADLINE
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Headers of every request (a log-in, say); in no error and no record."""

    async def ask(
        self, path: str, *, headers: Mapping[str, str] | None = None, sent: bytes | None = None
    ) -> tuple[int, bytes]:
        """Return status and body of the answer.

        Args:
            path: Path on the server, with its query.
            headers: Further headers.
            sent: JSON that is sent with POST; ``None`` asks with GET.

        Raises:
            SiteError: there is no origin, the path is of another site, no server answers, the
                answer is too long, or the deadline passed.
        """
        what = asked(path, sent)
        if not self.origin:
            raise SiteError(f"{shortened(path)}: the site has no address to ask; give an origin")
        if not path.startswith("/"):  # "@other.example" after an origin would be another host
            raise SiteError(f"{shortened(path)}: is no path on {self.origin}; begin it with a /")
        request = _Request(path, {**self.headers, **(headers or {})}, sent)
        for name, value in request.headers.items():  # an error of the client's would quote the value
            if not _HEADER.fullmatch(value):
                raise SiteError(f"{what}: the header {name} has characters that no header may have")
        try:
            async with asyncio.timeout(self.deadline):
                return await self._ask_allowed(request)
        except TimeoutError as error:
            raise SiteError(f"{what}: no answer within {self.deadline:g} s") from error
        except Refused as error:
            raise SiteError(f"{what}: {self.origin} leads to an address that may not be reached: {error}") from error
        except OSError as error:
            raise SiteError(f"{what}: {self.origin} is not known: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise SiteError(f"{what}: {type(error).__name__}: {error}") from error

    async def _ask_allowed(self, request: _Request) -> tuple[int, bytes]:
        url = httpx.URL(self.origin + request.path)
        if self.allow is None:
            return await self._send(url, request)
        host = url.raw_host.decode("ascii")
        for address in (addresses := await resolve_allowed(host, self.allow)):
            try:
                return await self._send(url, request, str(address))
            except httpx.ConnectError:
                if address == addresses[-1]:
                    raise
        raise SiteError(f"{asked(request.path, request.sent)}: {host} has no address")

    async def _send(self, url: httpx.URL, request: _Request, address: str = "") -> tuple[int, bytes]:
        """Send a request; return its answer. With ``address``, the host is still the URL's."""
        headers = {"accept": "application/json", **request.headers, "host": url.netloc.decode("ascii")}
        if request.sent is not None:
            headers["content-type"] = "application/json"
        # The certificate has to be that of the name, whatever the address is.
        named = {"sni_hostname": url.raw_host.decode("ascii")} if url.scheme == "https" and address else {}
        limits = httpx.Timeout(self.deadline)
        async with (
            # No proxy and no credentials from this process's environment: only the site is asked.
            httpx.AsyncClient(
                verify=_default_certificates(), trust_env=False, follow_redirects=False, timeout=limits
            ) as client,
            client.stream(
                "GET" if request.sent is None else "POST",
                url.copy_with(host=address) if address else url,
                headers=headers,
                content=request.sent,
                extensions=named,
            ) as answer,
        ):
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > MAX_ANSWER:
                    what = asked(request.path, request.sent)
                    raise SiteError(f"{what}: the answer is longer than {MAX_ANSWER:,} bytes")
            return answer.status_code, bytes(body)


@dataclass(frozen=True)
class _Request:
    path: str
    headers: Mapping[str, str] = field(repr=False)
    sent: bytes | None = field(repr=False)


def read_json(body: bytes, what: str) -> Any:
    """Parse the JSON of an answer.

    Args:
        what: Name of the question, for the error.

    Raises:
        SiteError: it is no JSON.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise SiteError(f"{what}: the answer is no JSON: {error}") from error


def asked(path: str, sent: bytes | None = None) -> str:
    """Format a question for errors: ``GET /api/order/12``."""
    return f"{'GET' if sent is None else 'POST'} {shortened(path)}"


def shortened(text: str) -> str:
    """Return a text on one line, cut off if it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_SHOWN else f"{line[:_MAX_SHOWN]}…"


@cache
def _default_certificates() -> ssl.SSLContext:
    """Return the default certificates. Reading them takes 20 ms, so clients share them."""
    return httpx.create_ssl_context(trust_env=False)
