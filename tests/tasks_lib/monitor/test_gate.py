"""Who may read the monitor's pages, and what their answers allow a browser."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.testclient import TestClient

from envs.types import ConfigError
from tasks_lib.monitor import flow_run_routes
from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.gate import check_host, read_token
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.monitor.serving import PageServer
from training.ledger.store import RunStore

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
def test_without_a_token_no_request_changes_anything(method: str) -> None:
    for headers in ({}, {"origin": "http://127.0.0.1:8711"}):
        answer = client().request(method, "/secret", headers=headers)
        assert answer.status_code == (403 if method == "POST" else 405) and "secret" not in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://monitor.example"}, 200),
        ({"origin": "https://monitor.example", "sec-fetch-site": "same-origin"}, 200),  # behind a proxy
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://monitor.example.evil"}, 403),
        ({"origin": "http://monitor.example", "sec-fetch-site": "cross-site"}, 403),
    ],
)
def test_a_change_comes_from_a_page_of_the_server(headers: dict[str, str], status: int) -> None:
    changing = client(TOKEN, "http://monitor.example")
    assert changing.post("/secret", headers=headers).status_code == 401
    assert changing.post("/secret", headers=headers, params={"token": TOKEN}).status_code == 401, "not by its address"
    answer = changing.post("/secret", headers={**headers, "authorization": f"Bearer {TOKEN}"})
    assert answer.status_code == status and ("secret" in answer.text) is (status == 200)


def test_two_routes_change_something_and_say_why_they_do_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = RunStore(tmp_path / "run")
    routes = [*LiveMonitor(FolderSource(store), RunFigures(store)).routes(), *browser_of(tmp_path).routes()]

    def why(token: str, root: Path | None) -> str:
        application = PageServer(token=token).application(routes, root=root)
        changing = [route.path for route in application.routes if set(route.methods) - {"GET", "HEAD"}]  # type: ignore[attr-defined]
        assert changing == [f"/api/flow-runs/{{id:uuid}}/{act}" for act in ("approve", "cancel")]
        reader = TestClient(application, base_url="http://127.0.0.1:8711", headers={"authorization": f"Bearer {token}"})
        said: str = reader.get("/api/flow-runs").json()["read_only"]
        answer = reader.post(f"/api/flow-runs/{uuid4()}/cancel", headers={"origin": "http://127.0.0.1:8711"})
        assert (answer.status_code, answer.json()["error"]) == (409, said) if token else answer.status_code == 403
        return said

    monkeypatch.setattr(flow_run_routes, "PREFECT_API_URL", SimpleNamespace(value=lambda: None))
    assert "--run" in why(TOKEN, None)
    assert "PREFECT_API_URL" in why(TOKEN, tmp_path)
    monkeypatch.setattr(flow_run_routes, "PREFECT_API_URL", SimpleNamespace(value=lambda: "http://127.0.0.1:4200/api"))
    monkeypatch.setattr(flow_run_routes, "active_flow_runs", no_flow_runs)
    assert "--token-file" in why("", tmp_path)


async def no_flow_runs(root: Path) -> list[object]:
    return []


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
