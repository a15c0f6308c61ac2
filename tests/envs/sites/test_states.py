"""Every episode has a state of its own: exact at its beginning, out of reach for others, gone at
its end."""

from __future__ import annotations

import asyncio
import threading

import httpx
import pytest

from envs.bundled.sites import APPLICATIONS, BundledSite
from envs.bundled.sites import states as states_module
from envs.bundled.sites.shop import shop_world
from envs.bundled.sites.states import AppState, AppStates
from envs.sites import SiteEpisode, SiteState, make_site
from envs.types import SeedRange, SiteError, Split
from tests.builders import make_task

from .serving import Served, dump, rows

TASK = make_task("shop-open/5/0", site="shop", kind="shop-open", seeds={Split.HELD_OUT: SeedRange(start=5, stop=6)})


@pytest.mark.parametrize("name", sorted(APPLICATIONS))
def test_an_episode_begins_with_its_world_whatever_was_done_before(name: str) -> None:
    states = AppStates(APPLICATIONS[name].build)
    first = states.open(7)
    fresh = dump(first.connection)
    table = {"shop": "products", "tracker": "tickets", "directory": "people"}[name]
    first.connection.execute(f"DELETE FROM {table}")
    first.connection.commit()
    assert dump(states.open(7).connection) == fresh
    assert dump(AppStates(APPLICATIONS[name].build).open(7).connection) == fresh
    assert dump(states.open(8).connection) != fresh


async def test_one_episode_does_not_see_what_another_does() -> None:
    served = Served("shop")
    one, other = served.open(5), served.open(5)
    product = shop_world(5).products[0]
    async with served.visitor(one.token) as mine, served.visitor(other.token) as theirs:
        page = await mine.post(f"/product/{product.id}", data={"quantity": "3"})
        assert page.status_code == 200 and product.name in page.text and "Basket (3)" in page.text
        page = await theirs.get("/basket")
        assert "Your basket is empty" in page.text and "Basket (0)" in page.text
    assert rows(one, "SELECT * FROM basket") == [(product.id, 3)]
    assert rows(other, "SELECT * FROM basket") == []


async def test_twenty_at_once_get_their_own() -> None:
    async def shopper(served: Served, number: int) -> None:
        episode = served.open(number % 3)
        products = shop_world(number % 3).products
        async with served.visitor(episode.token) as client:
            for product in products[number : number + 4]:
                await client.post(f"/product/{product.id}", data={"quantity": str(1 + number % 5)})
                await asyncio.sleep(0)
        wanted = sorted((product.id, 1 + number % 5) for product in products[number : number + 4])
        assert rows(episode, "SELECT product, quantity FROM basket ORDER BY 1") == wanted

    served = Served("shop")
    await asyncio.gather(*(shopper(served, number) for number in range(20)))


async def test_without_an_episode_nothing_is_shown() -> None:
    served = Served("shop")
    episode = served.open(5)
    token = episode.token
    for known in ("", "guessed", token[:-1]):
        async with served.visitor(known) as client:
            for path in ("/", "/basket", "/nowhere", "/api/orders/1001"):
                answer = await client.get(path)
                assert (answer.status_code, answer.text) == (403, "no episode")
    async with served.visitor() as client:
        assert (await client.get("/-/begin/guessed?to=/")).status_code == 403
        for to in ("//evil.example/", "https://evil.example/", ""):
            answer = await client.get(f"/-/begin/{token}", params={"to": to})
            assert answer.status_code == 403
        answer = await client.get(f"/-/begin/{token}?to=/orders")
        assert answer.status_code == 200 and str(answer.url).endswith("/orders"), "the address is the site's own"
        (cookie,) = answer.history[0].headers.get_list("set-cookie")
        assert "HttpOnly" in cookie and "SameSite=lax" in cookie
        assert token not in answer.text
        await episode.close()
        await episode.close()
        assert (await client.get("/")).status_code == 403


async def test_only_grading_gets_json() -> None:
    served = Served("shop")
    episode = served.open(5)
    async with served.visitor(episode.token) as policy, served.visitor(episode.grading_token) as grading:
        assert (await policy.get("/api/orders/1001")).status_code == 403
        answer = (await grading.get("/api/orders/1001")).json()
        order = shop_world(5).orders[0]
        assert (answer["name"], answer["city"], answer["status"]) == (order.name, order.city, order.status)
        assert [(line["id"], line["quantity"]) for line in answer["lines"]] == sorted(
            order.lines, key=lambda line: shop_world(5).name_of(line[0])
        )
        assert (await grading.get("/api/orders/7")).status_code == 404


async def test_a_site_hands_out_a_state_that_grading_can_ask() -> None:
    site = make_site("shop")
    assert isinstance(site, BundledSite)
    page = TASK.model_copy(update={"path": "/miniwob/click-test.html"})
    assert await make_site("miniwob").open_episode(page, 5) == SiteEpisode(page.path, None)
    await site.start()
    try:
        episode = await site.open_episode(TASK, 5)
        assert isinstance(episode.state, SiteState)
        assert await episode.state.sql("SELECT count(*) FROM products", "") == [(48,)]
        with pytest.raises(SiteError, match="only one SELECT"):
            await episode.state.sql("DELETE FROM products", "")
        assert (await episode.state.get_json("/api/orders/1001"))["id"] == 1001
        assert await episode.state.get_json("/api/orders/1") is None
        async with httpx.AsyncClient(follow_redirects=True, trust_env=False) as client:
            answer = await client.get(site.origin + episode.path)
            assert answer.status_code == 200 and answer.url.path == "/"
        assert episode.grading_token not in repr(episode.state)
        await episode.close()
        with pytest.raises(SiteError):
            await episode.state.sql("SELECT count(*) FROM products", "")
        with pytest.raises(SiteError, match="403"):
            await episode.state.get_json("/api/orders/1001")
    finally:
        await site.close()
    assert len(site.states) == 0
    with pytest.raises(SiteError, match="not started"):
        await site.open_episode(TASK, 5)
    assert len(site.states) == 0, "an episode that cannot begin leaves nothing open"


def test_episodes_that_nobody_closes_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states_module, "MAX_EPISODES", 3)
    states = AppStates(APPLICATIONS["shop"].build)
    kept = [states.open(1) for _ in range(3)]
    with pytest.raises(SiteError, match="3 episodes are open"):
        states.open(1)
    states.close(kept[0])
    states.open(1)


def test_worlds_that_were_not_used_for_long_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    monkeypatch.setattr(states_module, "MAX_WORLDS", 2)

    def build(seed: int, db: object) -> None:
        built.append(seed)

    states = AppStates(build)
    for seed in (1, 2, 1, 3, 1, 2):
        states.open(seed)
    assert built == [1, 2, 3, 2]


async def test_an_episode_that_is_given_up_while_it_begins_leaves_no_state(monkeypatch: pytest.MonkeyPatch) -> None:
    site = BundledSite(APPLICATIONS["shop"])
    await site.start()
    begun, go_on, open_now = threading.Event(), threading.Event(), site.states.open
    opened: list[str] = []

    def slowly(seed: int) -> AppState:
        begun.set()
        assert go_on.wait(10)
        state = open_now(seed)
        opened.append(state.uri)
        return state

    monkeypatch.setattr(site.states, "open", slowly)
    try:
        opening = asyncio.create_task(site.open_episode(TASK, 5))
        await asyncio.to_thread(begun.wait, 10)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        go_on.set()
        async with asyncio.timeout(10):
            while not opened or len(site.states):
                await asyncio.sleep(0.01)
    finally:
        await site.close()
