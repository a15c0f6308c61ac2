"""What a page's clock says: the real time on live sites, a fixed date on others, and what a task or
a run says; and that servers agree."""

from __future__ import annotations

import http.server
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from envs.browser import BrowserPool, WebSession
from envs.settle import EPOCH_SECONDS
from envs.sites import LiveOptions, LiveSite, make_site
from envs.types import BrowserError, Click, Goto, WebTask
from envs.types.dates import read_date
from tasks_lib.config.parts import RolloutConfig
from tests.builders import page_task
from tests.envs.dynamic import page as page_of

DAY = 86_400
CLOSE = 60.0
"""Seconds by which two clocks that agree may differ in a test on a busy machine."""

COOKIES = """<button onclick="document.cookie = 'kept=1; path=/; expires=' + new Date(Date.now() + 180 * 864e5).toUTCString()">keep</button>
<button onclick="cookieStore.set({name: 'stored', value: '1', expires: Date.now() + 864e5}).then(() => { document.title = 'set' })">store</button>
<button onclick="document.cookie = 'gone=1; max-age=99'; document.cookie = 'gone=; expires=Thu, 01 Jan 1970 00:00:00 GMT'">drop</button>
<button onclick="document.cookie = 'session=1'; document.cookie = 'odd=1; Expires=soon; Path=/'">session</button>
<button onclick="open('/', '', 'width=300,height=300')">open</button>"""

ASKED = """(() => {
  const asked = new XMLHttpRequest();
  asked.open("GET", location.href, false);
  asked.send();
  return [Date.now(), Date.parse(asked.getResponseHeader("date")), Date.parse(document.lastModified)].map((ms) => ms / 1000);
})()"""


class Answers(http.server.BaseHTTPRequestHandler):
    """A server of other people: pages of its folder, and a token of the present."""

    def do_GET(self) -> None:
        now = time.time()
        body = (
            json.dumps({"iat": now, "exp": now + 300})
            if self.path == "/token"
            else f"<!DOCTYPE html><title>t</title>{COOKIES}"
        )
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if self.path == "/token" else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


@contextmanager
def live_site() -> Iterator[LiveSite]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield LiveSite("live.test", LiveOptions(addresses={"live.test": f"http://127.0.0.1:{server.server_port}"}))
    finally:
        server.shutdown()
        server.server_close()


def on(site: str, date: str = "") -> WebTask:
    return page_of("/").model_copy(update={"site": site, "date": date})


async def clocks(session: WebSession) -> list[float]:
    """Seconds since 1970: the page's clock, its server's, and the document's last change."""
    return list(await session.page.tab.evaluate(ASKED))


async def keep_all(session: WebSession) -> str:
    for number in range(1, 5):
        await session.step(Click(element=number))
    return str(await session.page.tab.evaluate("document.cookie"))


@pytest.mark.parametrize(
    ("run", "task", "expected"),
    [("", "", None), ("2030-01-01", "", "2030-01-01"), ("2030-01-01", "2019-03-04T05:06:07Z", "2019-03-04T05:06:07Z")],
    ids=["nothing given", "the run's", "the task's"],
)
async def test_live_sites_have_the_real_date_unless_one_is_given(run: str, task: str, expected: str | None) -> None:
    with live_site() as site:
        async with BrowserPool(page_date=run, screenshots=False, prewarm=1) as pool, pool.lease(site) as session:
            for _ in range(2):  # the second context was opened beforehand
                await session.reset(on("live.test", task), 1)
                page, server, _ = await clocks(session)
                assert page == pytest.approx(time.time() if expected is None else read_date(expected), abs=CLOSE)
                assert server == pytest.approx(time.time(), abs=CLOSE)
                assert await keep_all(session) == "kept=1; stored=1; session=1; odd=1"


async def test_dates_of_live_pages_follow_the_real_time_while_a_model_thinks(monkeypatch: pytest.MonkeyPatch) -> None:
    thought = 0.0
    passing = SimpleNamespace(time=lambda: time.time() + thought, perf_counter=time.perf_counter)
    monkeypatch.setattr("envs.settle.page_dates.time", passing)
    kept = """(() => {
      window.fired = 0; setTimeout(() => { window.fired = 1; }, 60_000); window.began = performance.now();
      document.body.append(Object.assign(document.createElement("iframe"), {srcdoc: "x"}));
    })()"""
    formatted = "Date.parse(new Intl.DateTimeFormat('en', {dateStyle: 'short', timeStyle: 'long'}).format())"
    asked = (
        "[Date.now(), +new Date, Temporal.Now.instant().epochMilliseconds, frames[0]?.Date.now() ?? Date.now(), +new Date(Date()),"
        f" {formatted}]"
    )
    with live_site() as site:
        async with BrowserPool(screenshots=False) as pool, pool.lease(site) as session:
            await session.reset(on("live.test"), 1)
            await session.page.tab.evaluate(kept)
            for thought, action in (
                (0, Click(element=4)),
                (900, Click(element=4)),
                (1800, Click(element=5)),
                (2700, Goto(url=f"{site.origin}/")),
            ):
                await session.step(action)
                tab = session.page.tab
                dates = [ms / 1000 for ms in await tab.evaluate(asked)]
                assert dates == pytest.approx([time.time() + thought] * 6, abs=CLOSE), action
                if thought == 900:
                    assert await tab.evaluate("[fired, performance.now() - began < 10_000]") == [0, True]


async def test_servers_of_ours_have_the_date_of_the_page() -> None:
    site = make_site("shop")
    await site.start()
    try:
        async with BrowserPool(screenshots=False) as pool, pool.lease(site) as session:
            for date, expected in (("", EPOCH_SECONDS), ("2031-02-03", read_date("2031-02-03")), ("", EPOCH_SECONDS)):
                await session.reset(on("shop", date), 1)
                page, server, changed = await clocks(session)
                assert page == pytest.approx(expected, abs=CLOSE)
                assert page - 2 <= server <= page
                assert changed <= page
                await session.page.tab.evaluate("window.open('/search'); 0")
                await session.step(Goto(url=f"{site.origin}/search"))
                page, server, changed = await clocks(session)
                assert expected < page < expected + CLOSE
                assert page - 2 <= server <= page
    finally:
        await site.close()


async def test_files_are_asked_for_once_and_cookies_kept_at_any_date(pages: Any, tmp_path: Any) -> None:
    (tmp_path / "site.js").write_text("window.loaded = 1")
    async with pages(
        {"a.html": f"{COOKIES}<script src=site.js></script>", "b.html": "<script src=site.js></script>"}
    ) as (pool, site):
        for date in ("", "1999-12-31T23:59:59+01:00", "2044-01-01"):
            async with pool.lease(site) as session:
                await session.reset(page_task("/a.html", date=date), 1)
                page, server, changed = await clocks(session)
                assert page == pytest.approx(read_date(date) if date else EPOCH_SECONDS, abs=CLOSE)
                assert changed <= server <= page
                assert await keep_all(session) == "kept=1; stored=1; session=1; odd=1"
                await session.step(Goto(url=f"{site.origin}/b.html"))
                size = "performance.getEntriesByName(new URL('site.js', location).href)[0].transferSize"
                assert await session.page.tab.evaluate(size) == 0, "of the cache"


async def test_a_reused_page_is_one_whose_clock_began_at_the_same_date(
    miniwob: Any, miniwob_tasks: dict[str, WebTask]
) -> None:
    plain = miniwob_tasks["click-test"]
    dated = plain.model_copy(update={"date": "2024-05-01"})
    async with miniwob(max_sessions=1, screenshots=False) as (pool, site), pool.lease(site) as session:
        for task, expected in (
            (plain, EPOCH_SECONDS),
            (dated, read_date("2024-05-01")),
            (dated, read_date("2024-05-01")),
            (plain, EPOCH_SECONDS),
        ):
            await session.reset(task, 1)
            now = await session.page.tab.evaluate("Date.now() / 1000")
            assert expected <= now < expected + CLOSE
        assert pool.counters.contexts_opened == 3, "that of the second episode was used for the third"


@pytest.mark.parametrize("text", ["today", "2024-13-01", "1969-01-01", "12:30", "2500-01-01"])
def test_what_is_no_date_is_refused(text: str) -> None:
    with pytest.raises(BrowserError, match="page_date"):
        BrowserPool(page_date=text)
    for make in (
        lambda: RolloutConfig(page_date=text),
        lambda: WebTask.model_validate({**on("a").model_dump(), "date": text}),
    ):
        with pytest.raises(ValidationError, match="date"):
            make()
