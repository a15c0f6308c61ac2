"""All published tasks of WebArena, with recipes in place of its hosts."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from envs.browser import BrowserPool
from envs.bundled.sites import APPLICATIONS
from envs.rewards.webarena.evaluate import evaluate
from envs.rewards.webarena.shop import ADMIN
from envs.rewards.webarena.site_helpers import lacking
from envs.sites import LiveOptions, SiteGroup, build_site, find_recipe, make_site
from envs.sites.recipes.recipe import FOLDERS
from envs.tasks.imports import import_tasks
from envs.types import Goto, WebTask
from envs.types.evidence import PageText
from envs.types.webarena import evaluators_hash, placed

from .making import write_recipe

WHEELS = "ROLLWRIGHT_TASK_WHEELS"
RECIPES = {
    "shopping": "shop",
    "shopping_admin": "office",
    "reddit": "tracker",
    "gitlab": "directory",
    "wikipedia": "pages",
    "map": "pages",
    "homepage": "pages",
}
"""Recipes by the benchmark's sites: of kind app, wsgi and static."""
SHOWN = {name: application.title for name, application in APPLICATIONS.items()} | {"office": "Shop", "pages": "A page"}
"""Text of the start page of each recipe."""
HOSTS = {name: f"{name.replace('_', '-')}.webarena.example" for name in RECIPES}
ADDRESSES = {name: f"https://{host}" for name, host in HOSTS.items()}
ADDRESSES["shopping_admin"] += "/admin"
MEMBERS = ("shopping", "shopping_admin", "reddit", "gitlab")
"""Sites on which the benchmark logs in."""
ROOT = re.compile(r"__([A-Z_]+?)__/?")


@dataclass(frozen=True)
class Published:
    """The benchmark's rows, the tasks that are made of them, and the settings of a run."""

    rows: list[dict[str, Any]]
    tasks: list[WebTask]
    live: LiveOptions


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Published]:
    wheels = sorted(Path(os.environ.get(WHEELS, "nowhere")).glob("libwebarena-0.0.5-*.whl"))
    if not wheels:
        pytest.skip(f"{WHEELS} names no folder with the wheel: pip download --no-deps libwebarena==0.0.5")
    folder = tmp_path_factory.mktemp("webarena")
    (folder / "pages").mkdir()
    (folder / "pages" / "index.html").write_text("<h1>A page</h1>")
    logins = {name: str(folder / f"{name}.json") for name in MEMBERS}
    for name, file in logins.items():
        cookie = {"name": "member", "value": name, "domain": HOSTS[name], "path": "/"}
        Path(file).write_text(json.dumps({"cookies": [cookie], "origins": []}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROLLWRIGHT_SITE_BUILDS", str(folder / "builds"))
        patch.setenv(FOLDERS, str(folder))
        build = {"code": str(Path(__file__).parent / "town"), "seed": ["python", "-m", "town"]}
        write_recipe(folder, "office", build=build, start={"application": "town:shop"}, warm=[], state={})
        (folder / "pages.yaml").write_text("{kind: static, start: {folder: pages}}")
        live = LiveOptions(
            addresses=ADDRESSES, logins=logins, recipes={HOSTS[name]: recipe for name, recipe in RECIPES.items()}
        )
        with zipfile.ZipFile(wheels[-1]) as wheel:
            rows = json.loads(wheel.read("webarena/test.raw.json"))
        yield Published(rows, [item.task for item in import_tasks("webarena", wheels[-1])], live)


def filled(text: str) -> str:
    """An address of the benchmark with ours in place of its placeholders."""
    return re.sub(r"__([A-Z_]+?)__", lambda found: ADDRESSES[found[1].lower()], text)


def expected_parts(row: dict[str, Any]) -> int:
    """Comparisons of a row, counted in the benchmark's own form."""
    kinds, answers = row["eval"]["eval_types"], row["eval"]["reference_answers"] or {}
    listed = [1 if isinstance(answer, str) else len(answer) for answer in answers.values()]
    pages = len(row["eval"]["program_html"])
    return sum(listed) * ("string_match" in kinds) + ("url_match" in kinds) + pages * ("program_html" in kinds)


@pytest.mark.frameworks
async def test_all_812_tasks_have_hosts_evaluators_and_log_ins(published: Published) -> None:
    assert len(published.rows) == len(published.tasks) == 812
    groups = {name: make_site(name, published.live) for name in {task.site for task in published.tasks}}
    account = {**published.live.logins, ADMIN: "account.json"}
    for row, task in zip(published.rows, published.tasks, strict=True):
        site, evaluators = groups[task.site], placed(task.evaluators, ADDRESSES)  # type: ignore[arg-type]
        assert isinstance(site, SiteGroup) and task.task_id == f"webarena/{row['task_id']}"
        first, *tabs = [filled(tab) for tab in row["start_url"].split(" |AND| ")]
        assert f"{site.origin}{site._below}{task.path}".rstrip("/") == first.rstrip("/")
        named = {name.lower() for name in re.findall(r"__([A-Z_]+?)__", json.dumps(row))} - {"last_url", "page"}
        for name in {*row["sites"], *named}:
            assert site.members[HOSTS[name]].name == RECIPES[name]
        assert {urlsplit(tab).netloc for tab in tabs} <= site.members.keys()
        assert evaluators_hash(task.evaluators) == task.evaluators_hash  # type: ignore[arg-type]
        assert {lacking(check, ADDRESSES, account) for check in evaluators.program_html} <= {""}
        members = re.findall(
            r"[a-z_]+", (row["storage_state"] or "").removeprefix("./.auth/").removesuffix("_state.json")
        )
        assert {published.live.logins[name] for name in members} <= set(site._logins) and {*members} <= {*row["sites"]}
        there, *_ = (evaluators.reference_url or "none").split(" |OR| ")
        seen = [PageText(address="", text="nothing")] * len(evaluators.program_html)
        for last_url, held in ((there, 1.0), ("https://other.example/", 0.0)):
            result = await evaluate(evaluators, question=row["intent"], answer="?", last_url=last_url, seen=seen)
            assert len(result.parts) == expected_parts(row)
            assert {part.evidence for part in result.parts if part.value is None} <= {
                "needs a judge, and there is none"
            }
            assert {part.value for part in result.parts if part.name == "url_match"} <= {held}


@pytest.mark.frameworks
async def test_each_combination_of_sites_opens_under_true_names(published: Published) -> None:
    """The first task of each that begins at a site's root: paths are the benchmark's own."""
    chosen: dict[frozenset[str], WebTask] = {}
    for row, task in zip(published.rows, published.tasks, strict=True):
        if ROOT.fullmatch(row["start_url"]):
            chosen.setdefault(frozenset(row["sites"]), task)
    assert chosen.keys() == {frozenset(row["sites"]) for row in published.rows} and len(chosen) == 10
    build_site(find_recipe("office"))
    async with BrowserPool(max_sessions=1) as pool:
        for name in sorted({task.site for task in chosen.values()}):
            site = make_site(name, published.live)
            await site.start()
            try:
                async with pool.lease(site) as session:
                    for sites, task in chosen.items():
                        if task.site == name:
                            step = await session.reset(task, 0)
                            assert step.observation.url == f"{ADDRESSES[name]}/"
                            assert SHOWN[RECIPES[name]] in step.observation.text
                            for other in sorted({*sites, *RECIPES} if len(sites) > 1 else sites):
                                step = await session.step(Goto(url=f"{ADDRESSES[other]}/"))
                                assert step.observation.url == f"{ADDRESSES[other]}/"
                                assert SHOWN[RECIPES[other]] in step.observation.text
                                if other == "shopping_admin":
                                    assert f"https://{HOSTS[other]} member={other}" in step.observation.text
            finally:
                await site.close()
