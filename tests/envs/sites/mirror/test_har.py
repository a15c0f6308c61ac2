"""HTTP archives as other programs write them, and which requests are equal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.sites.mirror.har import read_har
from envs.sites.mirror.replay import FORM, RecordedAnswers
from envs.types import ConfigError

from .archives import URL, entry, headers, write_har


def test_chromes_archives_are_read(tmp_path: Path) -> None:
    kept = headers(("Set-Cookie", "a=1\nb=2"), (":status", "200"))
    cached = {"status": 304, "content": {"text": "of the cache"}}
    recording = read_har(
        write_har(
            tmp_path,
            entry({"headers": kept, "content": {"text": "AAH/", "encoding": "base64"}}),
            entry(cached),
            entry({"status": 0}),
            entry({"content": {"size": 900}}),
            entry({"status": 101}, url="wss://shop.example/live"),
            entry({}, url="data:image/gif;base64,R0lGOD"),
            entry({"status": 302, "headers": headers(("location", "/home"))}),
        )
    )
    first, second, third = recording.exchanges
    assert first.body == b"\0\1\xff" and first.headers == (("set-cookie", "a=1"), ("set-cookie", "b=2"))
    assert (second.status, second.body) == (200, b"of the cache")
    assert (third.status, third.headers) == (302, (("location", "/home"),))
    assert recording.skipped == {"without an answer": 1, "without the answer's body": 1, "not over HTTP": 2}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "is no HTTP archive"),
        (b"{}", "has no log.entries"),
        (b'{"log": {"entries": []}}', "it has no entries"),
        (b'{"log": {"entries": [{"request": {}}]}}', r"log\.entries\[0\] is no exchange"),
        (b'{"log": {"entries": [3]}}', r"log\.entries\[0\] is no exchange"),
        (json.dumps({"log": {"entries": [entry({"status": 0})]}}).encode(), "1 without an answer"),
    ],
)
def test_what_is_no_archive_is_refused_by_name(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "shop.har"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"shop\.har.*{message}"):
        read_har(path)


def test_an_archive_that_is_missing_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.har: cannot be read"):
        read_har(tmp_path / "none.har")


M1 = ("POST", URL, b"--x1\r\n1\r\n--x1--", "multipart/form-data; boundary=x1")
M2 = ("POST", URL, b"--y22\r\n1\r\n--y22--", 'multipart/form-data; boundary="y22"')
SAME: list[tuple[Any, Any]] = [
    (("GET", "https://shop.example"), ("GET", "https://shop.example:443/#part")),
    (("GET", f"{URL}a?x=1&y=2&t=5"), ("GET", f"{URL}a?y=2&t=6&x=1")),
    (("GET", f"{URL}%7euser%2fa"), ("GET", f"{URL}~user%2Fa")),
    (("POST", URL, b"a=1+2&t=1", FORM), ("POST", URL, b"a=1%202&t=2", f"{FORM}; charset=UTF-8")),
    (M1, M2),
]
OTHER: list[tuple[Any, Any]] = [
    (("GET", URL), ("POST", URL)),
    (("GET", URL), ("GET", "https://www.shop.example/")),
    (("GET", "http://127.0.0.1:80/"), ("GET", "http://127.0.0.1:81/")),
    (("GET", f"{URL}a%2Fb"), ("GET", f"{URL}a/b")),
    (("GET", f"{URL}?x="), ("GET", URL)),
    (("GET", f"{URL}?x=1&x=2"), ("GET", f"{URL}?x=1")),
    (("POST", URL, b"a=1&a=2", FORM), ("POST", URL, b"a=2&a=1", FORM)),
    (("POST", URL, b"{}", "application/json"), ("POST", URL, b"[]", "application/json")),
    (("POST", URL, b"a=1", "text/plain"), ("POST", URL, b"a=1", FORM)),
]


@pytest.mark.parametrize(("one", "two"), SAME)
def test_requests_that_mean_the_same_are_equal(one: Any, two: Any) -> None:
    key = RecordedAnswers((), ["t"]).key
    assert key(*one) == key(*two)


@pytest.mark.parametrize(("one", "two"), OTHER)
def test_other_requests_are_not(one: Any, two: Any) -> None:
    key = RecordedAnswers((), ["t"]).key
    assert key(*one) != key(*two)
