"""Recipes: what is read, what is refused and how, and what makes a new build."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from envs.sites import find_recipe, is_served, make_site, recipe_files
from envs.sites.recipes.build import build_of, build_site, clean_builds, in_use
from envs.sites.recipes.engine import ENGINE
from envs.sites.recipes.recipe import FOLDERS, BuildSteps, read_recipe
from envs.types import ConfigError, SiteError

from .making import write_recipe


@pytest.fixture(autouse=True)
def own_builds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROLLWRIGHT_SITE_BUILDS", str(tmp_path / "builds"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"warmed": ["/"]}, ["warmed: is no key", "did you mean warm?"]),
        ({"start": {"aplication": "a:b"}}, ["start.aplication: is no key", "did you mean application?"]),
        ({"start": {"application": "canary"}}, ["start.application: 'canary' is no module:name"]),
        ({"start": {}}, ["start.application: is missing; kind wsgi needs it"]),
        ({"kind": "process"}, ["start.command: is missing; kind process needs it"]),
        ({"build": {"packages": ["Flask>=3"]}}, ["build.packages: 'Flask>=3' has no version", "NAME==VERSION"]),
        ({"build": {"code": "nowhere"}}, ["build.code:", "is no folder; correct it"]),
        ({"tasks": "none.jsonl"}, ["tasks:", "none.jsonl is no file; correct it"]),
        ({"ready": {"path": "home"}}, ["ready.path: got 'home'"]),
        ({"limits": {"ahead": -1}}, ["limits.ahead: got -1"]),
        ({"check": {"ignore": ["("]}}, ["check.ignore: '(' is no pattern"]),
        (
            {"check": {"requests": [{"path": "/", "body": {}, "form": {}}]}},
            ["check.requests.0.body: is JSON, in place"],
        ),
        ({"kind": "live"}, ["kind: live is not built yet", "name its host"]),
        ({"kind": "container", "build": {}}, ["start.image: kind container needs", "build.context"]),
        ({"kind": "container", "start": {"image": "shop:2"}, "build": {}}, ["'shop:2' may change", "@sha256:"]),
        ({"kind": "container", "start": {"image": f"shop@sha256:{64 * 'a'}"}}, ["build.code: is not for kind"]),
        (
            {
                "kind": "container",
                "start": {"image": f"sha256:{64 * 'a'}"},
                "build": {},
                "state": {"folders": ["data"]},
            },
            ["'data' is no path in a container"],
        ),
        ({"state": {"databases": {"": "postgresql:url"}}}, ["state.databases: 'url' is no environment variable"]),
        ({"kind": "flask"}, ["kind: got 'flask'"]),
        ({"name": "shop"}, ["name: is no key"]),
    ],
)
def test_a_wrong_recipe_is_refused_by_file_and_key(tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    path = write_recipe(tmp_path, **changes)
    with pytest.raises(ConfigError) as refused:
        read_recipe(path)
    assert [word for word in [str(path), *words] if word not in str(refused.value)] == [], refused.value


def test_a_new_build_is_made_when_what_it_is_made_of_changes(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "app.py").write_text("application = None")

    def name(**changes: Any) -> str:
        values = {"build": {"code": str(code)}, "start": {"application": "app:application"}, **changes}
        return build_of(read_recipe(write_recipe(tmp_path, **values))).folder.name

    first = name()
    assert name(warm=[], limits={"ahead": 3}, check={"ignore": ["x"]}) == first
    others = {name(build={"code": str(code), "seed": ["python", "-c", ""]}), name(kind="asgi")}
    (code / "app.py").write_text("application = 1")
    assert len({first, *others, name()}) == 4


def test_a_site_with_packages_runs_on_the_build_of_another_python(tmp_path: Path) -> None:
    recipe = read_recipe(write_recipe(tmp_path, build={"packages": ["six==1.17.0"]}))
    own = build_of(recipe).folder
    other = own.with_name(f"{recipe.name}-{recipe.fingerprint((3, 14))}")
    other.mkdir(parents=True)
    assert build_of(recipe).folder == own != other, "an unfinished build is none"
    (other / "manifest.json").write_text("{}")
    assert build_of(recipe).python == other / "env/bin/python" and build_site(recipe).folder == other
    plain = recipe.model_copy(update={"build": BuildSteps()})
    assert build_of(plain).folder == own.with_name(f"{recipe.name}-{plain.fingerprint(sys.version_info[:2])}")


def test_a_failed_build_shows_why_and_leaves_no_build(tmp_path: Path) -> None:
    failing = ["python", "-c", "print('at work'); raise SystemExit('no such table: shop')"]
    recipe = read_recipe(write_recipe(tmp_path, build={"seed": failing}))
    with pytest.raises(SiteError, match=r"build\.seed failed with status 1.*(?s:.*)no such table: shop"):
        build_site(recipe)
    assert not build_of(recipe).finished
    with pytest.raises(SiteError, match=r"python -m flows\.sites build canary"):
        build_of(recipe).require_finished()


def test_only_builds_that_nothing_needs_are_cleaned(tmp_path: Path) -> None:
    path = write_recipe(tmp_path)
    builds = []
    for seed in ("1", "2", "3"):
        path = write_recipe(tmp_path, build={"seed": ["python", "-c", f"open('{seed}', 'w')"]})
        builds.append(build_site(read_recipe(path)))
    with in_use(builds[0]):
        assert clean_builds([read_recipe(path)]) == [builds[1].folder]
    assert builds[0].finished and builds[2].finished and (builds[2].state / "3").exists()


def test_a_task_names_a_recipe_of_a_folder_of_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_recipe(tmp_path, "corner-shop")
    assert not is_served("corner-shop")
    monkeypatch.setenv(FOLDERS, str(tmp_path))
    assert is_served("corner-shop") and "corner-shop" in recipe_files()
    assert "python -m flows.sites build corner-shop" in make_site("corner-shop").problem()
    with pytest.raises(ConfigError, match="did you mean corner-shop"):
        find_recipe("corner-shops")
    write_recipe(tmp_path, "wiki", kind="app", start={"application": "envs.bundled.sites:TRACKR"})
    with pytest.raises(ConfigError, match="did you mean TRACKER"):
        make_site("wiki")
    write_recipe(tmp_path, "wiki", kind="app", start={"application": "envs.bundled.sites:BundledSite"})
    with pytest.raises(ConfigError, match=r"recipe wiki: start\.application: .*BundledSite.*expected an"):
        make_site("wiki")


def test_without_postgresql_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("envs.sites.recipes.postgres.DEBIAN", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    recipe = read_recipe(write_recipe(tmp_path, build={}, state={"databases": {"": "postgresql:DATABASE_URL"}}))
    with pytest.raises(SiteError, match="needs initdb, which is not installed; install PostgreSQL"):
        build_site(recipe)
    assert not build_of(recipe).finished


def test_without_a_container_engine_the_fix_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = read_recipe(
        write_recipe(tmp_path, kind="container", build={}, start={"image": f"sha256:{64 * 'a'}"}, state={})
    )
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\necho 'is the daemon running?' >&2; exit 1\n")
    engine.chmod(0o755)
    for named, reason in ((str(engine), "is the daemon running?"), (str(tmp_path / "none"), "is not installed")):
        monkeypatch.setenv(ENGINE, named)
        with pytest.raises(SiteError) as refused:
            build_site(recipe)
        assert [word for word in (reason, "start one", f"${ENGINE}") if word not in str(refused.value)] == []
