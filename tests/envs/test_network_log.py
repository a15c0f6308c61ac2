"""The log of an episode's requests, against the server's and Playwright's archive of the page."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urljoin

import pytest
from playwright.async_api import async_playwright

from envs import ConfigError, LiveOptions, find_chromium, make_pool, open_env

PAGE = """<title>Start</title><button onclick="send()">Send</button><a target=_blank href="/popup">Open</a><script>
document.cookie = "seen=1"
async function send() {
  await fetch("/api/save?a=1&b=%20x&empty=", { method: "POST", headers: { "X-Kind": "test", "Authorization": "Bearer hidden" },
    body: JSON.stringify({ name: "Ann" }) })
  await fetch("/moved").catch(() => 0)
  await fetch("/gone")
  await fetch("/cut").catch(() => 0)
  document.title = "Sent"
}
</script>"""


class Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def answer(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        if length := int(self.headers.get("Content-Length", 0)):
            self.rfile.read(length)
        if self.path == "/cut":
            self.close_connection = True
            self.connection.close()
            return
        status = {"/moved": 302, "/gone": 404}.get(self.path.partition("?")[0], 200)
        body = PAGE.encode() if self.path == "/" else b"<title>Other</title>"
        self.send_response(status)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Set-Cookie", "token=hidden")
        if status == 302:
            self.send_header("Location", "/arrived")
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = answer

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def facts(har: dict[str, Any]) -> list[tuple[Any, ...]]:
    """What two recorders of the same requests must agree on."""
    return [
        (
            entry["request"]["method"],
            entry["request"]["url"],
            sorted((part["name"], part["value"]) for part in entry["request"]["queryString"]),
            # Our proxy answers where the connection was cut; Playwright's page has none.
            max(0, entry["response"]["status"]) % 502,
            urljoin(entry["request"]["url"], entry["response"]["redirectURL"]),
            entry["response"]["content"]["mimeType"] in ("text/html", "text/html; charset=utf-8"),
        )
        for entry in har["log"]["entries"]
        if "favicon" not in entry["request"]["url"]
    ]


async def test_the_archive_is_what_playwright_records_of_the_same_page(app: str, tmp_path: Path) -> None:
    Handler.asked.clear()
    live = LiveOptions(addresses={"app": app})
    async with (
        make_pool(max_sessions=1, record_network=True) as pool,
        open_env("live/app/", instruction="Send.", live=live, pool=pool) as env,
    ):
        await env.reset()
        await env.step("click [1]")
        har, asked = env.har, list(Handler.asked)
        await env.step("click [2]")
        popup = env.har["log"]["entries"][-1]
        await env.reset()
        assert [entry["request"]["url"] for entry in env.har["log"]["entries"]] == [f"{app}/"], "another episode"
    assert popup["request"]["url"] == f"{app}/popup" and popup["response"]["status"] == 200
    file = tmp_path / "page.har"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(find_chromium()))
        context = await browser.new_context(record_har_path=file, record_har_content="omit")
        page = await context.new_page()
        await page.goto(app)
        await page.get_by_role("button").click()
        await page.wait_for_function("document.title == 'Sent'")
        await context.close()
        await browser.close()
    assert facts(har) == facts(json.loads(file.read_text()))
    assert [
        entry["request"]["postData"]["text"] for entry in har["log"]["entries"] if "postData" in entry["request"]
    ] == ['{"name":"Ann"}']
    logged = [f"{method} {url.removeprefix(app)}" for method, url, *_ in facts(har)]
    assert logged == [line for line in asked if "favicon" not in line], "the server's own order"
    assert "hidden" not in json.dumps(har) and "X-Kind" in json.dumps(har)
    assert all(entry["time"] >= 0 and entry["startedDateTime"].startswith("20") for entry in har["log"]["entries"])


async def test_requests_are_kept_only_where_they_are_asked_for() -> None:
    async with open_env("miniwob/click-test") as env:
        await env.reset()
        with pytest.raises(ConfigError, match=r"make_pool\(record_network=True\)"):
            _ = env.har
