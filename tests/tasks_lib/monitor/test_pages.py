"""The pages by keyboard alone, on a wide and a narrow screen, and as axe-core judges them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from tasks_lib.monitor.browse import browser_of
from tasks_lib.monitor.live_server import LiveMonitor
from tasks_lib.monitor.live_source import FolderSource
from tasks_lib.monitor.run_figures import RunFigures
from tasks_lib.worker.live import Doing, SlotState, WorkerState
from training.ledger.store import RunStore, atomic_write_bytes

SERIOUS = ("serious", "critical")
"""Violations that a page may not have, by axe-core's own words."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, synthetic: Any) -> Path:
    """Two runs, of which one has a worker with cells in all colours."""
    root = tmp_path_factory.mktemp("runs")
    synthetic.SyntheticRun(root / "two", iterations=1, every=1, finished=False)
    store = synthetic.SyntheticRun(root / "one", iterations=2, every=2, finished=False).store
    slots = [
        SlotState(
            episode_id=f"i000006-g{at:04d}-s00-a0",
            kind=f"kind-{at}",
            step=at,
            horizon=20,
            doing=doing,
            seconds=1.5,
            version=6,
            slow=doing is Doing.TURN,
        )
        for at, doing in enumerate(Doing)
        if doing is not Doing.IDLE
    ]
    state = WorkerState(
        worker="host-1",
        time=time.time(),
        phase="i000006",
        episodes=8,
        finished={"done": 3, "horizon": 1},
        slots=tuple(slots),
        browsers={"browsers": [{"state": "READY"}]},
    )
    atomic_write_bytes(store.live_path("host-1"), state.model_dump_json().encode())
    return root


@pytest.fixture
def address(root: Path, serve: Callable[..., str]) -> str:
    """Address of the monitor of a run, and of the browser of runs."""
    store = RunStore(root / "one")
    monitor = LiveMonitor(FolderSource(store), RunFigures(store))
    return serve([*monitor.routes(), *browser_of(root).routes()], monitor.polling, monitor.end)


@pytest.fixture(params=[1280, 400])
def page(chromium: Browser, watch: Callable[[Page], list[str]], request: pytest.FixtureRequest) -> Iterator[Page]:
    """A page of a wide and of a narrow window, which complains of nothing."""
    page = chromium.new_page(viewport={"width": request.param, "height": 800})
    complaints = watch(page)
    yield page
    page.close()
    assert complaints == []


def violations(page: Page) -> list[str]:
    """What axe-core finds serious on the page, in light and in dark."""
    worst = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        for violation in Axe().run(page).response["violations"]:
            if violation["impact"] in SERIOUS:
                worst += [f"{scheme}: {violation['id']}: {node['html']}" for node in violation["nodes"]]
    width = page.viewport_size["width"] if page.viewport_size else 0
    if page.evaluate("document.documentElement.scrollWidth") > width:
        worst.append("the page is wider than its window")
    return worst


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus, which must then be seen."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"Tab does not come to {selector}")


def wait_until(holds: Callable[[], Any]) -> None:
    """Wait for a state, however slow the machine is."""
    deadline = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_monitor_is_used_by_keyboard_alone(address: str, page: Page) -> None:
    def active(what: str) -> Any:
        return page.evaluate(f"document.activeElement.{what}")

    page.goto(address)
    page.wait_for_selector("#cells button")
    page.wait_for_selector("#state[data-state='stopped']")
    assert violations(page) == []
    page.keyboard.press("Tab")
    assert active("textContent") == "Skip to the environments"
    page.keyboard.press("Enter")
    tab_to(page, "#cells button")
    assert active("textContent") == "R1"
    page.keyboard.press("ArrowRight")
    assert active("textContent") == "B2"
    page.keyboard.press("Enter")
    page.wait_for_selector("#episode[open]")
    wait_until(lambda: page.inner_text("#episode-title") == "kind-2")
    assert violations(page) == []
    page.keyboard.press("ArrowRight")
    wait_until(lambda: page.inner_text("#episode-title") == "kind-3")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    wait_until(lambda: page.inner_text("#episode-title") == "kind-1")
    page.keyboard.press("Escape")
    wait_until(lambda: active("textContent") == "R1")
    tab_to(page, "aside button[data-figure^='engine.']")
    figure = active("textContent")
    page.keyboard.press("Enter")
    page.wait_for_selector("#curve[open] canvas")
    assert page.inner_text("#curve-title") == figure
    assert violations(page) == []
    page.keyboard.press("Escape")
    wait_until(lambda: active("textContent") == figure)


def test_the_browser_of_runs_is_used_by_keyboard_alone(address: str, page: Page) -> None:
    page.goto(f"{address}/runs")
    page.wait_for_selector("td.name a")
    for run in ("one", "two"):
        tab_to(page, f"input[aria-label='Compare {run}']")
        page.keyboard.press("Space")
        page.reload()  # the address holds what is ticked
        page.wait_for_selector("td.name a")
    page.wait_for_selector("#keys")
    page.wait_for_selector(".curves canvas")
    assert violations(page) == []
    tab_to(page, "td.name a[href='/runs/one']")
    page.keyboard.press("Enter")
    page.wait_for_selector(".episodes-list a")
    assert violations(page) == []
    tab_to(page, ".episodes-list")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    opened = page.evaluate("document.activeElement.pathname")
    page.keyboard.press("Enter")
    page.wait_for_selector(".detail .step img")
    assert page.evaluate("location.pathname") == opened
    assert violations(page) == []
    tab_to(page, ".tools select")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".pair .detail:nth-child(2)")
    assert page.evaluate("location.pathname") == opened
    assert violations(page) == []
