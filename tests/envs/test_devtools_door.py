"""DevTools addresses of two episodes on one Chromium: each shows its own browser context alone."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from envs import EnvHost
from envs.browser.devtools.rules import Rules, uses_clipboard
from envs.browser.devtools.targets import ContextTargets
from envs.supply import DevToolsLease, DevToolsSupply
from tests.builders import make_rubric
from tests.envs.devtools_client import BareClient, Refusal, bare_client

from .adapters.reference import CANARY


@dataclass
class World:
    """Two leases on one Chromium, a client of each, and the ids of the second one."""

    host: EnvHost
    supply: DevToolsSupply
    mine: DevToolsLease
    other: DevToolsLease
    client: BareClient
    stranger: BareClient
    session: str
    """Session of the first client on its page."""
    ids: dict[str, str]
    """Ids of the other episode: target, session, context."""


@pytest.fixture(scope="module")
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        host = await enter(EnvHost(max_sessions=2, lease_deadline=1))
        supply = await enter(DevToolsSupply(host))
        mine, other = await supply.open(CANARY), await supply.open(CANARY)
        client, stranger = await enter(bare_client(mine.cdp_url)), await enter(bare_client(other.cdp_url))
        target, session = await stranger.attach()
        await stranger.evaluate(session, "keep()")
        info = (await stranger.call("Target.getTargetInfo", {"targetId": target}))["targetInfo"]
        await stranger.call("Emulation.setEmulatedMedia", {"media": "print"}, session)
        ids = {"target": target, "session": session, "context": info["browserContextId"]}
        yield World(host, supply, mine, other, client, stranger, (await client.attach())[1], ids)


OTHERS: list[tuple[str, dict[str, Any]]] = [
    ("Target.attachToTarget", {"targetId": "<target>", "flatten": True}),
    ("Target.getTargetInfo", {"targetId": "<target>"}),
    ("Target.closeTarget", {"targetId": "<target>"}),
    ("Target.activateTarget", {"targetId": "<target>"}),
    ("Target.detachFromTarget", {"sessionId": "<session>"}),
    ("Target.sendMessageToTarget", {"sessionId": "<session>", "message": '{"id": 1, "method": "Page.enable"}'}),
    ("Target.exposeDevToolsProtocol", {"targetId": "<target>"}),
    ("Target.autoAttachRelated", {"targetId": "<target>", "waitForDebuggerOnStart": False}),
    ("Target.disposeBrowserContext", {"browserContextId": "<context>"}),
    ("Target.createTarget", {"url": "about:blank", "browserContextId": "<context>"}),
    ("Storage.getCookies", {"browserContextId": "<context>"}),
    ("Storage.clearCookies", {"browserContextId": "<context>"}),
    ("Browser.grantPermissions", {"permissions": ["geolocation"], "browserContextId": "<context>"}),
    ("Browser.getWindowForTarget", {"targetId": "<target>"}),
    ("Browser.getWindowBounds", {"windowId": 1}),
]
"""Calls that name what is the other episode's."""

WHOLE: list[tuple[str, dict[str, Any]]] = [
    ("Target.createBrowserContext", {"proxyServer": "http://127.0.0.1:9"}),
    ("Target.setRemoteLocations", {"locations": []}),
    ("Browser.crash", {}),
    ("Browser.crashGpuProcess", {}),
    ("Browser.getBrowserCommandLine", {}),
    ("Browser.getHistograms", {}),
    ("SystemInfo.getProcessInfo", {}),
    ("SystemInfo.getInfo", {}),
    ("Tracing.start", {"transferMode": "ReturnAsStream"}),
    ("Tracing.getCategories", {}),
    ("Tethering.bind", {"port": 9999}),
    ("Memory.simulatePressureNotification", {"level": "critical"}),
    ("Memory.getBrowserSamplingProfile", {}),
    ("Extensions.loadUnpacked", {"path": "/"}),
    ("PWA.launch", {"manifestId": "x"}),
]
"""Calls that reach beyond any context, also on a page's session."""

AT_BROWSER: list[tuple[str, dict[str, Any]]] = [
    ("IO.read", {"handle": "1"}),
    ("Fetch.enable", {}),
    ("Network.enable", {}),
    ("Security.setIgnoreCertificateErrors", {"ignore": True}),
    ("Storage.getUsageAndQuota", {"origin": "http://127.0.0.1"}),
]
"""Calls that only a page's session may make."""


def filled(params: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    """The parameters with the other episode's ids."""
    named = {f"<{name}>": value for name, value in ids.items()}
    return {key: named.get(value, value) if isinstance(value, str) else value for key, value in params.items()}


@pytest.mark.parametrize(("method", "params"), OTHERS + WHOLE + AT_BROWSER)
async def test_what_is_not_ones_own_is_refused(world: World, method: str, params: dict[str, Any]) -> None:
    assert await world.client.refusal(method, filled(params, world.ids))
    if (method, params) not in AT_BROWSER:
        assert await world.client.refusal(method, filled(params, world.ids), world.session)
    assert await world.stranger.evaluate(world.ids["session"], "document.title") == "Canary"


async def test_the_sessions_of_others_are_no_sessions(world: World) -> None:
    for method in ("Runtime.evaluate", "Page.enable", "Target.getTargets", "Storage.getCookies"):
        params = {"expression": "document.cookie"} if method == "Runtime.evaluate" else {}
        message = await world.client.refusal(method, params, world.ids["session"])
        assert message == "Session with given id not found."


async def test_targets_contexts_and_cookies_are_those_of_one_episode(world: World) -> None:
    for session in (None, world.session):
        targets = (await world.client.call("Target.getTargets", {"filter": [{}]}, session))["targetInfos"]
        assert targets and world.ids["context"] not in {target["browserContextId"] for target in targets}
        assert (await world.client.call("Storage.getCookies", {}, session))["cookies"] == []
        await world.client.call("Storage.clearCookies", {}, session)
    assert (await world.client.call("Target.getBrowserContexts"))["browserContextIds"] == []
    assert (await world.client.call("Network.getAllCookies", {}, world.session))["cookies"] == []
    (cookie,) = (await world.stranger.call("Storage.getCookies"))["cookies"]
    assert (cookie["name"], cookie["value"]) == ("k", "cookie")
    assert await world.client.evaluate(world.session, STORES) == ""
    assert await world.stranger.evaluate(world.ids["session"], STORES) == "k=cookie,local,session,name"


STORES = "[document.cookie, localStorage.k, sessionStorage.k, window.name].filter(Boolean).join()"


async def reached(world: World) -> set[str]:
    """What a new client of the first address reaches of the second episode."""
    found = set[str]()
    async with bare_client(world.mine.cdp_url) as client:
        targets = (await client.call("Target.getTargets", {"filter": [{}]}))["targetInfos"]
        if world.ids["context"] in {target["browserContextId"] for target in targets}:
            found.add("targets")
        with suppress(Refusal):
            asked = {"browserContextId": world.ids["context"]}
            if (await client.call("Storage.getCookies", asked))["cookies"]:
                found.add("cookies")
        with suppress(Refusal):
            asked = {"targetId": world.ids["target"], "flatten": True}
            session = (await client.call("Target.attachToTarget", asked))["sessionId"]
            if await client.evaluate(session, STORES) == "k=cookie,local,session,name":
                found.add("stores")
    return found


async def test_the_canary_is_seen_where_isolation_is_broken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def all_infos(targets: ContextTargets, _wanted: object) -> list[dict[str, Any]]:
        return list((await targets._browser.send("Target.getTargets", {"filter": [{"type": "page"}]}))["targetInfos"])

    assert await reached(world) == set()
    with monkeypatch.context() as broken:
        broken.setattr(ContextTargets, "infos", all_infos)
        assert await reached(world) == {"targets", "stores"}
    with monkeypatch.context() as broken:
        broken.setattr(Rules, "of_context", lambda _rules, params: params)
        assert await reached(world) == {"cookies"}
    assert await reached(world) == set()


async def test_no_event_of_another_episode_arrives(world: World) -> None:
    await world.client.call("Target.setDiscoverTargets", {"discover": True, "filter": [{}]})
    await world.client.call(
        "Target.setAutoAttach", {"autoAttach": True, "waitForDebuggerOnStart": True, "flatten": True}
    )
    made = (await world.stranger.call("Target.createTarget", {"url": "about:blank"}))["targetId"]
    await world.stranger.call("Target.closeTarget", {"targetId": made})
    own = (await world.client.call("Target.createTarget", {"url": "about:blank"}))["targetId"]
    created = [
        event["params"]["targetInfo"] for event in world.client.events if event["method"] == "Target.targetCreated"
    ]
    attached = [event["params"]["targetInfo"] for event in world.client.events if "attachedTo" in event["method"]]
    seen = {info["targetId"] for info in created + attached}
    assert own in {info["targetId"] for info in attached}
    assert not seen & {made, world.ids["target"]}
    assert {info["browserContextId"] for info in created} != {world.ids["context"]}
    info = (await world.client.call("Target.getTargetInfo", {"targetId": own}))["targetInfo"]
    assert info["browserContextId"] != world.ids["context"]
    await world.client.call("Target.closeTarget", {"targetId": own})
    await world.client.call(
        "Target.setAutoAttach", {"autoAttach": False, "waitForDebuggerOnStart": False, "flatten": True}
    )
    targets = {
        event["params"].get("targetId") for event in world.client.events if event["method"] == "Target.targetDestroyed"
    }
    assert made not in targets


async def test_downloads_go_nowhere_else(world: World, tmp_path: Path) -> None:
    params = {"behavior": "allow", "downloadPath": str(tmp_path), "eventsEnabled": True}
    for session in (None, world.session):
        assert await world.client.call("Browser.setDownloadBehavior", params, session) == {}
    assert await world.client.call("Page.setDownloadBehavior", params, world.session) == {}
    script = """const link = document.createElement("a"); link.download = "stolen.txt"
        link.href = URL.createObjectURL(new Blob(["x"])); link.click(); new Promise(done => setTimeout(done, 300))"""
    await world.client.evaluate(world.session, script)
    assert list(tmp_path.iterdir()) == []


async def test_the_downloads_of_another_episode_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = CANARY.model_copy(update={"rubric": make_rubric({"type": "download", "name": "secret.txt"})})
    save = """const link = document.createElement("a"); link.download = "secret.txt"
        link.href = URL.createObjectURL(new Blob(["42"])); link.click(); link.href"""
    kept, mine = tmp_path / "kept", tmp_path / "mine"
    kept.mkdir()
    mine.mkdir()
    async with EnvHost(max_sessions=2, downloads=kept) as host, DevToolsSupply(host) as supply:
        own, other = await supply.open(CANARY), await supply.open(task)
        async with bare_client(own.cdp_url) as client, bare_client(other.cdp_url) as stranger:
            (_, session), (_, theirs) = await client.attach(), await stranger.attach()
            behaviour = {"behavior": "allow", "downloadPath": str(mine), "eventsEnabled": True}
            for one, page in ((client, session), (stranger, theirs)):
                await one.call("Page.enable", {}, page)
                await one.call("Browser.setDownloadBehavior", behaviour)
            blob = await stranger.evaluate(theirs, save)
            async with asyncio.timeout(20):
                while not (saved := list(kept.rglob("secret.txt"))):
                    await asyncio.sleep(0.02)
            (begun,) = [event["params"] for event in stranger.events if event["method"] == "Page.downloadWillBegin"]
            assert await client.call("Browser.cancelDownload", {"guid": begun["guid"]}) == {}
            assert not [event for event in client.events if "download" in event["method"]]
            fetching = f"fetch({blob!r}).then(() => 'read', () => 'refused')"
            assert await client.evaluate(session, fetching) == "refused"
            addresses = [f"file://{saved[0].parent}", f"file://{saved[0]}"]
            for url in addresses:
                assert await client.refusal("Page.navigate", {"url": url}, session)
                assert await client.refusal("Network.loadNetworkResource", {"url": url, "options": {}}, session)
                assert await client.refusal("Target.createTarget", {"url": url})
            monkeypatch.setattr(Rules, "check_url", lambda *_: None)  # without the rule it is read
            await client.call("Page.navigate", {"url": addresses[-1]}, session)
            async with asyncio.timeout(20):
                while await client.evaluate(session, "document.body?.innerText") != "42":
                    await asyncio.sleep(0.02)
        assert (await supply.close(other.lease_id)).reward == 1.0
        assert list(mine.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("Page.navigate", {"url": "file:///etc/hostname"}),
        ("Page.navigate", {"url": "chrome://version"}),
        ("Page.navigate", {"url": "http://127.0.0.1:9/"}),
        ("Network.loadNetworkResource", {"url": "file:///etc/hostname", "options": {}}),
        ("DOM.setFileInputFiles", {"files": ["/etc/hostname"]}),
        ("Input.dispatchDragEvent", {"type": "drop", "data": {"items": [], "files": ["/etc/hostname"]}}),
        ("Emulation.setVirtualTimePolicy", {"policy": "pause"}),
        ("Input.dispatchKeyEvent", {"type": "keyDown", "modifiers": 2, "code": "KeyV", "key": "v"}),
        ("Input.dispatchKeyEvent", {"type": "keyDown", "key": "F20", "commands": ["Paste"]}),
        ("Input.dispatchMouseEvent", {"type": "mousePressed", "button": "middle", "x": 9, "y": 9, "clickCount": 1}),
        ("Browser.grantPermissions", {"permissions": ["clipboardReadWrite"]}),
        ("Browser.setPermission", {"permission": {"name": "clipboard-read"}, "setting": "granted"}),
    ],
)
async def test_a_page_cannot_reach_the_machine(world: World, method: str, params: dict[str, Any]) -> None:
    assert await world.client.refusal(method, params, world.session)
    assert await world.client.evaluate(world.session, "location.pathname") == "/index.html"
    if method == "Page.navigate":
        assert await world.client.refusal("Target.createTarget", params)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        ({"key": "v", "modifiers": 2}, True),
        ({"code": "Insert", "modifiers": 8}, True),
        ({"key": "Delete", "modifiers": 8}, True),
        ({"windowsVirtualKeyCode": 86, "modifiers": 4}, True),
        ({"key": "v"}, False),
        ({"key": "a", "modifiers": 2}, False),
        ({"key": "V", "modifiers": 8}, False),
        ({"key": "Delete"}, False),
        ({"commands": ["selectAll"]}, False),
    ],
)
def test_the_keys_of_the_clipboard_are_known(event: dict[str, Any], expected: bool) -> None:
    assert uses_clipboard("Input.dispatchKeyEvent", event) is expected
    assert not uses_clipboard("Input.insertText", event)


async def test_streams_are_those_of_one_page(world: World) -> None:
    made = await world.stranger.call("Page.printToPDF", {"transferMode": "ReturnAsStream"}, world.ids["session"])
    assert await world.client.refusal("IO.read", {"handle": made["stream"]}, world.session) == "Invalid stream handle"
    assert (await world.stranger.call("IO.read", {"handle": made["stream"]}, world.ids["session"]))["data"]


async def test_a_whole_page_of_calls_works(world: World) -> None:
    call, session = world.client.call, world.session
    assert (await call("Browser.getVersion"))["product"]
    assert (await call("Page.captureScreenshot", {"format": "png"}, session))["data"].startswith("iVBOR")
    root = (await call("DOM.getDocument", {"depth": -1}, session))["root"]
    assert root["nodeName"] == "#document"
    params = {"computedStyles": ["color"], "includeDOMRects": True, "includePaintOrder": True}
    snapshot = await call("DOMSnapshot.captureSnapshot", params, session)
    layout = snapshot["documents"][0]["layout"]
    assert len(layout["bounds"]) == len(layout["nodeIndex"]) and all(len(box) == 4 for box in layout["bounds"])
    assert {len(styles) for styles in layout["styles"]} <= {0, 1}


async def test_each_bad_message_gets_one_error_and_the_next_call_an_answer(world: World) -> None:
    async with bare_client(world.mine.cdp_url) as client:
        bad = [
            "{",
            "[]",
            "7",
            "{}",
            '{"id": "x", "method": "a"}',
            '{"id": 1, "method": 2}',
            b"\xff\xfe",
            '{"id":1.5,"method":"A.b"}',
            '{"id":36893488147419103232,"method":"A.b"}',
        ]
        bad += ['{"id": 1, "method": "A.b", "params": 3}', '{"id": 1, "method": "A.b", "sessionId": 3}']
        for message in bad:
            await client.socket.send(message)
        assert (
            await client.refusal("Nothing.atAll")
            == "'Nothing.atAll' reaches beyond this session's browser context, or wasn't found"
        )
        assert len(client.errors) == len(bad)


GARBAGE: list[Any] = [None, 7, -1.5, "x", [], [[]], {}, {"a": []}, "\ud800", True]


async def test_calls_with_wrong_parameters_get_one_error_each(world: World, caplog: pytest.LogCaptureFixture) -> None:
    names = {"Input.dispatchKeyEvent": ("modifiers", "commands", "key", "code"), "Input.dispatchDragEvent": ("data",)}
    names |= {"Browser.setPermission": ("permission",), "Browser.grantPermissions": ("permissions",)}
    names |= {"Target.attachToTarget": ("targetId",), "Target.detachFromTarget": ("sessionId",)}
    names |= {"Target.setAutoAttach": ("filter",), "Target.getTargets": ("filter",), "Page.navigate": ("url",)}
    names |= {"Browser.getWindowBounds": ("windowId",), "Storage.getCookies": ("browserContextId",)}
    async with bare_client(world.mine.cdp_url) as client:
        _, session = await client.attach()
        for method, fields in names.items():
            for field, value in itertools.product(fields, GARBAGE):
                for at in (None, session):
                    with suppress(Refusal):  # some mean nothing, and are carried out
                        await client.call(method, {field: value, "flatten": True, "autoAttach": True}, at)
        assert await client.evaluate(session, "1 + 1") == 2
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_closing_the_browser_closes_one_client_alone(world: World) -> None:
    async with bare_client(world.mine.cdp_url) as client:
        assert await client.call("Browser.close") == {}
        await client.socket.wait_closed()
    assert await world.client.evaluate(world.session, "document.title") == "Canary"
    assert await world.stranger.evaluate(world.ids["session"], "document.title") == "Canary"


async def test_http_says_the_address_to_who_knows_the_secret(world: World) -> None:
    async with httpx.AsyncClient(trust_env=False) as web:
        version = await web.get(f"{world.mine.http_url}/json/version")
        assert version.json()["webSocketDebuggerUrl"] == world.mine.cdp_url
        listed = (await web.get(f"{world.mine.http_url}/json/list")).json()
        assert [page["title"] for page in listed] == ["Canary"]
        assert world.ids["target"] not in {page["id"] for page in listed}
        base = world.mine.http_url.rpartition("/")[0]
        for path in ("/json/version", "/json/list", "/", "/wrong/json/version"):
            answer = await web.get(base + path)
            assert answer.status_code == 404 and "ws://" not in answer.text
        page = await web.get(f"{world.mine.http_url}/json/version", headers={"Origin": "http://evil.example"})
        assert page.status_code == 403


@pytest.mark.parametrize(("secret", "headers"), [("wrong", {}), ("", {}), (None, {"Origin": "http://evil.example"})])
async def test_a_stranger_gets_no_socket(world: World, secret: str | None, headers: dict[str, str]) -> None:
    url = world.mine.cdp_url if secret is None else world.mine.cdp_url.rpartition("/")[0] + f"/{secret}"
    with pytest.raises(InvalidStatus):
        await connect(url, additional_headers=headers)


async def test_a_client_that_goes_away_leaves_nothing_behind(world: World) -> None:
    (browser,) = world.host.pool.contexts.browser_set.browsers
    before = set(browser.connection.sessions)
    async with bare_client(world.mine.cdp_url) as client:
        await client.attach()
        assert set(browser.connection.sessions) > before
        client.socket.transport.abort()  # as a process that is killed
    async with asyncio.timeout(10):
        while set(browser.connection.sessions) != before:
            await asyncio.sleep(0.02)
    assert await world.client.evaluate(world.session, "document.title") == "Canary"
