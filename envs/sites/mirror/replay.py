"""Finds the recorded answer of a request.

Two requests are equal if method, host, path, query and body are. Queries and forms are compared as
pairs: without order in a query, in order in a form. The n-th equal request of an episode gets the
n-th recorded answer; after the last one, the last one again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from urllib.parse import parse_qsl, urlsplit

from envs.sites.mirror.har import RecordedExchange

FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
PORTS = {"http": 80, "https": 443}
_ESCAPED = re.compile("%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile("[A-Za-z0-9._~-]")
_BOUNDARY = re.compile('boundary="?([^";]+)')

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class RequestKey:
    """The parts of a request that its answer depends on."""

    method: str
    host: str
    """Host name, with the port if it is not the scheme's own."""
    path: str
    query: Pairs = ()
    form: Pairs = ()
    """Fields of a form in its body."""
    digest: str = ""
    """SHA-256 of any other body; empty without one."""

    def __str__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.query)
        form = "&".join(f"{name}={value}" for name, value in self.form)
        body = f" with {form}" if form else f" with a body {self.digest[:8]}" if self.digest else ""
        return f"{self.method} {self.host}{self.path}{f'?{query}' if query else ''}{body}"


@dataclass(frozen=True)
class Miss:
    """A request that was not recorded, and the most similar one that was."""

    asked: RequestKey
    nearest: RequestKey

    def __str__(self) -> str:
        parts = [name for name in RequestKey.__slots__ if getattr(self.asked, name) != getattr(self.nearest, name)]
        other = ", ".join("body" if part == "digest" else part for part in parts)
        return f"not recorded: {self.asked}. The nearest recorded request is {self.nearest} (other {other})"


class RecordedAnswers:
    """The answers of a recording, by request.

    Args:
        ignored: Names of query and form fields that do not count (times, random numbers).
    """

    def __init__(self, exchanges: Iterable[RecordedExchange], ignored: Iterable[str] = ()) -> None:
        self._ignored = frozenset(ignored)
        self._answers = defaultdict[RequestKey, list[RecordedExchange]](list)
        for exchange in exchanges:
            key = self.key(exchange.method, exchange.url, exchange.sent, exchange.sent_type)
            self._answers[key].append(exchange)

    def key(self, method: str, url: str, sent: bytes = b"", sent_type: str = "") -> RequestKey:
        """Return what a request's answer depends on."""
        parts = urlsplit(url)
        port = "" if parts.port in (None, PORTS.get(parts.scheme)) else f":{parts.port}"
        kind = sent_type.partition(";")[0].strip().lower()
        if kind == MULTIPART and (boundary := _BOUNDARY.search(sent_type)):
            sent = sent.replace(boundary[1].encode(), b"boundary")  # browsers draw it at random
        form = self._pairs(sent.decode("latin-1")) if kind == FORM else ()
        return RequestKey(
            method,
            f"{parts.hostname or ''}{port}",
            _ESCAPED.sub(_plain, parts.path or "/"),
            tuple(sorted(self._pairs(parts.query))),
            form,
            sha256(sent).hexdigest() if sent and kind != FORM else "",
        )

    def answers(self, key: RequestKey) -> list[RecordedExchange]:
        """Return the recorded answers of a request, in their order; none if it was not recorded."""
        if key.method == "HEAD" and key not in self._answers:
            key = RequestKey("GET", key.host, key.path, key.query)
        return self._answers.get(key, [])

    def miss(self, key: RequestKey) -> Miss:
        """Return the report on a request that was not recorded."""
        return Miss(key, max(self._answers, key=lambda known: _likeness(key, known), default=key))

    def _pairs(self, text: str) -> Pairs:
        return tuple(pair for pair in parse_qsl(text, keep_blank_values=True) if pair[0] not in self._ignored)


class MirroredEpisode:
    """One episode's place in a recording."""

    def __init__(self, recorded: RecordedAnswers) -> None:
        self._recorded = recorded
        self._asked = Counter[RequestKey]()

    def answer(self, key: RequestKey) -> RecordedExchange | Miss:
        """Return the answer of the episode's next request."""
        answers = self._recorded.answers(key)
        if not answers:
            return self._recorded.miss(key)
        self._asked[key] += 1
        return answers[min(self._asked[key], len(answers)) - 1]


def _plain(escaped: re.Match[str]) -> str:
    """Return a character that needs no escape as itself, else its escape in capitals."""
    character = chr(int(escaped[1], 16))
    return character if _UNRESERVED.fullmatch(character) else escaped[0].upper()


def _likeness(one: RequestKey, two: RequestKey) -> tuple[bool, int, bool, int, int]:
    """Return how alike two requests are, the most important part first."""
    steps = zip(one.path.split("/"), two.path.split("/"), strict=False)
    same = next((n for n, (a, b) in enumerate(steps) if a != b), min(one.path.count("/"), two.path.count("/")) + 1)
    other = len(set(one.query) ^ set(two.query)) + len(set(one.form) ^ set(two.form)) + (one.digest != two.digest)
    return one.host == two.host, same, one.method == two.method, -other, -abs(len(one.path) - len(two.path))
