"""The Omniboxes front: WebGym's requests, commands done once, and lifetimes that hold.

With ``WEBGYM=FOLDER``, a checkout of github.com/microsoft/webgym, its own client functions are run.
"""

from __future__ import annotations

import asyncio
import importlib
import io
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from PIL import Image

from envs import EnvHost
from envs.server import ClientRules, EnvServer, omniboxes
from envs.server.omniboxes_commands import ACTIONS, CommandError, actions_of
from envs.sites import StaticServer
from envs.types import Invalid, read_action

from .serving import client_of, listening, refused, served

KEY = "omniboxes-key-of-16"
PAGE = """<!DOCTYPE html><title>Counter</title><body style="background:#def;height:3000px">
<button onclick="document.title = 'Count ' + (++count)">Add</button>
<input id=name placeholder=Name onkeydown="if (event.key == 'Enter') document.title = 'Hello ' + this.value">
<select onchange="document.title = this.value"><option>Red<option>Blue</select>
<a href="next.html">Next</a> <a href="next.html" target=_blank>Apart</a>
<button onclick="document.title = confirm('Sure?') ? 'Yes' : 'No'">Ask</button><script>let count = 0</script>"""


@pytest.fixture(scope="module")
async def host() -> AsyncIterator[EnvHost]:
    async with EnvHost(max_sessions=2) as host:
        yield host


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[StaticServer]:
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "next.html").write_text("<p style='color:red'>The second page")
    server = StaticServer(tmp_path)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def server(host: EnvHost, site: StaticServer) -> AsyncIterator[EnvServer]:
    rules = ClientRules(reach=(site.origin,))
    async with served(host, rules=rules, keys={"webgym": KEY, "other": "x" * 20}, fronts=[omniboxes.routes]) as server:
        yield server


@pytest.fixture
async def client(server: EnvServer) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(server, **{"x-api-key": KEY}) as client:
        yield client


async def do(client: httpx.AsyncClient, instance: dict[str, str], name: str, **arguments: Any) -> dict[str, Any]:
    """Send a command as WebGym does: the instance's ids are in the body."""
    answer = await client.post("/execute", json={name: arguments, **instance})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


async def title(client: httpx.AsyncClient, instance: dict[str, str]) -> str:
    return str((await do(client, instance, "get_page_metadata"))["title"])


async def ids(client: httpx.AsyncClient, instance: dict[str, str]) -> dict[str, str]:
    """Shown ids by name, found as WebGym finds them."""
    info = await do(client, instance, "get_screenshot_info")
    regions = {shown: info["interactive_regions"][info["id_mapping"][shown]] for shown in info["visible_rects"]}
    return {region["aria_name"] or region["tag_name"]: shown for shown, region in regions.items()}


async def test_commands_act_and_read_as_omniboxes_does(client: httpx.AsyncClient, site: StaticServer) -> None:
    instance = (await client.post("/get?lifetime_mins=45")).json()
    assert set(instance) == {"instance_id", "node"}
    assert (await client.get("/metadata", params=instance)).json() == {"width": 1280, "height": 768}
    assert (await client.get("/probe", params=instance)).json() is True
    assert await title(client, instance) == "New tab"
    assert await do(client, instance, "visit_page", url=f"{site.origin}/index.html") == {"status": "success"}
    assert await title(client, instance) == "Counter"
    shown = await ids(client, instance)
    await do(client, instance, "click_id", id=shown["Add"])
    assert await title(client, instance) == "Count 1"
    rect = (await do(client, instance, "get_interactive_rects"))[shown["Add"]]["rects"][0]
    at = {"x": rect["left"] + rect["width"] / 2, "y": rect["top"] + rect["height"] / 2}
    await do(client, instance, "click_coords", **at)
    assert await title(client, instance) == "Count 2"
    name = next(number for label, number in shown.items() if label not in ("Add", "Next", "Red", "select"))
    typed = {"value": "Ann", "press_enter": True, "delete_existing": True}
    assert await do(client, instance, "fill_id", id=name, **typed) == {"status": "success"}
    assert await title(client, instance) == "Hello Ann"
    await do(client, instance, "fill_id", id=name, **{**typed, "value": "Bob", "press_enter": False})
    await do(client, instance, "keypress", keys=["enter"])
    assert await title(client, instance) == "Hello Bob"
    pictures = [
        (await client.get("/screenshot", params={**instance, "interaction_mode": mode})).content
        for mode in ("coordinates", "set_of_marks")
    ]
    images = [Image.open(io.BytesIO(picture)) for picture in pictures]
    assert pictures[0] != pictures[1] and {image.size for image in images} == {(1280, 768)}
    assert min(map(len, pictures)) > 1000
    await do(client, instance, "click_id", id=shown["Ask"])
    assert await title(client, instance) == "No", "nobody can answer, so questions are dismissed"
    await do(client, instance, "page_down", amount=200, full_page=False)
    assert "Add" not in await ids(client, instance)
    await do(client, instance, "page_up", amount=200, full_page=False)
    await do(client, instance, "click_id", id=(await ids(client, instance))["Next"])
    assert (await do(client, instance, "get_webpage_text", n_lines=5))["text"] == "The second page"
    assert await title(client, instance) == f"{site.origin}/next.html", "WebGym waits for a title"
    assert await do(client, instance, "back") == {"status": "success"}
    assert await title(client, instance) == "Counter"
    await do(client, instance, "click_id", id=(await ids(client, instance))["Apart"])
    assert await title(client, instance) == f"{site.origin}/next.html", "a new tab is shown"
    assert (await client.post("/reset", params=instance)).json() == {"status": "success"}
    assert refused(await client.post("/reset", params=instance)) == (410, "closed_session")


async def test_a_command_that_fails_answers_200_with_a_status(client: httpx.AsyncClient, site: StaticServer) -> None:
    instance = (await client.post("/get")).json()
    for name, arguments, problem in (
        ("click_id", {"id": "99"}, "no element 99"),
        ("click_id", {"id": "x"}, "invalid literal"),
        ("click_coords", {"x": 1}, "y is missing"),
        ("click_coords", {"x": 5000, "y": 1}, "less than or equal"),
        ("scroll_coords", {"x": 1, "y": 1}, "no such command"),
        ("visit_page", {"url": "http://169.254.169.254/"}, "169.254.169.254"),
        ("visit_page", {"url": "file:///etc/passwd"}, "file"),
        ("keypress", {"keys": 3}, "not iterable"),
    ):
        answer = await do(client, instance, name, **arguments)
        assert answer["status"] == "error" and problem in answer["message"], answer
    two = {"back": {}, "sleep": {"duration": 1}}
    assert refused(await client.post("/execute", json={**two, **instance})) == (422, "invalid")
    await client.post("/reset", params=instance)


async def test_a_command_whose_answer_was_lost_is_done_once(server: EnvServer, site: StaticServer) -> None:
    async with listening(server) as url, httpx.AsyncClient(base_url=url, headers={"x-api-key": KEY}) as client:
        instance = (await client.post("/get")).json()
        await do(client, instance, "visit_page", url=f"{site.origin}/index.html")
        click = {"click_id": {"id": (await ids(client, instance))["Add"]}, **instance}
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/execute", json=click, timeout=0.005)
        again = await asyncio.gather(*(client.post("/execute", json=click) for _ in range(2)))
        assert [answer.json() for answer in again] == [{"status": "success"}] * 2
        assert await title(client, instance) == "Count 1"
        await client.post("/execute", json=click)
        await client.post("/execute", json=click)  # its answer came, so this is another click
        assert await title(client, instance) == "Count 3"
        await client.post("/reset", params=instance)


async def test_instances_end_with_their_lifetime_and_belong_to_a_key(
    server: EnvServer, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = (await client.post("/get")).json()
    other = {"x-api-key": "x" * 20}
    for path in ("/screenshot", "/metadata", "/probe"):
        assert refused(await client.get(path, params=first, headers=other)) == (404, "unknown_session")
    assert (await client.get("/info", headers=other)).json()["nodes"][0]["instances"] == []
    monkeypatch.setattr(omniboxes, "_minutes", lambda text: 0.01)
    second = (await client.post("/get?lifetime_mins=1")).json()
    node = (await client.get("/info")).json()["nodes"][0]
    assert set(node["instances"]) == {first["instance_id"], second["instance_id"]}
    assert (node["healthy"], node["capacity"], node["available"]) == (True, 2, 0)
    assert refused(await client.post("/get")) == (503, "capacity")
    for _ in range(20):
        await asyncio.sleep(0.1)
        answer = await client.get("/screenshot", params=second)
        if answer.status_code != 200:
            break
    assert refused(answer) == (410, "expired_session"), "also if it is used"
    assert (await client.get("/info")).json()["nodes"][0]["available"] == 1
    await client.post("/reset", params=first)


async def test_an_instance_whose_browser_died_says_so_until_it_is_reset(
    client: httpx.AsyncClient, host: EnvHost
) -> None:
    instance = (await client.post("/get")).json()
    for pid in host.pool.browser_pids():
        os.kill(pid, signal.SIGKILL)
    for _ in range(2):
        assert (await do(client, instance, "page_down"))["status"] == "error"
    assert refused(await client.get("/screenshot", params=instance)) == (502, "browser")
    assert (await client.get("/probe", params=instance)).json() is False
    await client.post("/reset", params=instance)
    instance = (await client.post("/get")).json()
    assert (await client.get("/screenshot", params=instance)).status_code == 200
    await client.post("/reset", params=instance)


def test_each_command_that_acts_is_an_action() -> None:
    given = {"x": 10, "y": 20, "id": "3", "value": "v", "keys": ["ctrl", "a"], "direction": "up", "duration": 2.0}
    for name in ACTIONS:
        for action in actions_of(name, {**given, "url": "http://a.example"}):
            assert not isinstance(read_action(action), Invalid), (name, action)
        if name not in ("back", "page_down", "page_up", "tab_and_enter"):
            with pytest.raises(CommandError, match=f"{name}: .* is missing"):
                actions_of(name, {})


def load_webgym(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """WebGym's client functions, without the packages that they do not use."""
    for name, package in (("webgym", folder / "webgym"), ("webgym.environment", folder / "webgym" / "environment")):
        module = ModuleType(name)
        module.__path__ = [str(package)]
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("ipywidgets", "IPython", "IPython.display"):
        stub = ModuleType(name)
        stub.display = None  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, stub)
    return importlib.import_module("webgym.environment.pickleable_http_functions")


@pytest.mark.frameworks
@pytest.mark.skipif("WEBGYM" not in os.environ, reason="WEBGYM names no checkout of github.com/microsoft/webgym")
async def test_the_client_functions_of_webgym_run_unchanged(
    server: EnvServer, site: StaticServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    webgym = load_webgym(Path(os.environ["WEBGYM"]), monkeypatch)
    async with listening(server) as url:
        port = int(url.rpartition(":")[2])

        def play() -> None:
            where = ("127.0.0.1", port, KEY)
            instance = webgym.allocate_instance(*where)
            assert webgym.get_metadata(*where, instance) == {"width": 1280, "height": 768}
            page = f"{site.origin}/index.html"
            assert webgym.navigate_with_retries(*where, instance, "task", page).json() == {"status": "success"}
            assert webgym.wait_for_content(*where, instance) is True
            path, fallback = webgym.capture_screenshot(*where, instance, str(tmp_path / "shots"), 0, "set_of_marks")
            assert fallback is False and Image.open(path).size == (1280, 768)
            tree = webgym.get_ac_tree(*where, instance).splitlines()
            add = next(line for line in tree if "text: Add" in line)
            number = add.partition("id: ")[2].partition(",")[0]
            done = webgym.execute_command(*where, instance, {"click_id": {"id": number}})
            assert done.status_code == 200 and done.json() == {"status": "success"}
            assert webgym.get_page_metadata(*where, instance)["title"] == "Count 1"
            wrong = webgym.execute_command(*where, instance, {"click_id": {"id": "77"}})
            assert wrong.status_code == 200 and wrong.json()["status"] == "error"
            path, _ = webgym.capture_screenshot(*where, instance, str(tmp_path / "shots"), 1, "coordinates")
            assert Path(path).stat().st_size > 1000
            master = webgym.client.MasterClient("127.0.0.1", port, KEY)
            assert master.probe(instance) is True
            assert master.get_info()["nodes"][0]["instances"] == [instance["instance_id"]]
            assert len(master.get_options()) == 1
            assert webgym.reset_instance(*where, instance) == {"status": "success"}
            with pytest.raises(Exception, match="Error: 410"):
                webgym.reset_instance(*where, instance)

        await asyncio.to_thread(play)
    assert len(server.table) == 0 and server.table.counters.steps == 3
