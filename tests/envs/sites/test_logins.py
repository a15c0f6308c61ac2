"""Log-ins: what a browser keeps of one is there in each episode, from a file or from a script."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
from playwright.async_api import async_playwright

from envs import ConfigError, LiveOptions, find_chromium, make_pool, open_env
from envs.sites import LiveSite, read_storage_state
from envs.types import SiteError

LOGIN = """<title>Log in</title><form><label>Name <input name=user></label><button>Log in</button></form><script>
document.forms[0].onsubmit = event => {
  event.preventDefault()
  document.cookie = "user=" + document.forms[0].user.value + "; path=/"
  localStorage.setItem("token", "local-" + document.forms[0].user.value)
  const opening = indexedDB.open("app", 3)
  opening.onupgradeneeded = () => {
    const people = opening.result.createObjectStore("people", { keyPath: "id" })
    people.createIndex("name", "name", { unique: true })
    opening.result.createObjectStore("log", { autoIncrement: true })
    opening.result.createObjectStore("keyed")
  }
  opening.onsuccess = () => {
    const all = opening.result.transaction(["people", "log", "keyed"], "readwrite")
    all.objectStore("people").put({ id: 1, name: "ann", since: new Date(7) })
    all.objectStore("log").put({ bytes: new Uint8Array([1, 2]), odd: [null, NaN, undefined], again: 5n, big: /x/g })
    all.objectStore("keyed").put("v", ["a", new Date(5)])
    all.oncomplete = () => { location.href = "/home" }
  }
}
</script>"""
HOME = """<title>Home</title><p id=who>…</p><script>
const opening = indexedDB.open("app")
opening.onupgradeneeded = () => opening.transaction.abort()
opening.onerror = () => show(["nobody"])
const get = request => new Promise(resolve => { request.onsuccess = () => resolve(request.result) })
opening.onsuccess = async () => {
  const all = opening.result.transaction(["people", "log", "keyed"])
  const ann = await get(all.objectStore("people").index("name").get("ann"))
  const [entry] = await get(all.objectStore("log").getAll())
  const keyed = await get(all.objectStore("keyed").get(["a", new Date(5)]))
  show([document.cookie, localStorage.getItem("token"), "v" + opening.result.version, ann.since instanceof Date && +ann.since,
    entry.bytes instanceof Uint8Array && entry.bytes.join("-"), entry.odd.map(String).join("/"), typeof entry.again, String(entry.big), keyed])
}
function show(parts) { document.getElementById("who").textContent = "home of " + parts.join(" ") }
</script>"""
SHOWN = "home of user=ann local-ann v3 7 1-2 null/NaN/undefined bigint /x/g v"


class Handler(BaseHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write((HOME if self.path == "/home" else LOGIN).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def app() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


async def log_in(page: Any) -> None:
    await page.goto("/")
    await page.get_by_label("Name").fill("ann")
    await page.get_by_role("button", name="Log in").click()
    await page.wait_for_url("**/home")


async def fail(page: Any) -> None:
    page.set_default_timeout(100)
    await page.goto("/")
    await page.get_by_label("Password").fill("hidden-value")


async def roam(page: Any) -> None:
    answer = await page.goto("http://other.example/")
    if answer.status == 403:  # the egress proxy's
        raise PermissionError


def not_async(page: Any) -> None: ...


def options(app: str, login: str) -> LiveOptions:
    return LiveOptions(addresses={"shop": app}, login=login)


async def first_texts(live: LiveOptions) -> list[str]:
    """What two episodes at once are shown first."""
    async with make_pool(max_sessions=2) as pool:

        async def text() -> str:
            async with open_env("live/shop/home", instruction="Look.", live=live, pool=pool) as env:
                return (await env.reset()).observation.text

        return list(await asyncio.gather(text(), text()))


async def test_a_script_logs_in_once_and_each_episode_has_all_stores(app: str) -> None:
    Handler.asked.clear()
    async with open_env("live/shop/home", instruction="Look.", live=options(app, f"{__name__}:log_in")) as env:
        for _ in range(3):
            assert SHOWN in (await env.reset()).observation.text
    assert [path for path in Handler.asked if path == "/"] == ["/"], "restoring the stores asks the server for nothing"


async def test_a_file_of_playwright_restores_the_same_stores(app: str, tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(find_chromium()))
        context = await browser.new_context(base_url=app)
        await log_in(await context.new_page())
        await context.storage_state(path=file, indexed_db=True)
        await browser.close()
    texts = await first_texts(LiveOptions(addresses={"shop": app}, logins={"shop": str(file)}))
    assert [SHOWN in text for text in texts] == [True, True]
    file.write_text(json.dumps({**json.loads(file.read_text()), "origins": []}))
    assert "nobody" in (await first_texts(LiveOptions(addresses={"shop": app}, logins={"shop": str(file)})))[0]


@pytest.mark.parametrize(
    ("script", "error", "words"),
    [
        ("fail", SiteError, r"log-in .*:fail: .*Timeout 100ms exceeded"),
        ("roam", SiteError, r"log-in .*:roam: the script raised PermissionError"),
        ("not_async", ConfigError, r"write async def not_async\(page\)"),
        ("missing", ConfigError, "has no missing"),
    ],
)
async def test_a_script_that_fails_is_named_without_what_it_typed(
    app: str, script: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        await LiveSite("shop", options(app, f"{__name__}:{script}")).start()
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        ("hidden-value", "is no object with an origin"),
        ({"origin": "file:///hidden"}, "no address of http"),
        ({"origin": "http://a.example", "localStorage": [{"name": "hidden"}]}, "localStorage is no list"),
        ({"origin": "http://a.example", "indexedDB": [{"name": "hidden"}]}, "indexedDB is no list"),
    ],
)
def test_stores_of_another_form_are_named_by_their_place(tmp_path: Path, origin: object, words: str) -> None:
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"cookies": [], "origins": [{"origin": "http://a.example"}, origin]}))
    with pytest.raises(SiteError, match=rf"origin 2 of 2: .*{words}") as caught:
        read_storage_state(file)
    assert "hidden" not in str(caught.value)
