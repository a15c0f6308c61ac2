"""The command ``flows.sites`` on a recipe of its own, in its process and as a flow run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
import yaml
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowFilter, FlowFilterName, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import StateType

from envs import open_env_sync
from envs.sites import build_of, find_recipe, visit_of
from envs.sites.mirror.har import read_har
from flows.sites import main

PAGE_OF_RECIPES = Path(__file__).resolve().parents[2] / "docs" / "site-recipes.md"
RECIPE = {
    "kind": "wsgi",
    "about": "One page.",
    "build": {"code": "code", "seed": ["python", "-c", "open('count', 'w').write('0')"]},
    "start": {"application": "page:application"},
    "warm": ["/"],
    "limits": {"free_memory_mb": 64, "disk_mb": 256},
}
PAGE = """
import time
def application(environ, start):
    start("200 OK", [("Content-Type", "text/plain")])
    return [CONTENT]
"""


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files without a line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """Serve a folder, and give its address."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROLLWRIGHT_SITES", str(tmp_path))
    monkeypatch.setenv("ROLLWRIGHT_SITE_BUILDS", str(tmp_path / "builds"))
    monkeypatch.setattr("envs.sites.recipes.recipe.SHIPPED", tmp_path / "none")
    (tmp_path / "code").mkdir()
    write(tmp_path, 'b"a page"')
    return tmp_path


def write(folder: Path, content: str) -> None:
    (folder / "code" / "page.py").write_text(PAGE.replace("CONTENT", content))
    (folder / "page.yaml").write_text(yaml.safe_dump(RECIPE))


def test_a_site_is_built_checked_and_cleaned(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0 and capsys.readouterr().out.split()[:4] == ["page", "wsgi", "not", "built"]
    assert main(["check", "page"]) == 1 and "python -m flows.sites build page" in capsys.readouterr().err
    assert main(["build"]) == 0
    assert main(["check", "page"]) == 0 and "page: alike" in capsys.readouterr().out
    write(folder, "str(time.time()).encode()")
    assert main(["build", "page"]) == 0
    assert main(["check", "page"]) == 1 and "a clock" in capsys.readouterr().out
    assert main(["clean"]) == 0 and "1 builds removed" in capsys.readouterr().out
    assert main(["list"]) == 0 and capsys.readouterr().out.split()[:3] == ["page", "wsgi", "built"]


def test_a_build_is_a_flow_run_and_a_second_one_uses_it(
    folder: Path, prefect_api: None, capsys: pytest.CaptureFixture[str]
) -> None:
    names = FlowFilter(name=FlowFilterName(any_=["build-sites"]))
    with get_client(sync_client=True) as client:
        before = {run.id for run in client.read_flow_runs(flow_filter=names)}
        assert main(["build", "page"]) == 0
        build = build_of(find_recipe("page"))
        made = build.folder.stat().st_mtime_ns
        assert main(["build", "page"]) == 0 and build.folder.stat().st_mtime_ns == made
        write(folder, 'b"another page"')
        assert main(["build", "page"]) == 0 and build_of(find_recipe("page")).folder != build.folder
        runs = [run for run in client.read_flow_runs(flow_filter=names) if run.id not in before]
        ids = FlowRunFilter(id=FlowRunFilterId(any_=[run.id for run in runs]))
        deadline = time.monotonic() + 60
        # The server records task runs from events, after their flow run has ended.
        while len(tasks := client.read_task_runs(flow_run_filter=ids)) < 3 and time.monotonic() < deadline:
            time.sleep(0.2)
    assert capsys.readouterr().out.count(f"page: built in {build.folder}") == 2
    assert [run.state_type for run in (*runs, *tasks)] == [StateType.COMPLETED] * 6
    assert {task.name for task in tasks} == {"build-site-page"}


def test_the_site_of_the_page_is_built_and_checked(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = PAGE_OF_RECIPES.read_text()
    program, recipe = (text.partition(f"```{language}\n")[2].partition("```")[0] for language in ("python", "yaml"))
    (folder / "notes").mkdir()
    (folder / "notes" / "notes.py").write_text(program)
    (folder / "notes.yaml").write_text(recipe)
    assert len([line for line in [*program.splitlines(), *recipe.splitlines()] if line]) <= 20
    assert main(["build", "notes"]) == 0 and main(["check", "notes"]) == 0
    assert "a fork was compared too\nchanged: notes.sqlite:notes\nnotes: alike" in capsys.readouterr().out


def test_a_folder_of_pages_is_a_site_without_a_build(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "pages").mkdir()
    (folder / "pages" / "index.html").write_text("<h1>Hello</h1>")
    (folder / "wiki.yaml").write_text("{kind: static, start: {folder: pages}, ready: {path: /index.html}}")
    assert main(["build", "wiki"]) == 0 and "kind static needs no build" in capsys.readouterr().out
    assert main(["check", "wiki"]) == 0
    assert "a fork was compared too\nchanged: nothing\nwiki: alike" in capsys.readouterr().out
    with open_env_sync(visit_of(find_recipe("wiki"))) as env:
        assert "Hello" in env.reset().observation.text


def test_a_wrong_name_or_recipe_is_refused_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["build", "pages"]) == 2 and "did you mean page?" in capsys.readouterr().err
    (folder / "page.yaml").write_text("kind: wsgi")
    assert main(["check", "page"]) == 2 and "start.application: is missing" in capsys.readouterr().err
    assert main(["list"]) == 0 and "start.application: is missing" in capsys.readouterr().out


def test_a_site_is_recorded_and_gets_a_recipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    served = folder / "pages"
    served.mkdir()
    (served / "index.html").write_text("<title>Home</title><link rel=icon href='data:,'>")
    (served / "more.html").write_text("<title>More</title><link rel=icon href='data:,'><img src=//cdn.example/a.png>")
    with serving(served) as address:
        command = ["record", "wiki", address, "--path", "/", "--path", "/more.html", "--to", str(folder)]
        assert main(command) == 0
    said = capsys.readouterr().out
    assert "wiki.har: 2 exchanges" in said and "cdn.example was not named; --host https://cdn.example" in said
    assert main(["list"]) == 0 and "wiki" in capsys.readouterr().out
    assert main(["build", "wiki"]) == 0 and "kind mirror needs no build" in capsys.readouterr().out
    assert main(["check", "wiki"]) == 0 and "wiki: alike" in capsys.readouterr().out
    assert find_recipe("wiki").start.address == address
    assert (
        main(command) == 1 and "/ cannot be recorded: 127.0.0.1 does not answer" in capsys.readouterr().err
    )  # nothing is served any more
    assert len(read_har(folder / "wiki.har").exchanges) == 2


def test_a_group_is_built_and_checked_by_its_members(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "town.yaml").write_text("kind: group\nsites: {page.town.example: page}\n")
    assert main(["build", "town"]) == 0 and "page: built in" in capsys.readouterr().out
    assert main(["list"]) == 0 and capsys.readouterr().out.splitlines()[1].split() == ["town", "group", "built"]
    assert main(["check", "town"]) == 0 and "town: alike" in capsys.readouterr().out
    assert main(["start", "town"]) == 2 and "start page" in capsys.readouterr().err


def test_a_person_can_open_what_start_prints(folder: Path) -> None:
    (folder / "docs.yaml").write_text("{kind: mirror, start: {recording: docs.har}}")
    request, answer = {"method": "GET", "url": "http://docs.example/guide"}, {"status": 200, "headers": []}
    exchange = {"request": request, "response": {**answer, "content": {"text": "the guide"}}}
    (folder / "docs.har").write_text(json.dumps({"log": {"entries": [exchange]}}))
    command = [sys.executable, "-m", "flows.sites", "start", "docs", "--path", "/guide"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            address = program.stdout.readline().removeprefix("docs: ").strip()
            assert httpx.Client(follow_redirects=True, trust_env=False).get(address).text == "the guide"
        finally:
            program.terminate()
