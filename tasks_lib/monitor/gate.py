"""The gate before all routes of a page's server: who may read, and what a browser may do with it.

On loopback everybody on this machine reads. Elsewhere a token is needed. It is given once, as
``?token=`` in the address, and is a cookie from then on, so that no link or log holds it. Programs
send it as ``Authorization: Bearer``. A request that changes something (POST) needs the token
everywhere, and has to come from a page of the same server.
"""

from __future__ import annotations

import hmac
from collections.abc import Collection
from hashlib import sha256
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envs.server import is_this_machine
from envs.types import AnyPath, ConfigError
from tasks_lib.monitor.static_files import CONTENT_POLICY

MIN_TOKEN = 16
"""Characters of a token: what `secrets.token_urlsafe` gives for 12 bytes, too many to be tried."""
COOKIE = "rollwright-token"
COOKIE_SECONDS = 30 * 24 * 3600


def read_token(path: AnyPath) -> str:
    """Read the token of a file.

    Raises:
        ConfigError: the file cannot be read, or its token is short.
    """
    try:
        token = Path(path).read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--token-file {path}: it cannot be read: {error}") from error
    if len(token) < MIN_TOKEN or any(letter.isspace() for letter in token):
        raise ConfigError(f"--token-file {path}: a token is one word of {MIN_TOKEN} characters or more")
    return token


def check_host(host: str, token: str) -> None:
    """Check that a server without a token listens on this machine alone.

    Raises:
        ConfigError: others could read.
    """
    if not token and not is_this_machine(host):
        raise ConfigError(f"--host {host}: without a token it listens on 127.0.0.1 only; give --token-file")


class PageGate:
    """ASGI middleware that lets readers pass, and sends the headers that every page has."""

    def __init__(self, app: ASGIApp, *, token: str = "") -> None:
        self._app = app
        self._digest = sha256(token.encode()).digest() if token else b""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = self._answer(scope)

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(raw=message["headers"]))
            await send(message)

        await (answer or self._app)(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the answer to a request that does not pass, or ``None``."""
        headers = Headers(scope=scope)
        if scope["method"] == "POST":
            return self._answer_change(headers)
        if scope["method"] not in ("GET", "HEAD"):
            return _refusal(405, f"{scope['method']}: this server has no such requests")
        if not self._digest:
            return None if _is_local(headers) else _refusal(403, "a server without a token serves this machine alone")
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = dict(query).get("token")
        if given is not None:
            if not self._is_token(given):
                return _refusal(401, "the token is not this server's")
            return _remember(scope, given, [pair for pair in query if pair[0] != "token"])
        return None if self._has_token(headers) else _refusal(401, "open the address with ?token=TOKEN once")

    def _answer_change(self, headers: Headers) -> Response | None:
        """Return the answer to a request that may not change anything, or ``None``."""
        if not self._digest:
            return _refusal(403, "a server without a token only shows; start it with --token-file")
        if not self._has_token(headers):
            return _refusal(401, "open the address with ?token=TOKEN once")
        return None if _is_same_origin(headers) else _refusal(403, "the request comes from no page of this server")

    def _has_token(self, headers: Headers) -> bool:
        return self._is_token(_cookie(headers)) or self._is_token(_bearer(headers))

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(sha256(given.encode()).digest(), self._digest)


def _remember(scope: Scope, token: str, query: Collection[tuple[str, str]]) -> Response:
    """Return a redirect to the same address, with the token in a cookie instead."""
    # A path of two slashes would be another host's address.
    address = "/" + scope["path"].lstrip("/") + (f"?{urlencode(list(query))}" if query else "")
    answer = RedirectResponse(address, 303)
    secure = scope["scheme"] == "https"
    answer.set_cookie(COOKIE, token, max_age=COOKIE_SECONDS, httponly=True, samesite="strict", secure=secure)
    return answer


def _cookie(headers: Headers) -> str:
    """Return the token of a request's cookie, or an empty text."""
    try:
        cookies = SimpleCookie(headers.get("cookie", ""))
    except CookieError:
        return ""
    return cookies[COOKIE].value if COOKIE in cookies else ""


def _bearer(headers: Headers) -> str:
    """Return the token that a program sends, or an empty text."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_local(headers: Headers) -> bool:
    """Return True for a request that names this machine.

    A page of the web that makes a browser on this machine send requests here names its own host
    (DNS rebinding) or comes from another site.
    """
    try:
        host = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return False
    return headers.get("sec-fetch-site", "none") in ("none", "same-origin") and is_this_machine(host)


def _is_same_origin(headers: Headers) -> bool:
    """Return True for a request of a page of this server, as the browser says.

    The scheme is not compared: before a server there may be another one that speaks https.
    """
    origin = headers.get("origin", "").partition("://")[2]
    site = headers.get("sec-fetch-site", "same-origin")
    return bool(origin) and origin == headers.get("host", "") and site == "same-origin"


def _add_headers(headers: MutableHeaders) -> None:
    headers.setdefault("Content-Security-Policy", CONTENT_POLICY)
    headers["X-Content-Type-Options"] = "nosniff"
    headers["Referrer-Policy"] = "no-referrer"
    headers["Cross-Origin-Resource-Policy"] = "same-origin"


def _refusal(status: int, error: str) -> Response:
    return JSONResponse({"error": error}, status_code=status)
