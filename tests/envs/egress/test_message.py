"""Heads are rewritten and bodies measured as RFC 9112 says; what is unclear is refused."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.egress import Reason, SiteSecrets
from envs.egress.message import BadMessage, Body, Chunked, Counted, UntilClose, parse_request, parse_response
from envs.types import ConfigError


def head(*lines: str) -> bytes:
    return "\r\n".join(lines).encode("latin-1")


def test_requests_are_sent_in_origin_form_without_hop_by_hop_headers() -> None:
    request = parse_request(
        head(
            "GET http://127.0.0.1:81/a%20b?q=http://x/?y HTTP/1.1",
            "Host: evil.test",
            "Proxy-Connection: keep-alive",
            "Connection: x-one, content-length",
            "X-One: 1",
            "Accept: */*",
        )
    )
    assert (request.method, request.host, request.port, request.tunnel) == ("GET", "127.0.0.1", 81, False)
    sent = request.encode(request.headers)
    assert sent == b"GET /a%20b?q=http://x/?y HTTP/1.1\r\nHost: 127.0.0.1:81\r\nAccept: */*\r\n\r\n"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://h", "/"),
        ("http://h?q", "/?q"),
        ("http://h:80/#x", "/"),
        ("http://h/a//b", "/a//b"),
        ("HTTP://h/?a/b", "/?a/b"),
    ],
)
def test_the_path_is_kept_byte_for_byte(target: str, path: str) -> None:
    assert parse_request(head(f"GET {target} HTTP/1.1")).path == path


def test_connect_names_a_host_and_port() -> None:
    request = parse_request(head("CONNECT [::1]:443 HTTP/1.1", "Host: [::1]:443"))
    assert (request.tunnel, request.host, request.port) == (True, "::1", 443)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["nonsense"], Reason.BAD_REQUEST),
        (["GET / HTTP/1.1"], Reason.SCHEME),
        (["GET https://h/ HTTP/1.1"], Reason.SCHEME),
        (["GET file:///etc/passwd HTTP/1.1"], Reason.SCHEME),
        (["GET http://h/ HTTP/2"], Reason.BAD_REQUEST),
        (["GET http://h:99999/ HTTP/1.1"], Reason.BAD_HOST),
        (["CONNECT h HTTP/1.1"], Reason.BAD_REQUEST),
        (["CONNECT u@h:1 HTTP/1.1"], Reason.BAD_REQUEST),
        (["GET http://h/ HTTP/1.1", "no colon"], Reason.BAD_REQUEST),
        (["GET http://h/ HTTP/1.1", "Name : x"], Reason.BAD_REQUEST),
        (["GET http://h/ HTTP/1.1", " folded: x"], Reason.BAD_REQUEST),
        (["GET http://h/ HTTP/1.1", "A: x\nB: y"], Reason.BAD_REQUEST),
    ],
)
def test_what_is_no_request_is_refused(lines: list[str], reason: Reason) -> None:
    with pytest.raises(BadMessage) as error:
        parse_request(head(*lines))
    assert error.value.reason is reason


@pytest.mark.parametrize(
    "lines",
    [
        ["Content-Length: 5", "Transfer-Encoding: chunked"],
        ["Content-Length: 5", "Content-Length: 6"],
        ["Content-Length: +5"],
        ["Content-Length: 0x5"],
        ["Content-Length: -1"],
        ["Transfer-Encoding: gzip, chunked"],
        ["Transfer-Encoding: chunked", "Transfer-Encoding: chunked"],
    ],
)
def test_an_unclear_length_is_refused(lines: list[str]) -> None:
    with pytest.raises(BadMessage):
        parse_request(head("POST http://h/ HTTP/1.1", *lines)).body()


def test_how_far_a_response_goes() -> None:
    def body(status: str, *lines: str, method: str = "GET") -> Body:
        return parse_response(head(f"HTTP/1.1 {status}", *lines)).body(method)

    assert isinstance(body("200 OK"), UntilClose)
    assert isinstance(body("200 OK", "Transfer-Encoding: chunked"), Chunked)
    assert body("200 OK", "Content-Length: 7", method="HEAD").done
    assert body("304 Not Modified", "Content-Length: 7").done
    assert body("204 No Content").done
    assert not body("200 OK", "Content-Length: 7").done


def test_a_site_cannot_forge_our_headers_or_keep_a_connection_that_ends() -> None:
    response = parse_response(head("HTTP/1.0 200 OK", "X-Rollwright-Blocked: loopback", "Content-Length: 1"))
    assert not response.reusable
    assert response.encode(close=True) == b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n"
    assert not parse_response(head("HTTP/1.1 200 OK", "Connection: close")).reusable


def fed(body: Body, data: bytes, cuts: list[int]) -> int:
    """Bytes that the body took when the data came in these pieces."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    taken = 0
    for start, end in itertools.pairwise(edges):
        if body.done:
            break
        taken += body.take(data[start:end])
    return taken


@given(
    st.lists(st.binary(min_size=1, max_size=40), max_size=8),
    st.lists(st.integers(0, 500)),
    st.booleans(),
    st.binary(max_size=5),
)
def test_a_chunked_body_ends_where_it_says(chunks: list[bytes], cuts: list[int], trailer: bool, after: bytes) -> None:
    data = b"".join(b"%x;x=1\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n"
    data += b"Name: value\r\n\r\n" if trailer else b"\r\n"
    body = Chunked()
    assert fed(body, data + after, cuts) == len(data)
    assert body.done


@pytest.mark.parametrize(
    "data", [b"-1\r\n", b"\r\n", b"x\r\n", b" \r\n", b"1" * 16 + b"\r\n", b"1" * 5000, b"0\r\n" + b"a" * 5000]
)
def test_broken_chunks_are_refused(data: bytes) -> None:
    with pytest.raises(BadMessage):
        Chunked().take(data)


@given(st.integers(0, 100), st.lists(st.integers(0, 200)))
def test_a_counted_body_takes_its_length(length: int, cuts: list[int]) -> None:
    body = Counted(length)
    assert fed(body, b"x" * 150, cuts) == length
    assert body.done


def test_secrets_are_added_for_their_origin_and_shown_nowhere() -> None:
    secrets = SiteSecrets({"http://127.0.0.1:81": {"Authorization": "Bearer t0p", "Cookie": "session=t0p"}})
    given = [("authorization", "page's own"), ("Cookie", "a=1"), ("Accept", "*/*")]
    assert secrets.add_to("127.0.0.1", 81, given) == [
        ("Accept", "*/*"),
        ("Authorization", "Bearer t0p"),
        ("Cookie", "a=1; session=t0p"),
    ]
    assert secrets.add_to("127.0.0.1", 82, given) == given
    assert "t0p" not in repr(secrets) and "t0p" not in str(secrets) and "Authorization" in repr(secrets)
    with pytest.raises(TypeError, match="not sent between processes"):
        __import__("pickle").dumps(secrets)


@pytest.mark.parametrize(
    ("site", "headers"),
    [
        ("https://shop.example", {"Authorization": "x"}),
        ("http://*.shop.example", {"Authorization": "x"}),
        ("http://127.0.0.1:81", {"Host": "x"}),
        ("http://127.0.0.1:81", {"X Y": "x"}),
        ("http://127.0.0.1:81", {"X": "s3cret\r\nY: z"}),
        ("http://127.0.0.1:81", {"X": ""}),
    ],
)
def test_secrets_that_cannot_be_sent_are_refused_without_their_value(site: str, headers: dict[str, str]) -> None:
    with pytest.raises(ConfigError) as error:
        SiteSecrets({site: headers})
    assert "s3cret" not in str(error.value)
