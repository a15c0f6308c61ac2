"""Forks of an instance in the middle: equal until they act, then each on its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from envs.browser import BrowserPool
from envs.env import WebEnv, open_env
from envs.sites.mirror.replay import Miss
from envs.sites.recipes import kept_answers
from envs.sites.recipes.check import check_site
from envs.sites.recipes.front import COOKIE, Front
from envs.sites.recipes.group import SiteGroup
from envs.sites.recipes.kept_answers import MAX_KEPT, AskedRequest, KeptAnswers, KeptExchange
from envs.sites.recipes.recipe import CheckSteps, RecordedRequest, read_recipe
from envs.sites.recipes.site import RecipeSite
from envs.types import BrowserError, Click, ConfigError, SiteError, Terminate, Type, WebTask

from .making import Visitor, started, visited, write_recipe
from .test_instances import TASK

BOUGHT = {
    "fact_groups": [
        {
            "name": "left",
            "facts": [
                {
                    "id": "left",
                    "type": "server_sql",
                    "query": "SELECT item FROM orders WHERE item = 'left'",
                    "database": "",
                    "rows": [["left"]],
                }
            ],
        }
    ]
}
SHOP = WebTask.model_validate({**TASK.model_dump(), "path": "/shop", "rubric": BOUGHT, "horizon": 9})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    place = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWRIGHT_SITE_BUILDS", str(place / "builds"))
        yield place


@pytest.fixture(scope="module", params=["isolated", "plain"])
async def site(folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[RecipeSite]:
    isolate = request.param == "isolated"
    async with started(write_recipe(folder), isolate=isolate) as made:
        assert made.report is not None
        if isolate and not made.report.isolated:
            pytest.skip(f"no namespaces here: {made.report.notices}")
        yield made


async def test_forks_of_an_instance_have_its_state_and_then_their_own(site: RecipeSite) -> None:
    async with visited(site) as one:
        site.keep_answers(one.instance)
        await one.ask("/buy", item="tea")
        await one.ask("/leave?value=mark")
        await one.ask("/remove")
        secret = await one.text("/secret")
        here = await site.hash_state(one.instance)
        assert "note.txt" in here and "old.txt" not in here
        forks = [Visitor(site, fork) for fork in await site.fork(one.instance, 2)]
        left, right = forks
        assert [await site.hash_state(fork.instance) for fork in forks] == [here, here]
        assert await left.text("/secret") == secret, "until they go on they get the answers that were kept"
        assert (await left.ask("/buy", item="tea")).headers.get_list("set-cookie") == ["basket=1", "seen=1"]
        assert (await right.ask("/clock")).status_code == 404
        with pytest.raises(SiteError, match="not recorded: GET instance/clock"):
            await site.go_on(right.instance)
        await site.go_on(left.instance)
        assert [await site.hash_state(fork.instance) for fork in forks] == [here, here], "no request reached them"
        assert await left.text("/secret") != secret
        # It is in the database, in a file and in /tmp, but not in the memory of a new process.
        assert await left.text("/look") == "mark,of the seed,tea,mark,mark,"
        await left.ask("/buy", item="left")
        await right.ask("/buy", item="right")
        await one.ask("/buy", item="first")
        for visitor, item in ((left, "left"), (right, "right"), (one, "first")):
            assert sorted({"left", "right", "first"} & set((await visitor.text("/look")).split(","))) == [item]
        (again,) = await site.fork(left.instance, 1)
        assert await site.hash_state(again) == await site.hash_state(left.instance), "a fork can be forked"
        for instance in (left.instance, right.instance, again):
            await site.drop(instance)
    assert site.instances == 0 and not site._front.kept


async def test_forks_have_one_moment_of_a_state_that_is_written(site: RecipeSite) -> None:
    async with visited(site) as one:
        site.keep_answers(one.instance)
        await one.text("/write")
        forks, seen = [Visitor(site, fork) for fork in await site.fork(one.instance, 2)], list[dict[str, Any]]()
        for fork in forks:
            await site.go_on(fork.instance)
            seen.append(json.loads(await fork.text("/written")))
            await site.drop(fork.instance)
        assert seen[0] == seen[1] and seen[0]["left"] == seen[0]["right"]
        parts = seen[0]["parts"]
        assert len(parts) == 90 and sorted(parts, reverse=True) == parts and parts[0] - parts[-1] in (0, 1)
        assert parts[-1] - seen[0]["left"] in (0, 1)
        assert json.loads(await one.text("/written"))["left"] > seen[0]["left"], "the writing goes on"


async def test_state_in_memory_is_made_anew_by_the_same_requests(folder: Path) -> None:
    recipe = write_recipe(folder, "memory", state={"memory": True})
    async with started(recipe) as site, visited(site) as one:
        site.keep_answers(one.instance)
        await one.ask("/leave?value=mark")
        await one.ask("/buy", item="tea")
        (fork,) = [Visitor(site, fork) for fork in await site.fork(one.instance, 1)]
        await site.go_on(fork.instance)
        assert await fork.text("/look") == await one.text("/look") == "mark,of the seed,tea,mark,mark,mark,mark"
        await fork.ask("/leave?value=other")
        assert "other" not in await one.text("/look")
        await site.drop(fork.instance)
        await one.text("/secret")
        with pytest.raises(SiteError, match=r"asked again, GET /secret is answered otherwise"):
            await site.fork(one.instance, 1)
        assert site.instances == 1
        requests = tuple(RecordedRequest(path=path) for path in ("/leave?value=mark", "/look"))
        steps = CheckSteps(requests=requests)
        checked = await check_site(site, site.recipe.model_copy(update={"check": steps}))
        assert checked.ok, checked.differences


async def test_a_fork_is_refused_after_what_is_not_kept() -> None:
    kept = KeptAnswers()
    kept.socket = "/chat"
    with pytest.raises(SiteError, match="WebSocket /chat, whose messages are not kept"):
        await kept.hold()
    large = KeptAnswers()
    await large.end(await large.begin(AskedRequest("GET", "/large", (), b"")), MAX_KEPT + 1)
    with pytest.raises(SiteError, match="more than 256 MB"):
        await large.hold()


def test_a_request_that_had_no_answer_is_nothing_new_in_a_fork() -> None:
    given_up, new = (AskedRequest("GET", path, (), b"") for path in ("/given-up", "/new"))
    fork = KeptAnswers((KeptExchange(given_up),))
    assert isinstance(fork.again(given_up), Miss) and fork.missed == []
    assert isinstance(fork.again(new), Miss) and len(fork.missed) == 1


async def test_a_fork_waits_for_answers_and_holds_new_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, asked = KeptAnswers(), AskedRequest("GET", "/slow", (), b"")
    exchange = await kept.begin(asked)
    with monkeypatch.context() as patch:
        patch.setattr(kept_answers, "REST_SECONDS", 0.01)
        with pytest.raises(SiteError, match=r"/slow is not answered after 0.01 s; an episode can be forked while"):
            await kept.hold()
    await kept.release()
    holding = asyncio.create_task(kept.hold())
    exchange.answer = asked.answered(200, [], b"slow")
    await kept.end(exchange, 4)
    assert await holding == (exchange,)
    later = asyncio.create_task(kept.begin(asked))
    assert await asyncio.wait([later], timeout=0.01) == (set(), {later})
    await kept.release()
    await later


async def test_a_fork_waits_for_a_request_that_the_browser_gave_up(tmp_path: Path) -> None:
    """The server writes an order after the browser has left: no fork may come between."""
    reached, may_write, written = asyncio.Event(), asyncio.Event(), list[str]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reached.set()
        await may_write.wait()
        written.append("order")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async def send(message: Any) -> None:
        """Drop a message: the browser has left."""

    front, place = Front("shop"), tmp_path / "socket"
    token = front.admit(place)
    kept = front.kept[token] = KeptAnswers()
    events = asyncio.Queue[dict[str, Any]]()
    for event in ({"type": "http.request", "body": b"", "more_body": False}, {"type": "http.disconnect"}):
        events.put_nowait(event)
    cookie = (b"cookie", f"{COOKIE}={token}".encode())
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/buy",
        "raw_path": b"/buy",
        "query_string": b"",
        "headers": [cookie],
    }
    async with await asyncio.start_unix_server(serve, place):
        answering = asyncio.create_task(front(scope, events.get, send))
        await reached.wait()
        holding = asyncio.create_task(kept.hold())
        assert await asyncio.wait([holding], timeout=0.1) == (set(), {holding})
        may_write.set()
        await holding
        assert written == ["order"]
        await answering


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool(max_sessions=6) as browsers:
        yield browsers


def control(env: WebEnv, label: str) -> int:
    assert env.page_step is not None
    return next(one.index for one in env.page_step.observation.elements if one.text == label)


async def buy(env: WebEnv, item: str) -> None:
    """Fill the form in, and send it."""
    await env.step(Type(element=control(env, "Item"), text=item))
    await env.step(Click(element=control(env, "Buy")))


def text(env: WebEnv) -> str:
    assert env.page_step is not None
    return env.page_step.observation.text


async def test_forks_of_an_episode_are_equal_until_they_act(site: RecipeSite, pool: BrowserPool) -> None:
    async with open_env(SHOP, seed=0, site=site, pool=pool, forkable=True) as env:
        await env.reset()
        await buy(env, "tea")
        assert "visit 2 basket=1; seen=1" in text(env) and "tea" in text(env)
        await env.step(Type(element=control(env, "Item"), text="typed"))
        async with env.fork(2) as (left, right):
            for fork in (left, right):
                assert fork.page_step is not None and env.page_step is not None
                assert fork.page_step.observation == env.page_step.observation, "the ticket is drawn at random"
                assert fork.page_step.dom_hash == env.page_step.dom_hash and fork.steps == env.steps
            await buy(left, "left")
            await buy(right, "right")
            assert "left" in text(left) and "right" not in text(left) and "visit 3" in text(left)
            assert "right" in text(right) and "left" not in text(right) and "visit 3" in text(right)
            assert "left" not in text(env) and "visit 2" in text(env)
            async with left.fork(1) as (again,):
                assert text(again) == text(left)
                assert (await again.step(Terminate())).reward == 1
            results = [await one.step(Terminate()) for one in (left, right, env)]
            assert [one.reward for one in results] == [1, 0, 0]
            records = [one.trajectory for one in (left, right, env, again)]
            assert [one.episode_id for one in records if one] == [
                "canary/1.1",
                "canary/1.2",
                "canary/1",
                "canary/1.1.1",
            ]
            assert [len(one.steps) for one in records if one] == [6, 6, 4, 6]
        assert site.instances == 1


async def test_what_is_left_of_the_horizon_is_left_to_each_fork(site: RecipeSite, pool: BrowserPool) -> None:
    async with open_env(SHOP, seed=0, site=site, pool=pool, forkable=True, horizon=3) as env:
        await env.reset()
        await buy(env, "tea")
        async with env.fork(1) as (fork,):
            assert (await fork.step(Type(element=control(fork, "Item"), text="no"))).done


async def test_a_page_that_draws_at_random_is_named(site: RecipeSite, pool: BrowserPool) -> None:
    drawn = SHOP.model_copy(update={"path": "/drawn"})
    async with open_env(drawn, seed=0, site=site, pool=pool, forkable=True) as env:
        await env.reset()
        with pytest.raises(BrowserError, match=r"differs after 0 actions, text: the episode had 'drawn.*page_seed=1"):
            async with env.fork(1):
                raise AssertionError("no fork is equal")
        assert (await env.step(Click(element=1))).observation.error is None, "the episode itself goes on"
        assert site.instances == 1
    async with (
        BrowserPool(max_sessions=2, page_seed=1) as seeded,
        open_env(drawn, seed=0, site=site, pool=seeded, forkable=True) as env,
    ):
        await env.reset()
        async with env.fork(1) as (fork,):
            assert text(fork) == text(env)


def test_a_container_without_folders_says_so_before_the_episode(folder: Path) -> None:
    image = {"image": f"sha256:{'0' * 64}"}
    recipe = read_recipe(write_recipe(folder, "box", kind="container", build={}, start=image, state={}, warm=[]))
    problem = RecipeSite(recipe).fork_problem()
    assert problem == "site box has no state.folders by which the container of a fork could be compared"
    assert SiteGroup("town", {"box.example": RecipeSite(recipe)}).fork_problem() == problem


async def test_what_cannot_be_forked_says_so_before_the_episode(site: RecipeSite, pool: BrowserPool) -> None:
    async with open_env("http://127.0.0.1:9/", instruction="Look.", pool=pool, forkable=True) as env:
        with pytest.raises(ConfigError, match=r"cannot begin: site 127.0.0.1:9 is served by somebody else"):
            await env.reset()
    async with open_env(SHOP, seed=0, site=site, pool=pool) as env:
        await env.reset()
        with pytest.raises(ConfigError, match=r"was not begun to be forked"):
            async with env.fork(1):
                raise AssertionError("it was not begun for that")
