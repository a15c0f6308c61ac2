"""Reference pages are entered as episodes are: with the site's state of the seed, its log-in, below
the path of its address."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser import BrowserPool
from envs.cdp.client import ConnectionLost
from envs.episodes import reference_page as sources
from envs.episodes.reference_page import ReferenceSource
from envs.episodes.visual_evidence import VisualRewardSources
from envs.rewards import Component, GradingEvidence, grade_by_program
from envs.rewards.chromiumrl import DomSnapshot
from envs.rewards.chromiumrl.capture import capture_page
from envs.rewards.chromiumrl.similarity import DomSimilarity
from envs.rewards.compose import compose
from envs.sites import LiveOptions, Site, StaticServer, StaticSite, make_site
from envs.types import BrowserError, WebTask
from tests.builders import make_rubric, make_task


def task_on(site: str, path: str, reference: str) -> WebTask:
    return make_task(site=site, path=path, instruction=None, reference=reference)


async def compared(site: Site, task: WebTask, seed: int, references: list[tuple[str, int]]) -> list[DomSimilarity]:
    """An episode's first page, compared with references in the worlds of these seeds."""
    async with BrowserPool(max_sessions=1, inspect=capture_page) as pool, pool.lease(site) as session:
        page = (await session.reset(task, seed)).inspected
        assert isinstance(page, DomSnapshot)
        blob = page.model_dump_json().encode()
        source = ReferenceSource(pool, {site.name: site}, lambda _name: blob)
        # The episode has the only place of the pool: a reference needs none.
        tasks = [(task.model_copy(update={"reference": path}), each) for path, each in references]
        return [await source.similarity(one, "last", each) for one, each in tasks]


async def test_a_bundled_site_shows_the_world_of_the_episodes_seed() -> None:
    site = make_site("shop")
    await site.start()
    try:
        same, other = await compared(site, task_on("shop", "/", ""), 7, [("/", 7), ("/", 8)])
    finally:
        await site.close()
    assert same.page_score == 1 and other.page_score < 1


async def test_a_live_site_is_entered_below_its_path_with_its_log_in(tmp_path: Path) -> None:
    (tmp_path / "login.json").write_text(
        json.dumps({"cookies": [{"name": "who", "value": "ada", "domain": "127.0.0.1"}]})
    )
    pages = tmp_path / "pages"
    (pages / "admin").mkdir(parents=True)
    (pages / "admin" / "done.html").write_text(
        "<title>t</title><script>document.write('<p>' + document.cookie)</script>"
    )
    (pages / "done.html").write_text("<title>t</title><p>another page</p>")

    server = StaticServer(pages)
    await server.start()
    options = LiveOptions({"panel": f"{server.origin}/admin"}, logins={"panel": str(tmp_path / "login.json")})
    site = make_site("panel", options)
    await site.start()
    try:
        (same,) = await compared(site, task_on("panel", "/done.html", ""), 0, [("/done.html", 0)])
    finally:
        await site.close()
        await server.close()
    assert same.page_score == 1 and same.matched > 3


class SlowPool:
    """A pool whose pages take until they are let go, and of which some fail; counts what it is
    asked for."""

    options = SimpleNamespace(settle_budget_ms=1.0)

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.go = asyncio.Event()

    async def scratch_tab(self, site: Site, work: Any, *, what: str, **options: Any) -> DomSnapshot:
        self.loaded.append(what.rpartition("/")[2])
        if what.endswith("/slow"):
            await self.go.wait()
        if what.endswith("/lost"):
            raise ConnectionLost("the browser went away")
        if what.endswith("/gone"):
            raise BrowserError("/gone answered 404")
        return DomSnapshot.model_validate({"nodes": [{"tag": "html", "xpath": "/html[1]"}]})


def pages_of(folder: Path) -> StaticSite:
    """Return a site whose pages only have names: `SlowPool` says what is there."""
    for name in ("slow", "quick", "gone", "lost", "x"):
        (folder / name).touch()
    return StaticSite("s", folder)


async def test_references_do_not_wait_for_each_other_and_failures_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, site = SlowPool(), pages_of(tmp_path)
    blob = (await pool.scratch_tab(site, None, deadline=1, what="/x")).model_dump_json().encode()
    pool.loaded.clear()
    source = ReferenceSource(pool, {"s": site}, lambda _name: blob)  # type: ignore[arg-type]

    async def asked(path: str, page: str = "a") -> DomSimilarity:
        return await source.similarity(task_on("s", "/", path), page)

    slow = [asyncio.create_task(asked("/slow", page)) for page in "ab"]
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await asked("/quick")
        for _ in range(2):
            with pytest.raises(BrowserError, match="answered 404"):
                await asked("/gone")
            with pytest.raises(ConnectionLost):
                await asked("/lost")
        monkeypatch.setattr(sources, "FAILED_SECONDS", 0.0)
        with pytest.raises(BrowserError, match="answered 404"):
            await asked("/gone")
        assert not any(each.done() for each in slow)
        pool.go.set()
        await asyncio.gather(*slow)
    assert pool.loaded == ["slow", "quick", "gone", "lost", "lost", "gone"]


async def test_a_last_page_that_was_not_recorded_whole_is_not_compared(tmp_path: Path) -> None:
    """Neither like nor unlike its reference: the episode abstains, whatever else it is graded
    by."""

    pool, site = SlowPool(), pages_of(tmp_path)
    page = await pool.scratch_tab(site, None, deadline=1, what="/x")
    blob = page.model_copy(update={"cut": True}).model_dump_json().encode()
    task = task_on("s", "/", "/x")
    source = ReferenceSource(pool, {"s": site}, lambda _name: blob)  # type: ignore[arg-type]
    evidence = GradingEvidence(final_dom="a", page_facts={"done": True, "raw_reward": 1.0})
    found = {source.component: await source.parts(task, evidence)}
    bundle = compose(found, {Component.SEMANTIC: 1.0})
    assert bundle.score is None and "more than 20,000 nodes" in (bundle.abstained or "")
    rubric = make_rubric(
        {"type": "domdiff_subscore", "key": "textSimilarity"}, {"type": "page_fact", "name": "done", "value": True}
    )
    looks = VisualRewardSources(pool, {"s": site}, lambda _name: blob, None)  # type: ignore[arg-type]
    measured = await looks.measured(task.model_copy(update={"rubric": rubric}), evidence)
    assert grade_by_program(rubric, measured).score is None
