"""WebSockets and streams of events of a recipe's site, in a browser: over HTTP and in a group."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from envs.browser import BrowserPool
from envs.env import open_env
from envs.sites import build_site, find_recipe, site_of
from envs.sites.recipes.front import COOKIE, FrontedSite
from envs.sites.recipes.recipe import FOLDERS
from envs.types import Click, Goto, Wait

from .making import write_recipe
from .test_instances import TASK

CHAT = Path(__file__).parent / "chat"
HOST = "chat.town.example"
SECONDS = 60.0
"""Real seconds for a state that has to come."""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLWRIGHT_SITE_BUILDS", str(tmp_path / "builds"))
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    values = {"build": {"code": str(CHAT)}, "start": {"application": "chat:application"}, "state": {}}
    write_recipe(tmp_path, "chat", kind="asgi", **values)
    build_site(find_recipe("chat"))
    write_recipe(tmp_path, "talk", kind="group", build={}, start={}, warm=[], state={}, limits={}, sites={HOST: "chat"})


@pytest.mark.parametrize("name", ["chat", "talk"])
@pytest.mark.usefixtures("recipes")
async def test_sockets_and_events_reach_the_page_and_end_with_it(name: str) -> None:
    site = site_of(find_recipe(name))
    task = TASK.model_copy(update={"path": "/", "site": name, "horizon": 500})
    async with BrowserPool() as pool, open_env(task, pool=pool, site=site, seed=0, repeats=0) as env:

        async def shown(*texts: str) -> None:
            async with asyncio.timeout(SECONDS):
                assert env.page_step is not None
                while not all(text in env.page_step.observation.text for text in texts):
                    await env.step(Wait())

        async def click(label: str) -> None:
            assert env.page_step is not None
            (button,) = [one for one in env.page_step.observation.elements if one.text == label]
            await env.step(Click(element=button.index))

        await env.reset()
        host = HOST if name == "talk" else "127.0.0.1"
        await shown(f"{host} room=2 without our cookie", "event 0", "event 1", "stray closed")
        await click("Send")
        await shown("heard hello", "bytes 255,2,1")
        await click("Leave")
        await shown("closed 4001 as asked")
        assert env.page_step is not None and "stray open" not in env.page_step.observation.text
        await env.step(Goto(url=f"{site.origin}/"))
        await shown("room=2")  # of the new page
        await env.step(Goto(url=f"{site.origin}/ended"))
        async with asyncio.timeout(SECONDS):
            while "events socket socket" not in env.page_step.observation.text:
                await env.step(Goto(url=f"{site.origin}/ended"))


@pytest.mark.usefixtures("recipes")
async def test_a_socket_without_an_episode_is_refused() -> None:
    site = site_of(find_recipe("chat"))
    assert isinstance(site, FrontedSite)
    await site.start()
    try:
        episode = await site.open_episode(TASK, 0)
        upgrade = {
            "connection": "Upgrade",
            "upgrade": "websocket",
            "sec-websocket-version": "13",
            "sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==",
            "sec-websocket-protocol": "talk",
        }

        async def status(token: str, path: str) -> int:
            headers = {"cookie": f"{COOKIE}={token}", **upgrade}
            async with (
                httpx.AsyncClient(trust_env=False, headers=headers) as client,
                client.stream("GET", f"{site.origin}{path}") as answer,
            ):
                return answer.status_code

        token = next(iter(site._front.instances))
        assert [await status(token, "/chat"), await status(token, "/nowhere"), await status("guessed", "/chat")] == [
            101,
            403,
            403,
        ]
        await episode.close()
        assert await status(token, "/chat") == 403
    finally:
        await site.close()
