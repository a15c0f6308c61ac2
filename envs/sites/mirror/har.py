"""Reads HTTP archives (HAR 1.2), as Playwright and Chrome's DevTools write them.

Bodies are inside of the archive, as text or base64, or in files beside it (Playwright's ``attach``,
in a folder or a ``.zip``). An exchange whose body is missing cannot be replayed and is skipped.
"""

from __future__ import annotations

import base64
import binascii
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from envs.egress.message import OURS
from envs.types import ConfigError

NO_BODY = frozenset({204, 205, 301, 302, 303, 307, 308})
"""Statuses whose answers need no body: they have none, or browsers do not show it."""
Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RecordedExchange:
    """A request and its answer."""

    method: str
    url: str
    sent: bytes
    """Body of the request."""
    sent_type: str
    """Media type of the request's body, with its parameters; empty without a body."""
    status: int
    headers: Headers
    body: bytes
    """Body of the answer, without a content encoding."""


@dataclass(frozen=True)
class Recording:
    """The exchanges of an archive, in the order of their requests."""

    exchanges: tuple[RecordedExchange, ...]
    skipped: dict[str, int]
    """Number of entries that cannot be replayed, by reason."""


class _SkippedEntry(Exception):
    """An entry cannot be replayed; the message is the reason."""


def read_har(path: Path) -> Recording:
    """Read an archive.

    Raises:
        ConfigError: It cannot be read, or holds no exchange that can be replayed.
    """
    archive, attached = _open(path)
    log = archive.get("log") if isinstance(archive, dict) else None
    entries = log.get("entries") if isinstance(log, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(f"{path} is no HTTP archive: it has no log.entries; export it as HAR with content")
    exchanges, skipped = list[RecordedExchange](), Counter[str]()
    for number, entry in enumerate(entries):
        try:
            exchanges.append(_exchange(entry, attached))
        except _SkippedEntry as reason:
            skipped[str(reason)] += 1
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(
                f"{path}: log.entries[{number}] is no exchange of HAR 1.2 ({type(error).__name__}: {error}); "
                "export the archive again"
            ) from None
    if not exchanges:
        why = ", ".join(f"{count} {reason}" for reason, count in skipped.items()) or "it has no entries"
        raise ConfigError(f"{path}: nothing can be replayed ({why}); record it again with content")
    return Recording(tuple(exchanges), dict(skipped))


def _open(path: Path) -> tuple[Any, Callable[[str], bytes]]:
    """Return the archive, and a function that reads the files attached to it."""
    try:
        if path.suffix != ".zip":
            return orjson.loads(path.read_bytes()), lambda name: (path.parent / Path(name).name).read_bytes()
        with zipfile.ZipFile(path) as packed:
            files = {name: packed.read(name) for name in packed.namelist()}
        main = next((name for name in files if name.endswith(".har")), None)
        if main is None:
            raise ConfigError(f"{path} holds no .har file; write it with Playwright's record_har_path")
        return orjson.loads(files[main]), files.__getitem__
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; correct the path") from None
    except (ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{path} is no HTTP archive: {error}") from None


def _exchange(entry: Any, attached: Callable[[str], bytes]) -> RecordedExchange:
    request, response = entry["request"], entry["response"]
    method, url, status = str(request["method"]), str(request["url"]), int(response["status"])
    if not url.startswith(("http://", "https://")):
        raise _SkippedEntry("not over HTTP")
    if status < 200:
        raise _SkippedEntry("without an answer")  # failed, aborted, or upgraded to a WebSocket
    if any(header["name"].lower().startswith(OURS) for header in response["headers"]):
        raise _SkippedEntry("that the egress proxy answered itself")
    body = _body(response.get("content", {}), attached)
    if body is None and method != "HEAD" and status not in NO_BODY and _length(response) != 0:
        raise _SkippedEntry("without the answer's body")
    posted = request.get("postData") or {}
    return RecordedExchange(
        method=method,
        url=url,
        sent=_sent(posted, attached),
        sent_type=str(posted.get("mimeType", "")),
        status=200 if status == 304 else status,  # the body is that of the browser's cache
        headers=tuple(
            (header["name"].lower(), value)
            for header in response["headers"]
            if not header["name"].startswith(":")  # HTTP/2's own, as Chrome writes them
            for value in str(header["value"]).split("\n")  # Chrome joins equal names so
        ),
        body=body or b"",
    )


def _body(content: Any, attached: Callable[[str], bytes]) -> bytes | None:
    """Return an answer's body; ``None`` if the archive does not have it."""
    if "_file" in content:
        return _attached(content["_file"], attached)
    if "text" not in content:
        return None
    if content.get("encoding") != "base64":
        return str(content["text"]).encode()
    try:
        return base64.b64decode(content["text"], validate=True)
    except binascii.Error:
        raise _SkippedEntry("with a body that is no base64") from None


def _sent(posted: Any, attached: Callable[[str], bytes]) -> bytes:
    if "_file" in posted:
        return _attached(posted["_file"], attached)
    return str(posted.get("text", "")).encode()


def _attached(name: str, attached: Callable[[str], bytes]) -> bytes:
    try:
        return attached(name)
    except (OSError, KeyError):
        raise _SkippedEntry("with an attached file that is missing") from None


def _length(response: Any) -> int | None:
    """Return the length that the answer's head declares; ``None`` if it does not."""
    lengths = [header["value"] for header in response["headers"] if header["name"].lower() == "content-length"]
    return int(lengths[0]) if lengths and str(lengths[0]).isdigit() else None
