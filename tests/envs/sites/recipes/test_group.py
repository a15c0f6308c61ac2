"""A site of several hosts: true names, HTTPS, cookies, links, redirects and forms across them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from envs.browser import BrowserPool
from envs.egress.certificates import LocalKey, local_key
from envs.env import WebEnv, open_env
from envs.sites import find_recipe, site_of
from envs.sites.live import LiveOptions
from envs.sites.recipes.build import build_site
from envs.sites.recipes.check import check_site
from envs.sites.recipes.group import GroupEpisode, SiteGroup
from envs.sites.recipes.recipe import FOLDERS, CheckSteps, RecordedRequest
from envs.tasks.imports import import_tasks
from envs.types import BrowserError, Click, ConfigError, Goto, SiteError, StopReason, Terminate, Type

from ..mirror.archives import entry, headers, write_har
from .making import write_recipe
from .test_instances import TASK

TOWN = Path(__file__).parent / "town"
SHOP, FORUM = "shop.town.example", "forum.town.example"
TOWN_TASK = TASK.model_copy(update={"site": "town", "path": "/"})


def write_group(folder: Path, name: str = "town", **sites: str) -> None:
    hosts = sites or {SHOP: "town-shop", FORUM: "town-forum"}
    write_recipe(folder, name, kind="group", build={}, start={}, warm=[], state={}, limits={}, sites=hosts)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Path]:
    place = tmp_path_factory.mktemp("town")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWRIGHT_SITE_BUILDS", str(place / "builds"))
        patch.setenv(FOLDERS, str(place))
        for name in ("shop", "forum"):
            values = {
                "build": {"code": str(TOWN), "seed": ["python", "-m", "town"]},
                "start": {"application": f"town:{name}"},
                "state": {"databases": {"": "notes.sqlite"}},
            }
            write_recipe(place, f"town-{name}", warm=[], **values)
            build_site(find_recipe(f"town-{name}"))
        write_group(place)
        yield place


@pytest.fixture(scope="module")
async def site(folder: Path) -> AsyncIterator[SiteGroup]:
    made = site_of(find_recipe("town"))
    assert isinstance(made, SiteGroup)
    try:
        await made.start()
        yield made
    finally:
        await made.close()


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool() as browsers:
        yield browsers


async def click(env: WebEnv, label: str) -> str:
    """The page's text after a click on the element of this label."""
    assert env.page_step is not None
    (element,) = [one for one in env.page_step.observation.elements if one.text == label]
    return (await env.step(Click(element=element.index))).observation.text


async def test_hosts_work_together_under_their_true_names(site: SiteGroup, pool: BrowserPool) -> None:
    async with (
        open_env(TOWN_TASK, pool=pool, site=site, seed=0) as env,
        open_env(TOWN_TASK, pool=pool, site=site, seed=0) as other,
    ):
        step = await env.reset()
        assert step.observation.url == f"https://{SHOP}/" and f"https://{SHOP} no cookie" in step.observation.text
        forum = await click(env, "Forum")
        assert f"https://{FORUM} town=member" in forum and "basket" not in forum, "the parent domain's cookie alone"
        shop = await click(env, "Back")
        assert env.page_step is not None and env.page_step.observation.url == f"https://{SHOP}/?from=forum"
        assert "basket=3" in shop and "town=member" in shop
        assert "notes: hello" in await click(env, "Post"), "a form across hosts"
        server = env._episode._session.server  # type: ignore[union-attr]
        assert server is not None
        query = "SELECT text FROM notes"
        assert await server.sql(query, FORUM) == [("hello",)] and await server.sql(query, "") == []
        with pytest.raises(SiteError, match="no host 'mill"):
            await server.sql(query, "mill.town.example")
        await other.reset()
        elsewhere = (await other.step(Goto(url=f"https://{FORUM}/"))).observation.text
        assert "notes: none" in elsewhere and "town=member" in elsewhere, "each episode has servers of its own"
        wrong = await other.step(Goto(url="https://mill.town.example/"))
        assert "mill.town.example" in (wrong.observation.error or "")
    assert members(site) == [0, 0]


LOGIN = """
import json, runpy
runpy.run_module("town", run_name="__main__")
cookie = {"name": "session", "value": "SEEN", "domain": "127.0.0.1", "path": "/"}
json.dump({"cookies": [cookie], "origins": []}, open("login.json", "w"))
"""


async def test_each_host_has_its_own_login(folder: Path, pool: BrowserPool) -> None:
    for name in ("shop", "forum"):
        write_recipe(
            folder,
            f"member-{name}",
            build={"code": str(TOWN), "seed": ["python", "-c", LOGIN.replace("SEEN", f"ann-of-{name}")]},
            start={"application": f"town:{name}"},
            warm=[],
            state={"databases": {"": "notes.sqlite"}},
            login="login.json",
        )
        build_site(find_recipe(f"member-{name}"))
    write_group(folder, "members", **{SHOP: "member-shop", FORUM: "member-forum"})
    async with open_env(TOWN_TASK, pool=pool, site=site_of(find_recipe("members")), seed=0) as env:
        shop = (await env.reset()).observation.text
        assert "session=ann-of-shop" in shop and "ann-of-forum" not in shop
        forum = await click(env, "Forum")
        assert "session=ann-of-forum" in forum and "ann-of-shop" not in forum
        assert "session=ann-of-shop" in await click(env, "Back")


async def test_forks_have_the_state_of_every_host(site: SiteGroup, pool: BrowserPool) -> None:
    async with open_env(TOWN_TASK, pool=pool, site=site, seed=0, forkable=True) as env:
        await env.reset()
        async with env.fork(1) as (early,):
            assert "notes: none" in await click(early, "Forum"), "a host that the episode has not launched"
            async with early.fork(1) as (again,):
                assert "basket=3" in await click(again, "Back") and "hello" in await click(again, "Post")
            assert members(site) == [2, 1]
        assert members(site) == [1, 0]
        assert "notes: hello" in await click(env, "Post")
        assert "town=member; basket=3" in await click(env, "Back")
        async with env.fork(2) as (left, right):
            assert members(site) == [3, 3]
            for fork in (left, right):
                assert fork.page_step is not None and env.page_step is not None
                assert fork.page_step.observation == env.page_step.observation, "the forum draws at random"
                assert fork.page_step.dom_hash == env.page_step.dom_hash
            states = [await opened(fork).hash_state() for fork in (env, left, right)]
            assert states[0] == states[1] == states[2] and f"{FORUM}/notes.sqlite:notes" in states[0]
            for fork, text in ((left, "left"), (right, "right")):
                await fork.step(Type(element=element(fork, "hello"), text=text))
                shown = await click(fork, "Post")
                assert f"notes: hello {text}" in shown and "town=member" in shown
                assert await opened(fork).state.sql("SELECT text FROM notes", FORUM) == [("hello",), (text,)]
            assert "notes: hello\n" in f"{await click(env, 'Forum')}\n"
            assert await opened(env).hash_state() == states[0], "the original is as it was"
        assert members(site) == [1, 1] and site.gateway._folder is not None
        assert set(site.gateway._folder.glob("*.socket")) == {opened(env).instances.server.socket}
        assert [len(member._front.kept) for member in site.members.values()] == [1, 1]


async def test_a_fork_that_asks_another_host_is_refused(site: SiteGroup) -> None:
    await site.start()
    episode = await site.open_episode(TOWN_TASK, 0)
    try:
        episode.keep_answers()
        (fork,) = await site.fork_episode(episode, TOWN_TASK, 0, 1)
        assert isinstance(fork, GroupEpisode)
        try:
            await fork.instances.of(FORUM)
            with pytest.raises(SiteError, match=f"its pages ask another host when they are shown again: {FORUM}"):
                await fork.go_on()
        finally:
            await fork.close()
    finally:
        await episode.close()
    assert members(site) == [0, 0]


def members(site: SiteGroup) -> list[int]:
    """Instances of each host."""
    return [member.instances for member in site.members.values()]


def opened(env: WebEnv) -> Any:
    """The group's episode."""
    return env._episode._session._site_episode  # type: ignore[union-attr]


def element(env: WebEnv, value: str) -> int:
    assert env.page_step is not None
    (index,) = [one.index for one in env.page_step.observation.elements if one.value == value]
    return index


async def test_the_end_of_a_host_ends_its_episode_with_the_reason(site: SiteGroup, pool: BrowserPool) -> None:
    async with open_env(TOWN_TASK, pool=pool, site=site, seed=0) as env:
        await env.reset()
        step = await env.step(Goto(url=f"https://{FORUM}/end"))
        assert step.stop == StopReason.HTTP_ERROR
        assert "town-forum: the server of this episode" in (env.trajectory.error or "")


async def test_a_recording_is_a_host_too(folder: Path, pool: BrowserPool) -> None:
    html, docs = ("Content-Type", "text/html"), "docs.town.example"
    home = {"headers": headers(html), "content": {"text": "<h1>Guide</h1><a href=/more>More</a>"}}
    moved = {"status": 302, "headers": headers(("Location", "http://docs.test:8000/all"))}
    more = {"headers": headers(html), "content": {"text": f"<h1>All</h1><a href=https://{SHOP}/>Shop</a>"}}
    paths = {"/guide": home, "/more": moved, "/all": more}
    write_har(folder, *(entry(answer, url=f"http://docs.test:8000{path}") for path, answer in paths.items()))
    write_recipe(folder, "docs", kind="mirror", build={}, start={"recording": "shop.har"}, warm=[], state={}, limits={})
    write_group(folder, "library", **{SHOP: "town-shop", docs: "docs"})
    recipe = find_recipe("library").model_copy(
        update={"check": CheckSteps(requests=(RecordedRequest(path="/"), RecordedRequest(path=f"https://{docs}/more")))}
    )
    site = site_of(recipe)
    async with open_env(TOWN_TASK, pool=pool, site=site, seed=0, forkable=True) as env:  # which starts the site
        await env.reset()
        assert "Guide" in (await env.step(Goto(url=f"https://{docs}/guide"))).observation.text
        assert "All" in await click(env, "More")
        assert env.page_step is not None and env.page_step.observation.url == f"https://{docs}/all"
        async with env.fork(1) as (fork,):
            assert "town=member" in await click(fork, "Shop")
        assert "town=member" in await click(env, "Shop")
    try:
        await site.start()
        checked = await check_site(site, recipe)
        assert checked.ok and checked.requests == 2, checked.differences
        place = site.gateway._folder  # type: ignore[attr-defined]
        assert [one.name for one in place.iterdir()] == ["owner"]
    finally:
        await site.close()
    assert not place.exists()


async def test_pages_and_applications_of_ours_are_hosts_too(folder: Path, pool: BrowserPool) -> None:
    pages, tickets = "pages.town.example", "tickets.town.example"
    (folder / "pages").mkdir()
    (folder / "pages" / "index.html").write_text(f"<h1>Guide</h1><a href=https://{tickets}/tickets/201>Ticket</a>")
    (folder / "pages.yaml").write_text("{kind: static, start: {folder: pages}}")
    write_group(folder, "mixed", **{SHOP: "town-shop", pages: "pages", tickets: "tracker"})
    count = "SELECT count(*) FROM comments"
    task = TOWN_TASK.model_copy(update={"horizon": 10})

    async def comment(env: WebEnv, text: str) -> None:
        assert env.page_step is not None
        (field,) = [one.index for one in env.page_step.observation.elements if one.tag == "textarea"]
        step = await env.step(Type(element=field, text=text))
        (button,) = [one.index for one in step.observation.elements if (one.tag, one.text) == ("button", "Comment")]
        assert text in (await env.step(Click(element=button))).observation.text

    async with open_env(task, pool=pool, site=site_of(find_recipe("mixed")), seed=0, forkable=True) as env:
        await env.reset()
        assert "Guide" in (await env.step(Goto(url=f"https://{pages}/"))).observation.text
        await click(env, "Ticket")
        assert env.page_step is not None and env.page_step.observation.url == f"https://{tickets}/tickets/201"
        ((before,),) = await opened(env).state.sql(count, tickets)
        await comment(env, "one")
        async with env.fork(1) as (fork,):
            await comment(fork, "two")
            assert "Guide" in (await fork.step(Goto(url=f"https://{pages}/"))).observation.text
            rows = [await opened(one).state.sql(count, tickets) for one in (env, fork)]
            assert rows == [[(before + 1,)], [(before + 2,)]]
        with pytest.raises(SiteError, match=f"{pages} has no state: it is a recording or a folder"):
            await opened(env).state.sql(count, pages)


async def test_only_this_process_is_trusted(pool: BrowserPool) -> None:
    async def reached(key: LocalKey) -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=key.server_context([SHOP]))
        async with server:
            address = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            async with open_env(address, instruction="Look.", pool=pool) as env:
                return (await env.reset()).observation.text

    assert "hello" in await reached(local_key())
    with pytest.raises(BrowserError, match="ERR_CERT_AUTHORITY_INVALID"):
        await reached(LocalKey())


async def test_a_certificate_has_the_names_of_its_hosts() -> None:
    server, client = local_key().server_context([SHOP, FORUM]), ssl.create_default_context()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(outgoing, incoming, server_side=True)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    theirs = client.wrap_bio(incoming, outgoing, server_hostname=SHOP)
    for side in (theirs, ours, theirs, ours, theirs):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    names = x509.load_der_x509_certificate(theirs.getpeercert(True) or b"").extensions
    listed = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert listed == [SHOP, FORUM]


@pytest.mark.parametrize(
    ("sites", "words"),
    [
        ({"shop": "town-shop"}, "sites: 'shop' is no name of a host"),
        ({"127.0.0.1": "town-shop"}, "is no name of a host"),
        ({SHOP: "town-shops"}, "did you mean town-shop"),
        ({SHOP: "town"}, "town cannot be a host of a group; name its own hosts"),
    ],
)
def test_a_wrong_group_is_refused(folder: Path, sites: dict[str, str], words: str) -> None:
    write_group(folder, "wrong", **sites)
    with pytest.raises(ConfigError, match=words):
        site_of(find_recipe("wrong"))


WEBARENA = {
    "task_id": 7,
    "sites": ["reddit", "shopping"],
    "start_url": "__REDDIT__/",
    "intent": "Post hello to the forum.",
    "eval": {
        "eval_types": ["program_html"],
        "program_html": [
            {
                "url": "__SHOPPING__/",
                "locator": "document.querySelector('h1').outerText",
                "required_contents": {"exact_match": "Shop"},
            },
            {"url": "__REDDIT__/", "locator": "", "required_contents": {"must_include": ["notes: hello"]}},
        ],
    },
}


async def test_webarena_tasks_run_on_recipes_in_place_of_its_hosts(
    folder: Path, pool: BrowserPool, tmp_path: Path
) -> None:
    (tmp_path / "test.raw.json").write_text(json.dumps([WEBARENA]))
    (imported,) = import_tasks("webarena", tmp_path / "test.raw.json")
    hosts = {"reddit": FORUM, "shopping": SHOP}
    hosts |= {name: f"{name}.town.example" for name in ("gitlab", "map", "wikipedia", "admin")}
    for name in ("reddit", "shopping"):
        cookie = {"name": "session", "value": f"ann-of-{name}", "domain": hosts[name], "path": "/"}
        (tmp_path / f"{name}.json").write_text(json.dumps({"cookies": [cookie], "origins": []}))
    live = LiveOptions(
        addresses={name: f"https://{host}" for name, host in hosts.items()},
        logins={name: str(tmp_path / f"{name}.json") for name in ("reddit", "shopping")},
        recipes={host: "town-forum" if name == "reddit" else "town-shop" for name, host in hosts.items()},
    )
    async with open_env(imported.task, pool=pool, live=live) as env:
        assert (await env.reset()).observation.url == f"https://{FORUM}/"
        assert (await env.step(Terminate())).reward == 0.5, "the shop is there, the post is not"
        await env.reset()
        assert "session=ann-of-shopping" in await click(env, "Back"), "where the task does not begin, too"
        assert "session=ann-of-reddit" in await click(env, "Post")
        assert (await env.step(Terminate())).reward == 1
