"""The gate before all routes: keys, the host that was asked for, and counts of answers."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from envs.egress.addresses import is_this_machine
from envs.server.refusals import Refusal, refusal_answer
from envs.types import ConfigError
from envs.types.paths import AnyPath

MIN_KEY = 16
"""Characters of a key: what `secrets.token_urlsafe` gives for 12 bytes, too many to be tried."""

OPEN_PATHS = ("/health",)
"""Addresses without a key: they say only that the server lives, and how full it is."""

OWNER_HEADER = "x-rollwright-owner"
"""Header in which a master names the owner of a request; it is believed with the master's key."""


def read_keys(path: AnyPath) -> dict[str, str]:
    """Read the keys of a file, one a line, by the names of their owners.

    A line is ``name:key`` or a key alone. Sessions of one owner do not exist for another.

    Raises:
        ConfigError: The file cannot be read, has no key, or one that is short.
    """
    try:
        lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"keys: {path} cannot be read: {error}") from error
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line or line.startswith("#"):
            continue
        name, _, key = line.rpartition(":")
        if len(key) < MIN_KEY or not key.isascii():
            raise ConfigError(f"keys: line {number} of {path}: a key has {MIN_KEY} ASCII characters or more")
        keys[name or f"key {number}"] = key
    if not keys:
        raise ConfigError(f"keys: {path} has no key; write one a line")
    return keys


def master_headers(owner: str, master_key: str) -> dict[str, str]:
    """Return the headers of a master's request for an owner."""
    return {"x-api-key": master_key, OWNER_HEADER: quote(owner, safe="")}


def check_listens(host: str, keys: Mapping[str, str]) -> None:
    """Check that a server without keys listens on this machine alone.

    Raises:
        ConfigError: It would serve others.
    """
    if not keys and not is_this_machine(host):
        raise ConfigError(f"--host {host}: a server without keys listens on 127.0.0.1 only; give --key-file")


class Gate:
    """ASGI middleware that lets requests pass and names their owner in ``scope["owner"]``."""

    def __init__(self, app: ASGIApp, *, keys: Mapping[str, str], answers: Counter[int], master_key: str = "") -> None:
        """
        Args:
            keys: Keys by owner; none lets everybody pass who is on this machine.
            answers: Is given the number of answers by HTTP status.
            master_key: Key of a master, which names the owner itself; with it requests
                without a key are refused.
        """
        self._master = sha256(master_key.encode()).digest() if master_key else None
        self._app, self._answers = app, answers
        self._keys = {name: sha256(key.encode()).digest() for name, key in keys.items()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer or pass a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._answers[message["status"]] += 1
            await send(message)

        request = Request(scope)
        try:
            scope["owner"] = self._owner(request) if self._keys or self._master else _local(request)
        except Refusal as refusal:
            await refusal_answer(refusal)(scope, receive, counted)
            return
        await self._app(scope, receive, counted)

    def _owner(self, request: Request) -> str:
        """Return the name of the key's owner."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        given = request.headers.get("x-api-key") or (bearer if scheme.lower() == "bearer" else "")
        digest = sha256(given.encode()).digest()
        # All are compared, so that the time does not say which one is near.
        owners = [name for name, key in self._keys.items() if hmac.compare_digest(key, digest)]
        if self._master is not None and hmac.compare_digest(self._master, digest):
            return unquote(request.headers.get(OWNER_HEADER, ""))
        if owners:
            return owners[0]
        if request.url.path in OPEN_PATHS:
            return ""
        reason = "is none of this server's" if given else "is missing"
        raise Refusal(401, "key", f"the key {reason}: send it as x-api-key", www_authenticate="Bearer")


def _local(request: Request) -> str:
    """Let a request of this machine's programs pass.

    Pages of the web can make a browser on this machine send requests here. They name their own host
    (DNS rebinding) or their origin.
    """
    try:
        host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        host = ""
    if not is_this_machine(host):
        raise Refusal(403, "host", f"host {host[:100]!r} is not this machine: a server without keys serves it alone")
    if "origin" in request.headers:
        raise Refusal(403, "origin", "pages may not call a server without keys: start it with --key-file")
    return ""
