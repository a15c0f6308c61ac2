"""The pages: every control has a label, nothing comes from elsewhere, and forms refuse what makes
no sense."""

from __future__ import annotations

import asyncio
import re
from urllib.parse import urljoin

import httpx
import pytest

from envs.bundled.generate.html_page import HtmlPage
from envs.bundled.sites import APPLICATIONS
from envs.bundled.sites.directory import directory_world
from envs.bundled.sites.shop import shop_world
from envs.bundled.sites.tracker import tracker_world

from .serving import ORIGIN, Served, dump, rows

SEED = 11
ELSEWHERE = re.compile(r"""(?:src|href|action)\s*=\s*["']?(?:https?:)?//|@import|url\(""")


async def crawl(client: httpx.AsyncClient, start: str, most: int) -> dict[str, httpx.Response]:
    """Pages by path, following links."""
    found: dict[str, httpx.Response] = {}
    waiting = [start]
    while waiting and len(found) < most:
        path = waiting.pop(0)
        if path in found:
            continue
        found[path] = await client.get(path)
        waiting += [urljoin(ORIGIN + path, href).removeprefix(ORIGIN) for _, href in HtmlPage(found[path].text).links]
    return found


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
async def test_pages_are_whole_labelled_and_their_own(name: str) -> None:
    served = Served(name)
    async with served.visitor(served.open(SEED).token) as client:
        if name == "shop":
            await client.post(f"/product/{shop_world(SEED).products[0].id}", data={"quantity": "2"})
        pages = await crawl(client, "/", 90)
        assert len(pages) >= 40
        for path, answer in pages.items():
            assert answer.status_code == 200, path
            assert "default-src 'self'" in answer.headers["content-security-policy"]
            assert answer.headers["cache-control"] == "no-store"
            assert not ELSEWHERE.search(answer.text), path
            page = HtmlPage(answer.text)
            assert page.title and "<h1>" in answer.text, path
            assert all(label.strip() for label, _ in page.links), path
            for control in page.controls:
                assert control.label, f"{path}: a {control.kind} {control.name!r} without a label"
            labels = [(control.kind, control.label) for control in page.controls]
            assert len(set(labels)) == len(labels), f"{path}: two controls have one label"
        for asset in ("site.css", "site.js", "icon.svg"):
            assert (await client.get(f"/-/static/{asset}")).status_code == 200
        missing = await client.get("/nowhere")
        assert missing.status_code == 404 and "There is no such page" in missing.text


def refused(name: str, path: str, form: dict, message: str, before: list[tuple[str, dict]] | None = None) -> None:
    """The form is not taken: the page says why and nothing is changed."""

    async def run() -> None:
        served = Served(name)
        episode = served.open(SEED)
        async with served.visitor(episode.token) as client:
            for at, given in before or []:
                await client.post(at, data=given)
            was = dump(episode.kept.connection)
            answer = await client.post(path, data=form)
            assert answer.status_code == 422 and message in " ".join(HtmlPage(answer.text).lines)
            assert dump(episode.kept.connection) == was

    asyncio.run(run())


PRODUCT = shop_world(SEED).products[0]
TICKET = tracker_world(SEED).tickets[0]
GOOD = {"title": "T", "status": "open", "priority": "low", "assignee": TICKET.assignee, "body": ""}
BOUGHT = [(f"/product/{PRODUCT.id}", {"quantity": "1"})]
ADDRESS = {"name": "A B", "street": "S 1", "city": "C", "delivery": "Express"}
PROFILE = {
    "nickname": "N",
    "phone": "12345",
    "office": directory_world(SEED).offices[0].name,
    "language": "Danish",
    "about": "",
}


@pytest.mark.parametrize("quantity", ["0", "-1", "1.5", "", "many", "9999", "99999999999", "٣"])
def test_a_quantity_that_makes_no_sense_is_refused(quantity: str) -> None:
    refused("shop", f"/product/{PRODUCT.id}", {"quantity": quantity}, "Choose a quantity from 1")


def test_no_more_than_there_is_can_be_bought() -> None:
    most = {"quantity": str(PRODUCT.stock)}
    refused("shop", f"/product/{PRODUCT.id}", {"quantity": "1"}, "in all", [(f"/product/{PRODUCT.id}", most)])
    refused("shop", f"/basket/{PRODUCT.id}", {"quantity": str(PRODUCT.stock + 1)}, "Choose a quantity", BOUGHT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"name": ""}, "Fill in"), ({"city": "  "}, "Fill in"), ({"delivery": "Dove"}, "Choose a delivery")],
)
def test_an_order_without_an_address_is_refused(changes: dict, message: str) -> None:
    refused("shop", "/checkout", {**ADDRESS, **changes}, message, BOUGHT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"title": ""}, "Give it a title"),
        ({"title": "x" * 121}, "Give it a title"),
        ({"status": "lost"}, "Choose the status"),
        ({"priority": ""}, "Choose the priority"),
        ({"assignee": "Nobody Known"}, "Choose the assignee"),
        ({"body": "x" * 2001}, "Describe it in at most"),
    ],
)
@pytest.mark.parametrize("path", [f"/tickets/{TICKET.id}/edit", f"/projects/{TICKET.project}/new"])
def test_a_ticket_that_makes_no_sense_is_refused(path: str, changes: dict, message: str) -> None:
    refused("tracker", path, {**GOOD, **changes}, message)


def test_an_empty_comment_is_refused() -> None:
    refused("tracker", f"/tickets/{TICKET.id}/comments", {"text": " "}, "Write a comment")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"phone": "call me"}, "digits"),
        ({"about": "x" * 501}, "at most"),
        ({"language": "Klingon"}, "Choose an office"),
    ],
)
def test_a_profile_that_makes_no_sense_is_refused(changes: dict, message: str) -> None:
    refused("directory", "/profile", {**PROFILE, **changes}, message)


async def test_what_somebody_writes_is_text() -> None:
    served = Served("tracker")
    async with served.visitor(served.open(SEED).token) as client:
        text = "<script>steal()</script> ' OR 1=1; --"
        answer = await client.post(f"/tickets/{TICKET.id}/comments", data={"text": text})
        assert "<script>steal" not in answer.text
        assert any(text in line for line in HtmlPage(answer.text).lines)
        answer = await client.get("/search", params={"q": text})
        assert answer.status_code == 200 and "<script>steal" not in answer.text


async def test_what_is_not_there_is_not_found() -> None:
    for name, paths in {
        "shop": ["/product/1", "/orders/1", "/category/Nothing"],
        "tracker": ["/tickets/1", "/projects/Nothing", "/tickets/1/edit"],
        "directory": ["/people/1", "/offices/Nothing", "/departments/Nothing"],
    }.items():
        served = Served(name)
        async with served.visitor(served.open(SEED).token) as client:
            for path in paths:
                assert (await client.get(path)).status_code == 404, path
            assert (await client.post(paths[0], data={"quantity": "1"})).status_code in (404, 405)
            big = await client.post("/checkout" if name == "shop" else "/profile", content=b"x" * 100_000)
            assert big.status_code in (404, 405, 413)


async def test_a_cancelled_order_stays_and_one_on_its_way_cannot_be_cancelled() -> None:
    worlds = [shop_world(seed) for seed in range(20)]
    world = next(world for world in worlds if any(order.status == "shipped" for order in world.orders))
    served = Served("shop")
    episode = served.open(world.seed)
    async with served.visitor(episode.token) as client:
        for order in world.orders:
            await client.post(f"/orders/{order.id}/cancel")
    wanted = [(o.id, "cancelled" if o.status == "processing" else o.status) for o in world.orders]
    assert rows(episode, "SELECT id, status FROM orders ORDER BY id") == wanted
