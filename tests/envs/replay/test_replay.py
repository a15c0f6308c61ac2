"""Replays of stored episodes: what differs is named, and the exported script does the same."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from playwright.async_api import async_playwright

from envs import EnvHost, LiveOptions, find_chromium, open_env
from envs.registry import find_task
from envs.replay import Difference, Replay, playwright_script, replay
from envs.sites import StaticServer
from envs.types import Trajectory
from flows.replay import main

from ..adapters.reference import SCRIPTS, reference

Host = tuple[BlockingPortal, EnvHost]


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(EnvHost(max_sessions=1)) as host:
        yield portal, host


def replayed(host: Host, trajectory: Trajectory, task: str) -> Replay:
    portal, shared = host

    async def play() -> Replay:
        async with shared.open(task, seed=trajectory.seed) as env:
            return await replay(trajectory, env)

    return portal.call(play)


@pytest.mark.parametrize("task", SCRIPTS)
def test_an_episode_replays_without_a_difference(host: Host, task: str) -> None:
    recorded = reference(task).trajectory
    result = replayed(host, recorded, task)
    assert result.difference is None and result.ended and result.steps == len(recorded.steps)
    assert result.replayed_reward == result.recorded_reward == recorded.reward.score


def test_the_first_difference_is_named_with_its_step_and_field(host: Host) -> None:
    recorded = reference("miniwob/enter-text").trajectory
    second = recorded.steps[1]
    field = second.observation.elements[0]
    other = second.observation.model_copy(
        update={"elements": (field.model_copy(update={"value": "Other"}), *second.observation.elements[1:])}
    )
    changed = recorded.model_copy(
        update={"steps": (recorded.steps[0], second.model_copy(update={"observation": other}))}
    )
    result = replayed(host, changed, "miniwob/enter-text")
    assert result.difference == Difference(1, "elements[0].value", "Other", "Nathalie")
    assert result.steps == 2 and result.replayed_reward == 1.0, "it goes on after the difference"


def test_an_episode_that_ends_earlier_says_so(host: Host) -> None:
    recorded = reference("miniwob/enter-text").trajectory
    longer = recorded.model_copy(update={"steps": (*recorded.steps, recorded.steps[-1])})
    result = replayed(host, longer, "miniwob/enter-text")
    assert result.difference is not None and "recorded" in str(result.difference) and result.steps == 2


FORM = """<!DOCTYPE html><title>Form</title><div id=log></div>
<form onsubmit="return false"><label>Name <input id=name></label><label>City <input id=city></label>
<label>Size <select id=size><option>S</option><option>M</option><option>L</option></select></label>
<label><input type=checkbox id=news> News</label><button>Send</button><button type=button>Same</button>
<button type=button>Same</button></form><div style="height: 2000px"></div>
<script>
const log = [], note = text => { log.push(text); document.title = log.join(" | ") }
for (const id of ["name", "city", "size", "news"])
  document.getElementById(id).onchange = event => note(id + "=" + (id === "news" ? event.target.checked : event.target.value))
document.querySelectorAll("button").forEach((button, index) => { button.onclick = () => note("button " + index)
  button.ondblclick = () => note("double " + index); button.oncontextmenu = event => { event.preventDefault(); note("menu " + index) } })
addEventListener("keydown", event => { if (event.key === "Escape") note("escape") })
</script>"""


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("form")
    (folder / "index.html").write_text(FORM)
    server = StaticServer(folder)
    with start_blocking_portal() as portal:
        portal.call(server.start)
        yield server.origin
        portal.call(server.close)


ACTIONS = (
    {"type": "type", "element": "Name", "text": 'Ann "quoted" \\ é'},
    {"type": "type", "element": "City", "text": "Rome", "enter": True},
    {"type": "select", "element": "Size", "text": "L"},
    {"type": "check", "element": "News"},
    {"type": "click", "element": "Send"},
    {"type": "click", "element": "Same 2"},
    {"type": "double_click", "element": "Send"},
    {"type": "click", "element": "Send", "button": "right"},
    {"type": "press", "key": "Escape"},
    {"type": "scroll", "direction": "down", "amount": 1.0},
    {"type": "answer", "text": "done"},
)
"""Actions on the form; an element is named by its label here, and its number when there are
several."""


async def recorded(address: str) -> tuple[Trajectory, str]:
    """The trajectory of `ACTIONS`, and the title that the page then had."""
    live = LiveOptions(addresses={"form": address})
    async with open_env("live/form/index.html", instruction="Fill it in.", horizon=20, live=live) as env:
        page = await env.reset()
        for action in ACTIONS:
            named = dict(action)
            if "element" in named:
                label, _, number = str(named["element"]).partition(" ")
                same = [one.index for one in page.observation.elements if one.text == label]
                named["element"] = same[int(number or 1) - 1]
            page = await env.step(named)
            assert page.observation.error is None, (action, page.observation.error)
        assert env.trajectory is not None and env.trajectory.final is not None
        return env.trajectory, env.trajectory.final.title


async def test_the_playwright_script_leaves_the_page_as_the_episode_did(form: str, tmp_path: Path) -> None:
    trajectory, title = await recorded(form)
    assert title.count("|") >= 7, "the page noted each action"
    task = find_task("live/form/index.html", instruction="Fill it in.")
    source = playwright_script(trajectory, task)
    scope: dict[str, Any] = {}
    exec(compile(source.replace("asyncio.run(main())", ""), "script", "exec"), scope)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=str(find_chromium()))
        page = await browser.new_page(viewport={"width": 1280, "height": 720})
        page.set_default_timeout(5000)
        await page.goto(f"{form}/index.html")
        await scope["play"](page)
        await asyncio.sleep(0.2)  # the wheel scrolls in the next frames
        assert await page.title() == title
        assert await page.evaluate("scrollY") == trajectory.final.scroll[1]  # type: ignore[union-attr]
        await browser.close()


def test_the_command_says_what_differs_and_writes_the_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = reference("miniwob/enter-text").trajectory
    file = tmp_path / "episode.json"
    file.write_text(recorded.model_dump_json())
    script = tmp_path / "episode.py"
    archive = tmp_path / "episode.har"
    assert main(["--trajectory", str(file), "--playwright", str(script), "--har", str(archive)]) == 0
    asked = [entry["request"]["url"] for entry in json.loads(archive.read_text())["log"]["entries"]]
    assert any(url.split("?")[0].endswith("/enter-text.html") for url in asked), asked
    said = capsys.readouterr().out
    assert "2 of 2 actions were carried out again\nfirst difference: none\nreward: recorded 1.0, replayed: 1.0" in said
    assert 'open_env("miniwob/enter-text", seed=7)' in script.read_text()
    changed = recorded.steps[0].observation.model_copy(update={"title": "Another"})
    other = recorded.model_copy(
        update={"steps": (recorded.steps[0].model_copy(update={"observation": changed}), recorded.steps[1])}
    )
    file.write_text(other.model_dump_json())
    assert main(["--trajectory", str(file)]) == 1
    assert "first difference: after 0 actions, title: recorded 'Another'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--trajectory", "nowhere.json"], "--trajectory: nowhere.json: No such file"),
        (["--trajectory", "{folder}/bad.json"], "bad.json is no trajectory"),
        (["--run", "{folder}"], "holds no episodes"),
        (["--run", "{folder}", "--episode", "e"], "is no folder of a run"),
    ],
)
def test_a_wrong_argument_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "bad.json").write_text("{}")
    assert main([argument.format(folder=tmp_path) for argument in arguments]) == 2
    assert words in capsys.readouterr().err
