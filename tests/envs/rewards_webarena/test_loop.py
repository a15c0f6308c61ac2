"""WebArena's tasks in the loop: imported with their evaluators, looked at in a real browser on a
server of this machine, graded afterwards."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs

import pytest

from envs.browser import BrowserPool
from envs.episodes import part_sources
from envs.episodes.read_end import read_end
from envs.rewards import Component, GradingEvidence
from envs.rewards.compose import compose
from envs.rewards.webarena import WebArenaParts, read_eval
from envs.sites import LiveOptions, make_site
from envs.tasks import TaskProblem
from envs.tasks.content import content_key
from envs.tasks.imports import import_tasks
from envs.tasks.rows import read_row
from envs.types import (
    Answer,
    BrowserError,
    Click,
    JudgeError,
    Recorded,
    RewardBundle,
    TaskError,
    Type,
    WebTask,
)
from envs.types.evidence import PageText
from envs.types.webarena import evaluators_hash, placed
from tasks_lib.config import RewardConfig, RolloutConfig
from tasks_lib.folder.task_sets import with_hashes
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.reward_stage import RewardStage
from tests.builders import make_observation, make_task
from tests.envs.rewards.played import trajectory
from tests.loopback import Quiet, serving
from tests.turns import make_turn
from training.records.groups import GroupSpec

FILE = Path(__file__).with_name("configs.json")
SEEN = PageText(address="http://git.test/x", text="3 stars for the garden")


def task_of(evaluation: dict[str, Any], **more: Any) -> WebTask:
    evaluators = read_eval(evaluation)
    fields = {"site": "gitlab", "horizon": 5, "evaluators": evaluators, "evaluators_hash": evaluators_hash(evaluators)}
    return make_task("webarena/1", **(fields | more))


def check(url: str, locator: str = "", **wanted: Any) -> dict[str, Any]:
    return {"url": url, "locator": locator, "required_contents": wanted}


ALL_THREE = {
    "eval_types": ["string_match", "url_match", "program_html"],
    "reference_answers": {"must_include": ["42", "oak"]},
    "reference_url": "__GITLAB__/garden",
    "program_html": [check("last", must_include=["garden", "roses"])],
}


async def graded(task: WebTask, answer: str, url: str, looked: tuple[PageText, ...] | None) -> RewardBundle:
    final = make_observation(url=url)
    evidence = GradingEvidence(final=final, answer=answer, looked=looked)
    parts = await WebArenaParts({"gitlab": "http://git.test/"}).parts(task, evidence)
    return compose({Component.TASK: parts}, {Component.TASK: 1.0})


async def test_the_bundle_has_the_partial_score_and_the_product() -> None:
    task = task_of(ALL_THREE)
    half = await graded(task, "it is 42", "http://git.test/garden", (SEEN,))
    # by hand: strings (1 + 0) / 2, address 1, pages 1/2; the mean of the three is 2/3
    assert half.score == pytest.approx((0.5 + 1 + 0.5) / 3) and half.binary == 0.0 and not half.passed
    assert [part.name for part in half.parts] == [
        "string_match/must_include 0", "string_match/must_include 1", "url_match/url_match", "program_html/program_html 0",
    ]  # fmt: skip
    roses = PageText(address="x", text="garden of roses")
    whole = await graded(task, "42 oak trees", "http://git.test/garden", (roses,))
    assert (whole.score, whole.binary, whole.passed) == (1.0, 1.0, True)


async def test_what_hangs_on_the_unknown_abstains_and_what_fails_anyway_does_not() -> None:
    task = task_of(ALL_THREE)
    away = PageText(address="", trouble="the browser died")
    unknown = await graded(task, "42 oak", "http://git.test/garden", (away,))
    assert unknown.score is None and unknown.abstained and "the browser died" in unknown.abstained
    failed = await graded(task, "nothing", "http://git.test/garden", (away,))
    assert failed.score == pytest.approx((0 + 1) / 2) and failed.binary == 0.0 and not failed.passed
    assert (await graded(task, "42 oak", "http://git.test/garden", None)).score is None
    fuzzy = task_of({"eval_types": ["string_match"], "reference_answers": {"fuzzy_match": ["a tree"]}})
    assert "there is none" in ((await graded(fuzzy, "oak", "", None)).abstained or "")


async def test_changed_evaluators_are_refused_and_others_have_no_parts() -> None:
    changed = task_of(ALL_THREE, evaluators_hash="0" * 64)
    with pytest.raises(JudgeError, match="were changed since"):
        await graded(changed, "", "", None)
    plain = task_of(ALL_THREE, evaluators=None, evaluators_hash="")
    assert await WebArenaParts().parts(plain, GradingEvidence()) == ()


async def test_a_run_does_not_go_on_with_changed_evaluators() -> None:
    clock: Any = lambda doing: nullcontext()  # noqa: E731
    stage = RewardStage(RewardConfig(), clock, sources=part_sources(), screenshot=lambda name: b"")
    with pytest.raises(JudgeError, match="were changed since"):
        await stage.grade(task_of(ALL_THREE, evaluators_hash="0" * 64), trajectory())


def test_evaluators_that_were_changed_after_they_were_frozen_are_bad_rows() -> None:
    task = task_of(ALL_THREE)
    assert with_hashes(task) == task and with_hashes(task.model_copy(update={"evaluators_hash": ""})) == task
    for changed in ({"evaluators_hash": "0" * 64}, {"evaluators": None}):
        row = task.model_copy(update=changed)
        _, problems = read_row(row.model_dump_json())
        assert [field for field, _ in problems] == ["evaluators_hash"]
    with pytest.raises(TaskError, match="evaluators of webarena/1"):
        with_hashes(task.model_copy(update={"evaluators_hash": "0" * 64}))
    other = task_of(ALL_THREE | {"reference_url": "__GITLAB__/other"})
    assert content_key(task) == content_key(task.model_copy(update={"task_id": "x"})) != content_key(other)


def test_imported_tasks_carry_their_evaluators(tmp_path: Path) -> None:
    items = list(import_tasks("webarena", FILE))
    assert len(items) == len(json.loads(FILE.read_text()))
    for item in items:
        evaluators = item.task.evaluators
        assert evaluators is not None and item.task.evaluators_hash == evaluators_hash(evaluators)
        assert evaluators == read_eval(item.reference["eval"])
        assert read_row(item.task.model_dump_json()) == (item.task, [])
        assert "storage_state" not in item.task.model_dump_json()
    rows = json.loads(FILE.read_text())
    rows[0]["eval"] = {"eval_types": ["url_match"], "reference_url": ""}
    rows[1]["eval"]["eval_types"] = ["smell"]
    (tmp_path / "bad.json").write_text(json.dumps(rows))
    problems: list[TaskProblem] = []
    good = list(import_tasks("webarena", tmp_path / "bad.json", on_problem=problems.append))
    assert len(good) == len(rows) - 2
    assert [problem.field for problem in problems] == ["eval", "eval.eval_types.0"]


def test_placeholders_are_names_of_sites() -> None:
    evaluators = read_eval(ALL_THREE | {"program_html": [check('__SHOPPING_ADMIN__/a"b', must_include=["x"])]})
    there = placed(evaluators, {"shopping_admin": "http://h:7780/admin/", "gitlab": "http://git.test"})
    assert there.program_html[0].url == 'http://h:7780/admin/a"b' and there.reference_url == "http://git.test/garden"
    assert placed(evaluators, {}) == evaluators and placed(evaluators, {"map": "http://m"}) == evaluators


class Forge(Quiet):
    """A little site with a log-in: ``/star`` is remembered by a cookie and shown by ``/me``."""

    PAGES: dict[str, str] = {  # noqa: RUF012
        "/": '<title>Forge</title><a href="/star">Star the garden</a>',
        "/star": "<title>Starred</title><p>Thank you</p><script>confirm('Leave?')</script>",
        "/late": """<p class="n">1</p><button onclick="setTimeout(() => {document.getElementsByClassName('n')[0].textContent = '2'}, 300)">x</button>
<script>
Document.prototype.querySelector = () => ({outerText: "99", click: () => {}}); setTimeout(() => document.body.append("loaded"), 900)</script>""",
    }

    def do_GET(self) -> None:
        starred = "starred" in (self.headers["Cookie"] or "")
        pages = self.PAGES | {"/me": f"<p class='stars'>{'garden &amp; roses' if starred else 'none'}</p>"}
        status = {"/broken": 500}.get(self.path, 200 if self.path in pages else 404)
        body = pages.get(self.path, "<p>No such page</p>")
        cookies = {"Set_Cookie": "id=starred; HttpOnly"} if self.path == "/star" else {}
        self.answer(status, body, **cookies)


@pytest.fixture(scope="module")
def forge() -> Iterator[str]:
    with serving(Forge) as origin:
        yield origin


CHECKS = [
    check("__GITLAB__/me", "document.querySelector('.stars').outerText", exact_match="garden & roses"),
    check("last", "document.title", exact_match="Starred"),
    check("__GITLAB__/me", "", must_include=["roses"]),
    check("__GITLAB__/gone", "document.querySelector('.stars').outerText", exact_match="garden"),
    check("__GITLAB__/late", "document.querySelector('.n').outerText", exact_match="2")
    | {"prep_actions": ["document.querySelector('button').click()"]},
    check("__GITLAB__/late", "", must_include=["loaded"]),
    check("__GITLAB__/broken", "", must_include=["x"]),
    check("http://other.example/", "", must_include=["x"]),
    check("__MAP__/", "", must_include=["x"]),
    check("__GITLAB__/me", "func:shopping_get_latest_order_url()", must_include=["x"]),
]


async def test_pages_are_looked_at_with_the_episodes_log_in_and_graded_later(forge: str) -> None:
    task = task_of({"eval_types": ["program_html"], "program_html": CHECKS})
    addresses = {"gitlab": forge}

    async def episode(clicks: int) -> Recorded:
        async with (
            BrowserPool(max_sessions=1) as pool,
            pool.lease(make_site("gitlab", LiveOptions(addresses))) as session,
        ):
            frame = await session.reset(task, 0)
            for _ in range(clicks):
                frame = await session.step(Click(element=1))
            if not frame.observation.dialog:
                await session.step(Answer(text="done"))
            recorded = await read_end(session, task, LiveOptions(addresses))
            assert recorded is not None
            with pytest.raises(BrowserError, match="no episode"):
                await session.step(Click(element=1))
            return recorded

    async def values(recorded: Recorded) -> list[float | None]:
        evidence = GradingEvidence(looked=recorded.looked)
        return [part.value for part in await WebArenaParts(addresses).parts(task, evidence)]

    done, not_done = await asyncio.gather(episode(1), episode(0))
    assert Recorded.model_validate_json(done.model_dump_json(), strict=True) == done
    assert await values(done) == [1, 1, 1, 0, 1, 1, None, None, None, None]
    assert done.looked is not None
    assert [words in each.trouble for words, each in zip(
        ("answered 500", "may not be reached: not_listed", "__MAP__ is not known", "no helper"), done.looked[6:], strict=True
    )] == [True] * 4  # fmt: skip
    assert (await values(not_done))[:4] == [0, 0, 0, 0]


class Desk(Quiet):
    """Notes, one at each path, that are kept when they are saved."""

    notes: dict[str, str] = {}  # noqa: RUF012

    FORM = """<title>Note</title><form method="post"><textarea name="text">%s</textarea><button>Save</button></form>"""
    WAYS: dict[str, str] = {  # noqa: RUF012
        "plain": FORM,
        "guarded": FORM + "<script>addEventListener('beforeunload', (event) => event.preventDefault())</script>",
        "cached": """<title>Note</title><textarea>%s</textarea><button onclick="fetch('/store' + location.pathname, {method: 'POST', body:
            new URLSearchParams({text: document.querySelector('textarea').value})})">Save</button>""",
        "routed": """<title>Note</title><div></div><script>
            const draw = () => { document.querySelector('div').innerHTML = '<form method="post"><textarea name="text">'
              + (location.hash === '#/edit' ? %r : '') + '</textarea><button>Save</button></form>' };
            addEventListener('hashchange', draw); draw()</script>""",
    }

    def do_GET(self) -> None:
        way = self.path.split("/")[1]
        kept = {"Cache_Control": "max-age=600"} if way == "cached" else {}
        self.answer(200, self.WAYS.get(way, "<p>no note</p>%s") % self.notes.get(self.path, ""), **kept)

    def do_POST(self) -> None:
        text = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode()).get("text", [""])[0]
        self.notes[self.path.removeprefix("/store")] = text
        self.answer(200, f"<title>Saved</title><p>Saved</p><textarea>{text}</textarea>")  # a result at the same address


NOTE = "document.querySelector('textarea').value"
WAYS = [("plain", False), ("plain", True), ("guarded", False), ("cached", True), ("routed", False)]


async def test_what_was_typed_and_never_saved_is_not_on_the_evaluators_page() -> None:
    """As in the benchmark: the page is asked for again, except where the check is about the page as
    it was left."""

    async def graded_way(pool: BrowserPool, origin: str, way: str, saved: bool) -> list[float | None]:
        addresses, place = {"gitlab": origin}, f"/{way}/{saved}" + ("#/edit" if way == "routed" else "")
        checks = [
            check(f"__GITLAB__{place}", NOTE, must_include=["milk"]),
            check("last", NOTE, must_include=["milk"]),
            check(f"__GITLAB__{place}", "document.title", exact_match="Note"),
        ]
        evaluation = {
            "eval_types": ["url_match", "program_html"],
            "program_html": checks,
            "reference_url": f"__GITLAB__{place}",
        }
        task = task_of(evaluation, path=place)
        async with pool.lease(make_site("gitlab", LiveOptions(addresses))) as session:
            frame = await session.reset(task, 0)
            fields = {element.tag: element.index for element in frame.observation.elements}
            frame = await session.step(Type(element=fields["textarea"], text="milk"))
            if saved:
                frame = await session.step(Click(element=fields["button"]))
            recorded = await read_end(session, task, LiveOptions(addresses))
        assert recorded is not None
        evidence = GradingEvidence(final=frame.observation, looked=recorded.looked)
        return [part.value for part in await WebArenaParts(addresses).parts(task, evidence)]

    with serving(Desk) as origin:
        async with BrowserPool(max_sessions=len(WAYS)) as pool:
            found = await asyncio.gather(*(graded_way(pool, origin, *way) for way in WAYS))
    # url_match, the page anew, the page as it was left, and its title anew
    assert dict(zip(WAYS, found, strict=True)) == {(way, saved): [1, saved, 1, 1] for way, saved in WAYS}


async def test_an_episode_from_log_in_to_reward(forge: str, tmp_path: Path) -> None:
    """The runner, the browser and the reward stage of a worker; the policy is two turns that were
    written down."""
    login = tmp_path / "login.json"
    cookie = {
        "name": "id",
        "value": "starred",
        "domain": "127.0.0.1",
        "path": "/",
        "expires": -1,
        "httpOnly": True,
        "sameSite": "Lax",
    }
    login.write_text(json.dumps({"cookies": [cookie], "origins": []}))
    evaluation = {
        "eval_types": ["url_match", "program_html", "string_match"],
        "reference_url": "__GITLAB__/late",
        "program_html": [
            check("__GITLAB__/me", "document.querySelector('.stars').outerText", must_include=["garden", "oak"])
        ],
        "reference_answers": {"exact_match": "Paris"},
    }
    live = LiveOptions({"gitlab": forge}, logins={"gitlab": str(login)})
    said = iter([f'{{"action": "goto", "url": "{forge}/late"}}', '{"action": "answer", "text": "paris"}'])

    async def turn(situation: Any) -> Any:
        return make_turn(situation, next(said))

    task, site = task_of(evaluation), make_site("gitlab", live)
    await site.start()
    rollout = RolloutConfig(episode_deadline=60.0, attempts=1, repeats=0)
    clock: Any = lambda doing: nullcontext()  # noqa: E731
    turns: Any = SimpleNamespace(run=turn)
    actor: Any = SimpleNamespace(policy_version=0)
    async with BrowserPool(max_sessions=1) as pool:
        runner = EpisodeRunner(pool, {"gitlab": site}, actor, turns, clock, rollout, live)
        (ended,) = await runner.run(GroupSpec(group_id="e0-g0", task=task, seeds=(0,)), 0, SlotStatus())
    stage = RewardStage(RewardConfig(), clock, sources=part_sources(live.addresses), screenshot=lambda name: b"")
    trajectory = await stage.grade(task, ended)
    assert trajectory.error is None and trajectory.stop_reason == "answer", trajectory.error
    assert [(part.name, part.value) for part in trajectory.reward.parts] == [
        ("string_match/exact_match", 1.0), ("url_match/url_match", 1.0), ("program_html/program_html 0", 0.5),
    ]  # fmt: skip
    assert trajectory.reward.score == pytest.approx(2.5 / 3) and trajectory.reward.binary == 0.0
    assert "starred" not in trajectory.model_dump_json(), "the log-in's value is in no record"
