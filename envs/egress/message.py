"""HTTP/1.1 messages as a proxy needs them: heads are read and rewritten, bodies are only measured
(RFC 9112)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from email.utils import formatdate, parsedate_to_datetime
from urllib.parse import urlsplit

from envs.egress.addresses import Reason

Headers = list[tuple[str, str]]

HEAD_END = b"\r\n\r\n"
MAX_HEAD = 64 * 1024
"""Bytes of a head. Chromium itself stops at 256 KiB for answers; servers at 8 to 64."""
MAX_CHUNK_LINE = 4096
"""Bytes of a chunk's size line or of a trailer line."""

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "proxy-authenticate",
        "te",
        "trailer",
        "upgrade",
    }
)
"""Headers of one connection, not of the message. ``transfer-encoding`` stays: bodies are passed on
as they are framed."""

OURS = "x-rollwright-"
"""Beginning of the headers that say what the proxy did; a site's own of that name are dropped, so
that they are never forged."""


class BadMessage(Exception):
    """A message that is not understood, and is therefore not passed on."""

    def __init__(self, why: str, reason: Reason = Reason.BAD_REQUEST) -> None:
        super().__init__(why)
        self.reason = reason


class Counted:
    """A body of a known number of bytes. Each kind of body is ``done`` once all of it was taken."""

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def take(self, data: bytes) -> int:
        """Return the number of leading bytes that belong to the body."""
        taken = min(self._left, len(data))
        self._left -= taken
        self.done = self._left == 0
        return taken


class UntilClose:
    """A body that ends with its connection."""

    done = False

    def take(self, data: bytes) -> int:
        """Return the number of all bytes: they belong to the body."""
        return len(data)


class Chunked:
    """A body in chunks: only their size lines are read."""

    def __init__(self) -> None:
        self.done = False
        self._line = b""
        self._skip = 0
        """Bytes of the current chunk, with its line end, still to come."""
        self._trailer = False

    def take(self, data: bytes) -> int:
        """Return the number of leading bytes that belong to the body; raise `BadMessage` for broken
        framing."""
        taken = 0
        while taken < len(data) and not self.done:
            if self._skip:
                step = min(self._skip, len(data) - taken)
                self._skip -= step
                taken += step
                continue
            end = data.find(b"\n", taken)
            if (len(data) if end < 0 else end) - taken + len(self._line) > MAX_CHUNK_LINE:
                raise BadMessage("a chunk's line is too long")
            if end < 0:
                self._line += data[taken:]
                return len(data)
            self._end_of_line((self._line + data[taken:end]).rstrip(b"\r"))
            self._line = b""
            taken = end + 1
        return taken

    def _end_of_line(self, line: bytes) -> None:
        if self._trailer:
            self.done = not line
            return
        digits = line.partition(b";")[0].strip()
        if not digits or not all(byte in b"0123456789abcdefABCDEF" for byte in digits) or len(digits) > 15:
            raise BadMessage(f"chunk size {digits[:16]!r}")
        size = int(digits, 16)
        self._trailer = size == 0
        self._skip = size + 2 if size else 0


Body = Counted | UntilClose | Chunked


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """The head of a request to a proxy."""

    method: str
    host: str
    port: int
    path: str
    """Path in origin form, with the query; empty for ``CONNECT``."""
    headers: Headers
    """Headers of the message, without those of one connection."""

    @property
    def tunnel(self) -> bool:
        """True if the request opens a tunnel, whose bytes are passed on unread."""
        return self.method == "CONNECT"

    def header(self, name: str) -> str | None:
        """Return the first value of a header, by its lower-case name."""
        return next((value for key, value in self.headers if key.lower() == name), None)

    def body(self) -> Body:
        """Return the framing of the body. Raise `BadMessage` where two framings disagree."""
        return _body(self.headers) or Counted(0)

    def encode(self, headers: Headers) -> bytes:
        """The head as the site's server gets it, with these headers."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        authority = host if self.port == 80 else f"{host}:{self.port}"
        kept = [(name, value) for name, value in headers if name.lower() != "host"]
        return _encode(f"{self.method} {self.path} HTTP/1.1", [("Host", authority), *kept])


@dataclass(frozen=True, slots=True)
class ServerResponse:
    """The head of a response."""

    status: int
    line: str
    headers: Headers
    """Headers of the message, without those of one connection."""
    reusable: bool
    """True if the connection can be used after this message."""

    def body(self, method: str) -> Body:
        """Return the framing of the body, given the method that it answers."""
        if method == "HEAD" or self.status in (204, 304) or self.status < 200:
            return Counted(0)
        return _body(self.headers) or UntilClose()

    def dated(self, now: float) -> ServerResponse:
        """Set ``Date`` to ``now`` (seconds since 1970), and cap ``Last-Modified`` at it."""
        date, headers = formatdate(now, usegmt=True), list[tuple[str, str]]()
        for name, value in self.headers:
            if name.lower() == "last-modified":
                headers.append((name, date if _is_after(value, now) else value))
            elif name.lower() != "date":
                headers.append((name, value))
        return replace(self, headers=[("Date", date), *headers])

    def encode(self, *, close: bool) -> bytes:
        """The head as the browser gets it."""
        return _encode(self.line, [*self.headers, ("Connection", "close")] if close else self.headers)


def parse_request(head: bytes) -> ProxyRequest:
    """A request in absolute form or a ``CONNECT``.

    Raises:
        BadMessage: it is neither, or malformed.
    """
    line, headers, _ = _split(head)
    method, _, rest = line.partition(" ")
    target, _, version = rest.rpartition(" ")
    if not version.startswith("HTTP/1.") or not method.isalpha() or not target:
        raise BadMessage("not a request")
    try:
        if method == "CONNECT":
            parts = urlsplit(f"//{target}")
            host, port, path = parts.hostname, parts.port, ""
            if target.rpartition("@")[1] or "/" in target or port is None:
                raise BadMessage("not an authority")
        else:
            parts = urlsplit(target)
            if parts.scheme != "http":
                raise BadMessage("not an http URL", Reason.SCHEME)
            host, port = parts.hostname, parts.port if parts.port is not None else 80
            path = _path(target)
    except ValueError as error:
        raise BadMessage("not a URL", Reason.BAD_HOST) from error
    return ProxyRequest(method, host or "", port, path, headers)


def parse_response(head: bytes) -> ServerResponse:
    """The head of a response. Raises `BadMessage`."""
    line, headers, connection = _split(head)
    version, _, rest = line.partition(" ")
    status = rest[:3]
    if not version.startswith("HTTP/1.") or not status.isdigit() or len(status) != 3:
        raise BadMessage("not a response")
    headers = [(name, value) for name, value in headers if not name.lower().startswith(OURS)]
    reusable = "close" not in connection if version == "HTTP/1.1" else "keep-alive" in connection
    return ServerResponse(int(status), f"HTTP/1.1 {rest}", headers, reusable)


PROBLEM_HEADER = "rollwright-problem"
"""Header with the reason why a site of ours cannot answer, in words (status 500 and more)."""
ERROR_HEADER = "x-rollwright-error"
"""Header of the proxy's own answers, where the site gave none."""


def refusal(reason: Reason, host: str) -> bytes:
    """The answer to what is not allowed: 403 with the reason in ``x-rollwright-blocked``."""
    return our_answer(
        "403 Forbidden", ("x-rollwright-blocked", reason), f"{host} is not reachable from here ({reason})."
    )


def unreachable(host: str) -> bytes:
    """The answer when an allowed site does not answer: 502."""
    return our_answer("502 Bad Gateway", (ERROR_HEADER, "unreachable"), f"{host} does not answer.")


def our_answer(status: str, header: tuple[str, str], text: str) -> bytes:
    """Return an answer of our own, in place of a site's."""
    content = text.encode("ascii", "replace")
    headers = [header, ("Content-Type", "text/plain"), ("Content-Length", str(len(content))), ("Connection", "close")]
    return _encode(f"HTTP/1.1 {status}", headers) + content


def _is_after(date: str, now: float) -> bool:
    """True if an HTTP date is later than ``now``; False if it cannot be read."""
    try:
        return parsedate_to_datetime(date).timestamp() > now
    except (ValueError, OverflowError):
        return False


def _path(target: str) -> str:
    """Return all that follows the authority of an absolute URL, byte for byte."""
    rest = target.partition("://")[2].partition("#")[0]
    cut = min((place for place in (rest.find("/"), rest.find("?")) if place >= 0), default=len(rest))
    return rest[cut:] if rest[cut : cut + 1] == "/" else f"/{rest[cut:]}"


def _split(head: bytes) -> tuple[str, Headers, set[str]]:
    """First line, end-to-end headers, and the tokens of ``Connection``."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers: Headers = []
    dropped: set[str] = set()
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip() or any(c in value for c in "\r\n\0"):
            raise BadMessage("a malformed header")
        headers.append((name, value.strip()))
        if name.lower() in ("connection", "proxy-connection"):
            dropped.update(token.strip().lower() for token in value.split(","))
    gone = HOP_BY_HOP | (dropped - {"content-length", "transfer-encoding"})
    return first, [(name, value) for name, value in headers if name.lower() not in gone], dropped


def _body(headers: Headers) -> Body | None:
    """Framing that the headers declare; two that disagree are how requests are smuggled, so they
    are refused."""
    codings = [value.lower() for name, value in headers if name.lower() == "transfer-encoding"]
    lengths = {value for name, value in headers if name.lower() == "content-length"}
    if codings:
        if codings != ["chunked"] or lengths:
            raise BadMessage("an unclear body length")
        return Chunked()
    if not lengths:
        return None
    text = lengths.pop()
    if lengths or not text.isascii() or not text.isdigit() or len(text) > 15:
        raise BadMessage("an unclear body length")
    return Counted(int(text))


def _encode(line: str, headers: Headers) -> bytes:
    return "\r\n".join([line, *(f"{name}: {value}" for name, value in headers), "", ""]).encode("latin-1")
