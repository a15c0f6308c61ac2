"""Who may read the monitor's pages, and what their answers allow a browser."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from envs.types import ConfigError
from tasks_lib.monitor.gate import check_host, read_token
from tasks_lib.monitor.serving import PageServer

TOKEN = "a-token-of-24-characters"


async def secret(request: Request) -> Response:
    return PlainTextResponse(f"secret {request.url.query}")


def client(token: str = "", address: str = "http://127.0.0.1:8711") -> TestClient:
    """A client of a server with one route."""
    application = PageServer(token=token).application([Route("/secret", secret, methods=["GET", "POST"])])
    return TestClient(application, base_url=address, follow_redirects=False)


@pytest.mark.parametrize(
    ("address", "headers", "status"),
    [
        ("http://127.0.0.1:8711", {}, 200),
        ("http://localhost:8711", {"sec-fetch-site": "same-origin"}, 200),
        ("http://[::1]:8711", {}, 200),
        ("http://rebound.example:8711", {}, 403),
        ("http://127.0.0.1.example:8711", {}, 403),
        ("http://127.0.0.1:8711", {"sec-fetch-site": "cross-site"}, 403),
        ("http://127.0.0.1:8711", {"host": "[::"}, 403),
    ],
)
def test_without_a_token_this_machine_reads(address: str, headers: dict[str, str], status: int) -> None:
    answer = client(address=address).get("/secret", headers=headers)
    assert answer.status_code == status
    assert ("secret" in answer.text) is (status == 200)


def test_a_token_is_given_once_and_is_a_cookie_then() -> None:
    reader = client(TOKEN, "http://monitor.example")
    assert reader.get("/secret").status_code == 401
    assert reader.get("/secret?token=a-token-of-24-characterz").status_code == 401
    assert reader.get("/secret").status_code == 401, "a wrong token is not remembered"
    given = reader.get(f"/secret?a=1&token={TOKEN}&b=%20")
    assert (given.status_code, given.headers["location"]) == (303, "/secret?a=1&b=+")
    cookie = given.headers["set-cookie"].lower()
    assert "httponly" in cookie and "samesite=strict" in cookie
    assert reader.get("/secret?a=1").text == "secret a=1"
    other = client(TOKEN, "http://monitor.example")
    assert other.get("/secret").status_code == 401, "each browser needs it"
    for given, status in ((f"Bearer {TOKEN}", 200), (f"Bearer {TOKEN}x", 401), (TOKEN, 401), ("Bearer ", 401)):
        answer = other.get("/secret", headers={"authorization": given})
        assert answer.status_code == status and "set-cookie" not in answer.headers


def test_a_redirect_stays_on_the_server() -> None:
    answer = client(TOKEN, "http://monitor.example").get(f"http://monitor.example//elsewhere.example/x?token={TOKEN}")
    assert answer.headers["location"] == "/elsewhere.example/x"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_no_request_changes_anything(method: str) -> None:
    answer = client().request(method, "/secret")
    assert answer.status_code == 405 and "secret" not in answer.text


@pytest.mark.parametrize("path", ["/secret", "/static/monitor.mjs", "/nowhere"])
def test_every_answer_has_the_policy(path: str) -> None:
    headers = client().get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'" and policy["script-src"] == policy["style-src"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff" and headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("name", ["../gate.py", "..%2fgate.py", "%2e%2e%2fgate.py", "__init__.py", "", "a%00b"])
def test_only_the_pages_own_files_are_served(name: str) -> None:
    assert client().get("/static/icon.svg").headers["content-type"] == "image/svg+xml"
    answer = client().get(f"/static/{name}")
    assert answer.status_code == 404 and "import" not in answer.text


def test_others_need_a_token(tmp_path: Path) -> None:
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, "")
    check_host("0.0.0.0", TOKEN)
    for host in ("0.0.0.0", "10.0.0.5", "::", "monitor.example"):
        with pytest.raises(ConfigError, match="--token-file"):
            check_host(host, "")
    for content in ("", "short", "two words of many characters", "ü" * 20):
        (tmp_path / "token").write_text(content)
        with pytest.raises(ConfigError, match="--token-file"):
            read_token(tmp_path / "token")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    assert read_token(tmp_path / "token") == TOKEN
    assert TOKEN not in repr(PageServer(token=TOKEN))
