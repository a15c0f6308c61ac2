"""Sites that somebody else serves: which address they have, what their pages may reach, an episode
on one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from envs.browser import BrowserPool
from envs.egress import AllowList, Reason
from envs.observation import FULL
from envs.sites import LiveOptions, LiveSite, MiniWobSite, SiteState, StaticServer, make_site, read_storage_state
from envs.types import Answer, ConfigError, Goto, SiteError, StopReason, TaskError
from tests.builders import make_task

LOCAL = LiveOptions(addresses={"gitlab": "http://127.0.0.1:8023/", "localhost:9": "http://localhost:9"})


def test_a_host_is_its_own_address() -> None:
    assert LiveSite("shop.example").origin == "https://shop.example"
    assert LiveSite("shop.example:8443").origin == "https://shop.example:8443"
    assert LiveSite("gitlab", LOCAL).origin == "http://127.0.0.1:8023"
    assert LiveSite("localhost:9", LOCAL).origin == "http://localhost:9"
    site = LiveSite("shop.example")
    assert (site.viewport, site.observation, site.hosts, site.stateless_pages) == ((1280, 720), FULL, (), False)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("gitlab", "tasks.addresses.gitlab"),
        ("exploretock", "it is no host"),
        ("localhost:8080", "on this machine"),
        ("127.0.0.1:8080", "on this machine"),
        ("2130706433", "on this machine"),  # another spelling of 127.0.0.1
        ("app.localhost", "on this machine"),
        ("10.0.0.1", "private"),
        ("169.254.169.254", "metadata"),
        ("metadata.google.internal", "metadata"),
        ("not a host", "no host name"),
        ("shop.example/path", "no origin"),
        ("user@shop.example", "no origin"),
        ("*.example.com", "a wildcard is no host"),
        ("", "address"),
    ],
)
def test_what_is_no_site_is_refused_with_what_to_do(name: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        LiveSite(name)
    with pytest.raises(TaskError, match=r"Served sites are: .*miniwob"):
        make_site(name)


def test_make_site_knows_ours_and_live_ones() -> None:
    assert isinstance(make_site("miniwob"), MiniWobSite)
    assert isinstance(make_site("shop.example"), LiveSite)
    assert isinstance(make_site("miniwob", LiveOptions({"miniwob": "http://127.0.0.1:1"})), LiveSite)
    for address in (
        "http://h.example/x?y",
        "h.example",
        "ftp://h.example",
        "http://*.example.com",
        "http://10.0.0.1",
        "http://me@h.example",
    ):
        with pytest.raises(ConfigError):
            LiveSite("gitlab", LiveOptions({"gitlab": address}))


@pytest.mark.parametrize("name", ["shop.example", "shop", "design2code"])
def test_pages_that_declare_nothing_are_not_asked(name: str) -> None:
    site = make_site(name)
    task = make_task(site=name)
    assert (site.facts_script(task), site.reset_script(task, 1), site.ready_script(task)) == ("", "", "true")
    assert site.reload_for(task) and not site.stateless_pages and site.final_screenshot
    assert site.background == isinstance(site, LiveSite)
    asked = make_site("miniwob").facts_script(task.model_copy(update={"site": "miniwob"}))
    assert "WOB_DONE_GLOBAL" in asked


async def test_tasks_begin_below_the_path_of_an_address() -> None:
    site = LiveSite("admin", LiveOptions({"admin": "http://h.example:7780/admin/"}))
    task = make_task(site="admin", path="/orders?x=1")
    episode = await site.open_episode(task, 0)
    assert (site.origin, episode.path) == ("http://h.example:7780", "/admin/orders?x=1")
    assert isinstance(episode.state, SiteState) and episode.state.origin == site.origin


def refused(site: LiveSite, url: str) -> Reason | None:
    return AllowList.of(site.origin, *site.hosts).refuse_url(url)


def test_what_its_pages_may_reach() -> None:
    plain = LiveSite("www.shop.example")
    assert refused(plain, "https://www.shop.example/a") is None
    for url in (
        "https://shop.example/",
        "https://img.shop.example/",
        "http://www.shop.example/",
        "https://other.example/",
    ):
        assert refused(plain, url) is not None
    wide = LiveSite("www.shop.example", LiveOptions(subdomains=True, reach=("https://cdn.example",)))
    for url in (
        "https://shop.example/",
        "https://img.shop.example/",
        "https://a.b.shop.example/",
        "https://cdn.example/x",
    ):
        assert refused(wide, url) is None
    for url in ("https://evilshop.example/", "https://example/", "http://127.0.0.1/", "https://x.cdn.example/"):
        assert refused(wide, url) is not None
    assert LiveSite("93.184.216.34", LiveOptions(subdomains=True)).hosts == ()


PAGE = """<!DOCTYPE html><title>Shop</title><h1>Lamps</h1><a href="/lamp.html?size=L">Red lamp</a>
<div id=said></div><script>fetch("%s/index.html").catch(() => {document.title = "cut off"})</script>"""


async def test_an_episode_on_a_server_of_this_machine(tmp_path: Path) -> None:
    """Real Chromium; the other server of the same machine is not named, and out of reach."""
    (tmp_path / "lamp.html").write_text("<title>Lamp</title><p>It costs 12.50</p>")

    ours, other = StaticServer(tmp_path), StaticServer(tmp_path)
    await ours.start()
    await other.start()
    (tmp_path / "index.html").write_text(PAGE % other.origin)
    site = make_site("shop", LiveOptions({"shop": ours.origin}))
    task = make_task("webvoyager/1", site="shop", path="/index.html?x=1#top", instruction="What does the lamp cost?")
    try:
        async with BrowserPool(max_sessions=1) as pool, pool.lease(site) as session:
            frame = await session.reset(task, 0)
            assert frame.observation.instruction == "What does the lamp cost?"
            assert frame.observation.viewport == (1280, 720) and "Red lamp" in frame.observation.text
            assert frame.observation.url == f"{ours.origin}/index.html?x=1#top"
            assert pool.metrics()["requests_refused"] == {"loopback": 1}
            away = await session.step(Goto(url=f"{other.origin}/lamp.html"))
            assert away.error is not None and away.observation.url == frame.observation.url
            there = await session.step(Goto(url=f"{ours.origin}/lamp.html"))
            assert "12.50" in there.observation.text and not there.done
            ended = await session.step(Answer(text="12.50"))
            assert ended.done and ended.stop is StopReason.ANSWER and ended.said == "12.50"
    finally:
        await ours.close()
        await other.close()


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"cookies": [{"name": "hidden-value"}]}', '{"cookies": ["hidden-value"]}', "\xff"]
)
async def test_a_log_in_that_cannot_be_read_says_so_without_its_values(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "state.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SiteError, match=r"log-in .*state\.json") as caught:
        await LiveSite("shop.example", LiveOptions(logins={"shop.example": str(file)})).start()
    assert "hidden" not in str(caught.value) and caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"value": 17}, "value"),
        ({"value": None}, "value"),
        ({"name": None}, "name"),
        ({"domain": 1}, "domain"),
        ({"path": None}, "path"),
        ({"expires": "hidden"}, "expires"),
        ({"expires": None}, "expires"),
        ({"expires": True}, "expires"),
        ({"expires": -17}, "expires"),
        ({"sameSite": "hidden"}, "sameSite"),
        ({"sameSite": "lax"}, "sameSite"),
        ({"sameSite": ["Lax"]}, "sameSite"),
        ({"secure": "hidden"}, "secure"),
        ({"httpOnly": 1}, "httpOnly"),
    ],
)
def test_a_cookie_that_no_browser_takes_is_named_by_its_place(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    good = {"name": "hidden-name", "value": "hidden", "domain": "shop.example"}
    file = tmp_path / "state.json"
    file.write_text(json.dumps({"cookies": [good, {**good, **changes}]}))
    with pytest.raises(SiteError, match=rf"cookie 2 of 2: {field} ") as caught:
        read_storage_state(file)
    assert "hidden" not in str(caught.value)


async def test_the_cookies_of_a_log_in(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    some = {
        "name": "a",
        "value": "1",
        "domain": ".shop.example",
        "path": "/x",
        "expires": -1,
        "httpOnly": True,
        "secure": True,
        "sameSite": "Lax",
    }
    file.write_text(
        json.dumps({"cookies": [some, {"name": "b", "value": "2", "domain": "h", "expires": 17.5}], "origins": []})
    )
    site = LiveSite("shop.example", LiveOptions(logins={"shop.example": str(file)}))
    assert site.cookies == ()
    await site.start()
    assert [dict(each) for each in site.cookies] == [
        {name: value for name, value in some.items() if name != "expires"},
        {"name": "b", "value": "2", "domain": "h", "path": "/", "expires": 17.5},
    ]
