"""Real pages in real Chromium: what they reach through the proxy, and that they reach nothing else,
whatever they try."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from envs.cdp import CdpError
from envs.egress import PROXY_BYPASS as BYPASS
from envs.egress import AllowList, EgressProxy, Listener, Reason, SiteSecrets, chromium_args, harden, harden_page
from tests.envs.egress.servers import BLOCK, Canary, Site, canary, serve
from tests.envs.raw_chromium import RawChromium, RawSession, raw_chromium


@dataclass
class World:
    """A browser with one hardened context, the site that it may see, and a canary that it may
    not."""

    chromium: RawChromium
    context: str
    page: RawSession
    site: Site
    bird: Canary
    listener: Listener
    proxy: EgressProxy


@asynccontextmanager
async def world(
    folder: Path, *, downloads: Path | None = None, secrets: bool = False, args: tuple[str, ...] = ()
) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        site, bird = await enter(serve(Site())), await enter(canary())
        own = SiteSecrets({site.origin: {"Authorization": "Bearer t0p"}}) if secrets else None
        proxy = await enter(EgressProxy(secrets=own))
        nowhere, listener = await proxy.open(AllowList()), await proxy.open(AllowList.of(site.origin))
        chromium = await enter(raw_chromium(folder, *chromium_args(nowhere.address), *args))
        context = await chromium.new_context(proxyServer=listener.address, proxyBypassList=BYPASS)
        await harden(chromium.browser, context, downloads)
        page = await chromium.new_page(context)
        await harden_page(page)
        await page.goto(site.origin + "/")
        yield World(chromium, context, page, site, bird, listener, proxy)
        assert sum(nowhere.refused.values()) == 0 == nowhere.requests, "something of no context went to the network"


def spellings(each: World) -> list[str]:
    """URLs of what no page may reach."""
    port = each.bird.port
    hosts = [
        "127.0.0.1",
        "localhost",
        "a.localhost",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.1",
    ]
    own = [
        address.address
        for found in psutil.net_if_addrs().values()
        for address in found
        if address.family.name == "AF_INET"
    ]
    hosts += [address for address in own if not address.startswith("127.")]
    urls = [f"http://{host}:{port}/" for host in hosts]
    urls += [
        "http://169.254.169.254/latest/",
        "http://[fd00:ec2::254]/",
        "http://metadata.google.internal/",
        "http://example.com/",
    ]
    urls += [
        f"http://127.0.0.1:{each.chromium.port}/json/version",
        "https://example.com/",
        f"https://127.0.0.1:{port}/",
    ]
    return [f"{url}?{number}" for number, url in enumerate(urls)]  # else some are one image or script to the browser


WAYS = {
    "fetch": "u => fetch(u).then(() => 'reached', () => 'no')",
    "fetch no-cors": "u => fetch(u, {mode: 'no-cors'}).then(r => r.type === 'opaque' ? 'opaque' : 'reached', () => 'no')",
    "image": "u => new Promise(done => { const i = new Image(); i.onload = () => done('reached'); i.onerror = () => done('no'); i.src = u; })",
    "script": """u => new Promise(done => { const s = document.createElement('script'); s.src = u;
        s.onload = () => done('reached'); s.onerror = () => done('no'); document.head.append(s); })""",
    "frame": """u => new Promise(done => { const f = document.createElement('iframe'); f.src = u;
        f.onload = () => { f.remove(); done('loaded'); }; document.body.append(f); })""",
    "form": """u => new Promise(done => { const f = document.createElement('iframe'); f.name = u; document.body.append(f);
        const form = document.createElement('form'); form.method = 'post'; form.action = u; form.target = u; document.body.append(form);
        form.submit(); f.onload = () => { f.remove(); form.remove(); done('loaded'); }; })""",
    "websocket": """u => new Promise(done => { const w = new WebSocket(u.replace('http', 'ws'));
        w.onopen = () => done('reached'); w.onerror = () => done('no'); })""",
    "events": """u => new Promise(done => { const e = new EventSource(u);
        e.onopen = () => { e.close(); done('reached'); }; e.onerror = () => { e.close(); done('no'); }; })""",
    "beacon": "async u => { navigator.sendBeacon(u, 'x'); return 'sent'; }",
    "keepalive": "u => fetch(u, {keepalive: true, method: 'POST', body: 'x'}).then(() => 'reached', () => 'no')",
    "links": """async u => { for (const rel of ['prefetch', 'preconnect', 'dns-prefetch', 'preload', 'modulepreload', 'stylesheet', 'icon']) {
        const l = document.createElement('link'); l.rel = rel; l.href = u; l.as = 'script'; document.head.append(l); } return 'sent'; }""",
    "worker": """u => new Promise(done => { const w = new Worker(URL.createObjectURL(new Blob([
        `fetch(${JSON.stringify(u)}).then(() => postMessage('reached'), () => postMessage('no'))`])));
        w.onmessage = e => { w.terminate(); done(e.data); }; })""",
    "speculation": """async u => { const s = document.createElement('script'); s.type = 'speculationrules';
        s.textContent = JSON.stringify({prefetch: [{urls: [u], eagerness: 'immediate'}], prerender: [{urls: [u], eagerness: 'immediate'}]});
        document.head.append(s); return 'sent'; }""",
    "redirect": "u => fetch('/to?url=' + encodeURIComponent(u)).then(() => 'reached', () => 'no')",
}
REACHED_NOTHING = {"no", "sent", "loaded", "opaque"}
"""``loaded`` is the frame of the refusal, ``opaque`` its unreadable answer; the canary says that
neither was more."""


@pytest.mark.parametrize("way", WAYS)
async def test_a_page_reaches_nothing_that_is_not_listed(tmp_path: Path, way: str) -> None:
    async with world(tmp_path) as each:
        urls = spellings(each)
        answers = await each.page.evaluate(f"Promise.all({json.dumps(urls)}.map({WAYS[way]}))")
        assert set(answers) <= REACHED_NOTHING, dict(zip(urls, answers, strict=True))
        assert await each.page.evaluate("fetch('/').then(r => r.status)") == 200
        if way != "speculation":  # the headless shell does not speculate
            async with asyncio.timeout(20):  # what was only sent is on its way; the proxy sees every attempt
                while sum(each.listener.refused.values()) < len(urls):
                    await asyncio.sleep(0.01)
        assert each.bird.hits == []


async def test_the_same_ways_reach_the_canary_without_the_proxy(tmp_path: Path) -> None:
    """The control: each way would have been seen."""

    async with (
        serve(Site()) as site,
        canary() as bird,
        raw_chromium(tmp_path, "--proxy-server=direct://") as chromium,
    ):
        page = await chromium.new_page()
        await page.goto(site.origin + "/")
        for way in ("fetch", "image", "script", "frame", "form", "websocket", "beacon", "worker", "redirect"):
            before = len(bird.hits)
            asked = page.evaluate(
                f"Promise.race([({WAYS[way]})('{bird.origin}/{len(bird.hits)}'), new Promise(r => setTimeout(r, 1000))])"
            )
            await asked
            async with asyncio.timeout(20):  # that it comes is what is shown; how soon depends on the machine
                while len(bird.hits) <= before:
                    await asyncio.sleep(0.01)


STUN = """async port => { const pc = new RTCPeerConnection({iceServers: [
    {urls: [`stun:127.0.0.1:${port}`, `stun:localhost:${port}`]},
    {urls: [`turn:127.0.0.1:${port}?transport=tcp`, `turn:127.0.0.1:${port}?transport=udp`], username: 'u', credential: 'c'}]});
  pc.createDataChannel('x');
  const candidates = [];
  const gathered = new Promise(done => pc.onicecandidate = e => e.candidate ? candidates.push(e.candidate.candidate) : done());
  await pc.setLocalDescription(await pc.createOffer());
  await Promise.race([gathered, new Promise(r => setTimeout(r, 3000))]);
  return candidates; }"""


async def test_webrtc_sends_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        assert await each.page.evaluate(f"({STUN})({each.bird.port})") == []
        assert each.bird.hits == []


async def test_webrtc_would_reach_the_canary_without_the_flag(tmp_path: Path) -> None:
    async with serve(Site()) as site, canary() as bird, raw_chromium(tmp_path) as chromium:
        page = await chromium.new_page()
        await page.goto(site.origin + "/")
        await page.evaluate(f"({STUN})({bird.port})")
        assert "udp" in bird.hits


async def test_webtransport_sends_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        hash_ = "{algorithm: 'sha-256', value: new Uint8Array(32)}"
        opened = (
            f"new WebTransport('https://127.0.0.1:{each.bird.port}/', {{serverCertificateHashes: [{hash_}]}}).ready"
        )
        assert await each.page.evaluate(f"{opened}.then(() => 'reached', () => 'no')") == "no"
        assert each.bird.hits == []


async def test_the_browser_looks_up_no_name(tmp_path: Path) -> None:
    log = tmp_path / "net.json"

    async with world(tmp_path, args=(f"--log-net-log={log}",)) as each:
        await each.page.evaluate("fetch('http://name.example.com/').catch(() => 0)")
        await each.page.evaluate(f"({WAYS['links']})('http://name.example.com/')")
        await each.page.evaluate("fetch('/').then(r => r.text())")
        await each.chromium.browser.send("Browser.close")
        async with asyncio.timeout(20):
            while not log.exists() or "".join(log.read_text()[-9:].split())[-2:] != "]}":
                await asyncio.sleep(0.05)
    found = json.loads(log.read_text())
    kinds = {number: name for name, number in found["constants"]["logEventTypes"].items()}
    asked = [json.dumps(event) for event in found["events"] if "HOST_RESOLVER" in kinds[event["type"]]]
    assert asked, "the log holds the look-ups"
    assert [each for each in asked if "example.com" in each] == []


async def test_a_page_cannot_use_another_lease_or_the_debugging_port(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        other = await each.proxy.open(AllowList.of(each.bird.origin))
        for address in (other.address, f"http://127.0.0.1:{each.chromium.port}"):
            assert await each.page.evaluate(f"fetch('{address}/').then(() => 1, () => 0)") == 0
            assert await each.page.evaluate(f"({WAYS['websocket']})('{address}/devtools/browser')") == "no"
        assert each.listener.refused[Reason.LOOPBACK, "127.0.0.1"] == 4
        assert other.refused == {} and other.requests == 0 and each.bird.hits == []


async def fetched(page: RawSession, url: str) -> Any:
    """1 if a script of the page could read it; asked again where a navigation of before has
    replaced the document."""
    while True:
        try:
            return await page.evaluate("fetch(" + url + ").then(() => 1, () => 0)")
        except CdpError as error:
            if "navigated" not in str(error):
                raise


async def test_no_page_opens_a_file(tmp_path: Path) -> None:
    secret = tmp_path / "secret.html"
    secret.write_text("<title>secret</title>")
    tries = [
        "location.href = FILE",
        "window.open(FILE)",
        "(() => { const a = document.createElement('a'); a.href = FILE; document.body.append(a); a.click(); })()",
        "(() => { const f = document.createElement('iframe'); f.src = FILE; document.body.append(f); })()",
        "(() => { const f = document.createElement('form'); f.action = FILE; document.body.append(f); f.submit(); })()",
        "location.href = '/to?url=' + encodeURIComponent(FILE)",
    ]

    async with world(tmp_path) as each:
        url = json.dumps(secret.as_uri())
        for attempt in tries:
            await each.page.goto(each.site.origin + "/")
            await each.page.evaluate(attempt.replace("FILE", url) + "; 0")
            assert await fetched(each.page, url) == 0
            targets = (await each.chromium.browser.send("Target.getTargets", {"filter": [{}]}))["targetInfos"]
            assert [t["url"] for t in targets if t["url"].startswith("file")] == []
            frames = await each.page.send("Page.getFrameTree")
            assert "file:" not in json.dumps(frames)
        assert each.listener.allow.refuse_url(secret.as_uri()) is Reason.SCHEME, "what goto asks before it navigates"


async def test_downloads_are_denied(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        deny = {
            "behavior": "deny",
            "browserContextId": each.context,
            "eventsEnabled": True,
        }  # the same again, with events
        await each.chromium.browser.send("Browser.setDownloadBehavior", deny)
        click = each.page.evaluate("Object.assign(document.createElement('a'), {href: '/file'}).click()")
        ended = await each.chromium.browser.until(
            "Browser.downloadProgress", click, lambda e: bool(e["state"] != "inProgress")
        )
        assert ended["state"] == "canceled"
        assert list(tmp_path.rglob("*.bin*")) == []


async def test_downloads_land_in_the_folder_of_the_episode(tmp_path: Path) -> None:
    folder = tmp_path / "downloads"
    folder.mkdir()

    async with world(tmp_path, downloads=folder) as each:
        link = "Object.assign(document.createElement('a'), {href: '/file', download: '../../out.bin'})"
        await each.page.evaluate(f"{link}.click()")
        async with asyncio.timeout(20):
            while [path.name for path in folder.iterdir()] != ["report.bin"]:
                await asyncio.sleep(0.02)
        assert (folder / "report.bin").read_bytes() == b"bytes"
        assert list(tmp_path.rglob("*.bin*")) == [folder / "report.bin"]


PERMISSIONS = (
    "geolocation",
    "notifications",
    "clipboard-read",
    "clipboard-write",
    "camera",
    "microphone",
    "midi",
    "local-fonts",
    "idle-detection",
)


async def test_permissions_are_denied(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        ask = f"Promise.all({json.dumps(PERMISSIONS)}.map(name => navigator.permissions.query({{name}}).then(r => r.state)))"
        assert await each.page.evaluate(ask) == ["denied"] * len(PERMISSIONS)
        uses = [
            "new Promise(r => navigator.geolocation.getCurrentPosition(() => r(1), () => r(0)))",
            "Notification.requestPermission().then(state => state === 'granted' ? 1 : 0)",
            "navigator.clipboard.readText().then(() => 1, () => 0)",
            "navigator.mediaDevices.getUserMedia({audio: true, video: true}).then(() => 1, () => 0)",
        ]
        assert [await each.page.evaluate(use) for use in uses] == [0, 0, 0, 0]
        popup = await each.chromium.new_page(each.context)
        await popup.goto(each.site.origin + "/")
        assert await popup.evaluate(ask) == ["denied"] * len(PERMISSIONS), "a second tab too"


async def test_no_service_worker_is_registered(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        register = "navigator.serviceWorker.register('/sw.js').then(() => 'registered', e => e.name)"
        assert await each.page.evaluate(register) == "TypeError"
        assert await each.page.evaluate("navigator.serviceWorker.getRegistrations().then(r => r.length)") == 0
        assert each.listener.refused[Reason.SERVICE_WORKER, "127.0.0.1"] == 1


async def test_a_refused_navigation_shows_a_page_that_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        await each.page.goto(each.bird.origin + "/")
        text = await each.page.evaluate("document.body.innerText")
        assert text == "127.0.0.1 is not reachable from here (loopback)."
        assert each.bird.hits == []


async def test_what_is_listed_works(tmp_path: Path) -> None:
    async with world(tmp_path) as each:
        page = each.page
        socket = """new Promise((done, fail) => { const w = new WebSocket(location.origin.replace('http', 'ws') + '/echo');
            w.onopen = () => w.send('hello'); w.onmessage = e => { w.close(); done(e.data); }; w.onerror = fail; })"""
        assert await page.evaluate(socket) == "echo hello"
        assert (
            await page.evaluate("fetch('/to?url=/status/418').then(r => r.status + ' ' + r.redirected)") == "418 true"
        )
        sent = await page.evaluate("fetch('/sum', {method: 'POST', body: 'x'.repeat(3000000)}).then(r => r.json())")
        assert sent == {"bytes": 3_000_000, "sha256": hashlib.sha256(b"x" * 3_000_000).hexdigest()}
        chunks = await page.evaluate("fetch('/chunks').then(r => r.text())")
        assert chunks == "".join(f"{number}," * 100 for number in range(50))
        big = await page.evaluate("fetch('/big?blocks=320').then(r => r.arrayBuffer()).then(b => b.byteLength)")
        assert big == 320 * len(BLOCK)
        events = """new Promise(done => { const e = new EventSource('/events'); window.got = [];
            e.onmessage = m => { got.push(m.data); if (got.length === 1) done(got); }; })"""
        assert await page.evaluate(events) == ["first"], "before the second was sent"
        each.site.more.set()
        assert await page.evaluate("new Promise(r => setInterval(() => got.length === 2 && r(got), 5))") == [
            "first",
            "second",
        ]
        many = "Promise.all(Array.from({length: 60}, (_, i) => fetch('/status/' + (200 + i)).then(r => r.status)))"
        assert await page.evaluate(many) == list(range(200, 260))
        assert each.listener.refused == {} and each.bird.hits == []


async def test_pages_never_hold_the_credentials_that_their_site_gets(tmp_path: Path) -> None:
    async with world(tmp_path, secrets=True) as each:
        sent: list[dict[str, Any]] = []
        each.page.on("Network.requestWillBeSentExtraInfo", sent.append)
        await each.page.goto(each.site.origin + "/")
        assert each.site.seen[-1][1]["authorization"] == "Bearer t0p"
        assert sent and "t0p" not in json.dumps(sent)
        assert "t0p" not in await each.page.evaluate(
            "document.cookie + document.documentElement.outerHTML + JSON.stringify(localStorage)"
        )
