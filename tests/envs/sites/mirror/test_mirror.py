"""Recorded sites: a browser records a site, and is then shown the same without it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import yaml
from playwright.async_api import async_playwright

from envs import open_env
from envs.browser import find_chromium
from envs.sites import find_recipe, record_site, site_of
from envs.sites.app_server import AppServer
from envs.sites.mirror.har import read_har
from envs.sites.mirror.site import MirrorSite
from envs.sites.recipes.recipe import FOLDERS
from envs.types import ConfigError, SiteError, Terminate, WebTask

from .archives import entry, headers, write_har
from .small_shop import SmallShop, visit

TASK = WebTask.model_validate(
    {
        "task_id": "small-shop/1",
        "site": "small-shop",
        "kind": "add",
        "path": "/",
        "instruction": "Put a red lamp into the basket.",
        "rubric": {
            "fact_groups": [{"name": "basket", "facts": [{"id": "lamp", "type": "text", "text": "Basket: red lamp"}]}]
        },
        "difficulty": 1,
        "horizon": 5,
        "seeds": {"train": {"start": 0, "stop": 1}},
    }
)


@dataclass(frozen=True)
class Recorded:
    folder: Path
    address: str
    answered: list[tuple[str, str, int, str]]
    """Answers of the live site, in order."""


@pytest.fixture(scope="module")
async def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """The recording of a site that is gone."""
    folder, shop = tmp_path_factory.mktemp("mirror"), SmallShop()
    server = AppServer(shop, "small-shop")
    await server.start()
    try:
        await record_site(server.origin, folder / "shop.har", script=f"{visit.__module__}:visit")
        start = {"recording": "shop.har", "ignored": ["time"]}
        (folder / "small-shop.yaml").write_text(yaml.safe_dump({"kind": "mirror", "start": start}))
        return Recorded(folder, server.origin, shop.answered)
    finally:
        await server.close()


@pytest.fixture
async def site(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MirrorSite]:
    monkeypatch.setenv(FOLDERS, str(recorded.folder))
    made = site_of(find_recipe("small-shop"))
    assert isinstance(made, MirrorSite)
    await made.start()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def begun(site: MirrorSite) -> AsyncIterator[httpx.AsyncClient]:
    """A client that has entered an episode."""
    episode = await site.open_episode(TASK, 0)
    async with httpx.AsyncClient(base_url=site.origin, trust_env=False, follow_redirects=False) as client:
        assert (await client.get(episode.path)).headers["location"] == "/"
        yield client
    await episode.close()


async def test_answers_are_those_of_the_site_in_order(recorded: Recorded, site: MirrorSite) -> None:
    """The live application noted its answers itself; each is asked again, in the same order."""
    sent = {
        (each.method, each.url.removeprefix(recorded.address).partition("?")[0]): each
        for each in read_har(recorded.folder / "shop.har").exchanges
    }
    again = []
    async with begun(site) as client:
        for method, path, _, _ in recorded.answered:
            if path == "/favicon.ico":
                continue
            request = sent[method, path]
            target = request.url.removeprefix(recorded.address).replace("b=2&a=%C3%A9", "a=%c3%a9&b=2&time=1")
            headers = {"content-type": request.sent_type} if request.sent_type else {}
            answer = await client.request(method, target, content=request.sent, headers=headers)
            again.append((method, path, answer.status_code, hashlib.sha256(answer.content).hexdigest()))
    assert again == [answer for answer in recorded.answered if answer[1] != "/favicon.ico"]
    assert len(again) >= 12 and not site.missed


async def test_each_episode_begins_at_the_start(site: MirrorSite) -> None:
    async with begun(site) as one, begun(site) as two:
        first = (await one.get("/")).text
        assert "Basket: empty" in first
        later = [(await one.get("/")).text for _ in range(4)]
        assert all("Basket: red lamp" in text for text in later)  # after the last one, the last one again
        assert (await two.get("/")).text == first
        assert (await two.get("/")).headers.get_list("set-cookie") == [
            "visit=1; Path=/; SameSite=lax",
            "second=2; Path=/; SameSite=lax",
        ]


async def test_what_was_not_recorded_is_reported_with_the_nearest(
    site: MirrorSite, caplog: pytest.LogCaptureFixture
) -> None:
    async with begun(site) as client:
        other = await client.post("/add", data={"item": "blue lamp", "time": "5"})
        assert other.status_code == 404 and "item=blue lamp" in other.text
        assert "POST 127.0.0.1" in other.text and "item=red lamp (other form)" in other.text
        assert "(other query)" in (await client.get("/price?b=3")).text
        assert "(other method, body)" in (await client.delete("/stock")).text
        await client.delete("/stock")
    assert sorted(site.missed.values()) == [1, 1, 2]
    assert len(caplog.records) == 3  # each once


async def test_a_browser_acts_on_it_as_on_the_site(site: MirrorSite) -> None:
    async with open_env(TASK, seed=0) as env:
        step = await env.reset()
        assert "Basket: empty" in step.observation.text and "7 left for 12 \N{EURO SIGN}" in step.observation.text
        field = next(each for each in step.observation.elements if each.tag == "input")
        step = await env.step({"type": "type", "element": field.index, "text": "red lamp"})
        button = next(each for each in step.observation.elements if each.text == "Add")
        step = await env.step({"type": "click", "element": button.index})
        assert "Basket: red lamp" in step.observation.text
        step = await env.step(Terminate())
        assert step.reward == 1


NAMED = """<!doctype html><title>Shop</title><h1>Welcome</h1><a href="https://www.shop.example/lamps">Lamps</a>
<p id=seen></p><script>fetch("https://api.example/stock").then(answer => answer.text())
  .then(stock => { document.getElementById("seen").textContent = `${stock} left, ${isSecureContext}` })</script>"""


async def test_sites_of_https_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cookie, allowed = (
        ("Set-Cookie", "of=shop; Secure; Domain=shop.example; Path=/"),
        ("Access-Control-Allow-Origin", "*"),
    )
    lamps = (
        "<title>Lamps</title><p id=of></p><script>document.getElementById('of').textContent = document.cookie</script>"
    )
    html = ("Content-Type", "text/html")
    write_har(
        tmp_path,
        entry({"headers": headers(html, cookie), "content": {"text": NAMED}}, url="https://shop.example/"),
        entry({"headers": headers(allowed), "content": {"text": "7"}}, url="https://api.example/stock"),
        entry({"status": 302, "headers": headers(("Location", "/all"))}, url="https://www.shop.example/lamps"),
        entry({"headers": headers(html), "content": {"text": lamps}}, url="https://www.shop.example/all"),
    )
    (tmp_path / "small-shop.yaml").write_text("{kind: mirror, start: {recording: shop.har}}")
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    async with open_env(TASK, seed=0) as env:
        step = await env.reset()
        assert step.observation.url == "https://shop.example/" and "7 left, true" in step.observation.text
        step = await env.step({"type": "click", "element": 1})
        assert step.observation.url == "https://www.shop.example/all" and "of=shop" in step.observation.text
        step = await env.step({"type": "goto", "url": "https://shop.example/more"})
        assert "not part of the recording" in step.observation.text
        step = await env.step({"type": "goto", "url": "https://other.example/"})
        assert step.observation.url == "https://shop.example/more"  # a host that was not recorded


async def test_a_task_whose_page_is_missing_is_refused(site: MirrorSite) -> None:
    with pytest.raises(SiteError, match=r"not recorded: GET 127\.0\.0\.1:\d+/lamps\. The nearest .*record it"):
        await site.open_episode(TASK.model_copy(update={"path": "/lamps"}), 0)


async def test_requests_are_recorded_without_cookies(recorded: Recorded) -> None:
    archive = json.loads((recorded.folder / "shop.har").read_text())
    assert all(not entry["request"]["headers"] + entry["request"]["cookies"] for entry in archive["log"]["entries"])


async def test_playwrights_attached_archives_are_read(tmp_path: Path) -> None:
    server = AppServer(SmallShop(), "small-shop")
    await server.start()
    try:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=str(find_chromium()))
            for name in ("packed.zip", "apart.har"):
                context = await browser.new_context(record_har_path=tmp_path / name, record_har_content="attach")
                await (await context.new_page()).goto(f"{server.origin}/lamp.png")
                await context.close()
            await browser.close()
        packed, apart = read_har(tmp_path / "packed.zip"), read_har(tmp_path / "apart.har")
        assert packed.exchanges[0].body == apart.exchanges[0].body == httpx.get(f"{server.origin}/lamp.png").content
    finally:
        await server.close()


async def test_an_address_that_is_no_origin_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no origin"):
        await record_site("127.0.0.1", tmp_path / "shop.har")
