"""The front door: one environment for a task, its reward the run's own, in a real browser that all
tests share."""

from __future__ import annotations

import asyncio
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest
from anyio.from_thread import start_blocking_portal

import envs
from envs import (
    Answer,
    BrowserError,
    BrowserPool,
    Click,
    ConfigError,
    Episode,
    Goto,
    StaticSite,
    StepResult,
    Submit,
    TaskError,
    WebEnv,
    list_tasks,
    load_tasks,
    make_pool,
    open_env,
    open_env_sync,
)
from envs.browser import WebSession
from envs.bundled.oracles import oracle_of
from envs.episodes import NOT_GRADED, part_sources
from envs.registry import families, find_task
from envs.rewards import score
from envs.rewards.compose import WEIGHTS
from envs.rewards.functions import FunctionSource
from envs.sites import StaticServer
from envs.tasks import save_tasks
from envs.types import SiteError, StopReason, Trajectory
from tasks_lib.config import RewardConfig
from tasks_lib.worker.reward_stage import RewardStage

ROOT = Path(__file__).resolve().parents[2]
Play = Callable[..., Any]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    """``play(scenario, task, **options)``: run ``await scenario(env)`` on the module's one
    browser."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(make_pool(max_sessions=2)) as pool:

        async def run(scenario: Callable[[WebEnv], Awaitable[Any]], task: Any, options: dict[str, Any]) -> Any:
            async with open_env(task, **{"pool": pool, **options}) as env:
                return await scenario(env)

        yield lambda scenario, task, **options: portal.call(run, scenario, task, options)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of pages that declare nothing, as those of the open web."""
    folder = tmp_path_factory.mktemp("web")
    (folder / "index.html").write_text("<title>Home</title><a href='next.html'>Next</a>")
    (folder / "next.html").write_text("<title>Next</title><p>Arrived.</p>")
    server = StaticServer(folder)
    with start_blocking_portal() as portal:
        portal.call(server.start)
        yield server.origin
        portal.call(server.close)


def graded_by_a_run(env: WebEnv) -> Trajectory:
    """The episode of an environment, graded again by the reward stage of a run."""
    assert env.trajectory is not None
    stage = RewardStage(
        RewardConfig(),
        lambda _: nullcontext(),  # type: ignore[arg-type]
        sources=part_sources(),
        screenshot=lambda name: b"",
    )
    ungraded = env.trajectory.model_copy(update={"reward": score([], abstained=NOT_GRADED)})
    return asyncio.run(stage.grade(env.task, ungraded))


CLICK = (
    Click(element=1),
    {"type": "click", "element": 1},
    {"action": "click", "element": 1},
    "Thought: it.\nclick [1]",
)


def test_an_action_may_be_an_object_a_dictionary_or_a_text(play: Play) -> None:
    async def scenario(env: WebEnv) -> list[tuple[StepResult, StepResult, Trajectory]]:
        ends = []
        for action in CLICK:
            first = await env.reset()
            last = await env.step(action)
            assert env.trajectory is not None
            ends.append((first, last, env.trajectory))
        return ends

    for first, last, trajectory in play(scenario, "miniwob/click-test", seed=7):
        assert (first.reward, first.done, first.stop) == (0.0, False, None)
        assert first.screenshot[:2] == b"\xff\xd8" and first.observation.instruction == "Click the button."
        assert "screenshot" not in repr(first) and "Click the button." in repr(first), "a prompt shows no bytes"
        assert (last.reward, last.done, last.stop, last.abstained) == (1.0, True, StopReason.DONE, None)
        assert [step.action for step in trajectory.steps] == [Click(element=1)] and trajectory.seed == 7


def test_what_is_no_action_is_shown_to_the_policy_or_ends_the_episode(play: Play) -> None:
    async def scenario(env: WebEnv) -> tuple[StepResult, StepResult | None]:
        await env.reset()
        first = await env.step("I do not know.")
        return first, None if first.done else await env.step({"type": "clik", "element": 1})

    first, second = play(scenario, "miniwob/click-button", seed=7, horizon=5)
    assert not first.done and "not of the form" in first.observation.error
    assert second is not None and "no such action" in second.observation.error
    ended, _ = play(scenario, "miniwob/click-button", seed=7, horizon=5, stop_on_invalid=True)
    assert (ended.reward, ended.stop) == (0.0, StopReason.INVALID_ACTION)


def test_a_rubric_grades_as_in_a_run(play: Play) -> None:
    async def solve(env: WebEnv) -> tuple[StepResult, Any]:
        step, history, oracle = await env.reset(), [], oracle_of(env.task)
        while not step.done:
            action = oracle(step.observation, history)
            history.append(action)
            step = await env.step(action)
        return step, env

    async def fail(env: WebEnv) -> tuple[StepResult, Any]:
        await env.reset()
        return await env.step(Answer(text="no idea")), env

    for scenario, reward in ((solve, 1.0), (fail, 0.0)):
        step, env = play(scenario, "bundled/shop-ask")
        assert (step.reward, step.abstained) == (reward, None)
        again = graded_by_a_run(env)
        assert again.reward.score == reward and again.reward.rubric_hash == env.task.rubric_hash
        assert [part.value for part in again.reward.parts] == [part.value for part in env.reward.parts]


def test_a_submitted_page_is_compared_with_its_design(play: Play) -> None:
    async def scenario(env: WebEnv) -> list[float | None]:
        html = (ROOT / "datasets/design2code/1.html").read_text()
        scores = []
        for page in (html, "<p>Nothing of it"):
            await env.reset()
            scores.append((await env.step(Submit(html=page))).reward)
        return scores

    good, bad = play(scenario, "design2code/1")
    assert good == 1.0 and bad is not None and bad < 0.5


def test_a_live_page_has_no_reward_of_its_own_and_a_function_gives_one(play: Play, web: str) -> None:
    async def scenario(env: WebEnv) -> StepResult:
        await env.reset()
        await env.step(Click(element=1))
        return await env.step(Answer(text="Arrived"))

    ended = play(scenario, f"{web}/index.html", instruction="Go to the next page.")
    assert ended.reward is None and ended.stop is StopReason.ANSWER and "no end and no reward" in ended.abstained

    def reached(episode: Episode) -> float:
        assert episode.final is not None and len(episode.steps) == 2 and episode.answer == "Arrived"
        return 0.75 if episode.final.title == "Next" else 0.0

    ended = play(scenario, f"{web}/index.html", instruction="Go to the next page.", reward=reached)
    assert (ended.reward, ended.abstained) == (0.75, None)


def test_a_function_takes_the_place_of_what_the_page_says(play: Play) -> None:
    async def scenario(env: WebEnv) -> StepResult:
        await env.reset()
        return await env.step(Click(element=1))

    for value in (0.25, -0.5, None):
        ended = play(scenario, "miniwob/click-test", seed=7, reward=lambda episode, value=value: value)
        assert ended.reward == value and (ended.abstained is None) == (value is not None)
    with pytest.raises(ConfigError, match=r"reward function .* failed .* miniwob/click-test: KeyError: 'nope'"):
        play(scenario, "miniwob/click-test", reward=lambda episode: {}["nope"])


def test_a_failing_browser_or_site_is_no_reward(play: Play, web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(env: WebEnv) -> tuple[StepResult, StepResult]:
        await env.reset()

        async def step(session: object, action: object) -> None:
            raise BrowserError("Chromium went away")

        monkeypatch.setattr(WebSession, "step", step)
        failed = await env.step(Click(element=1))
        monkeypatch.undo()
        await env.reset()
        return failed, await env.step(Click(element=1))

    failed, after = play(broken, "miniwob/click-test", seed=7)
    assert (failed.reward, failed.done, failed.abstained) == (None, True, "Chromium went away")
    assert failed.stop is StopReason.BROWSER_ERROR and after.reward == 1.0

    async def missing(env: WebEnv) -> StepResult:
        return await env.reset()

    page = play(missing, f"{web}/missing.html", instruction="Read it.", reward=lambda episode: 1.0)
    assert page.reward is None and page.done and "answered 404" in page.abstained
    with socket.create_server(("127.0.0.1", 0)) as server:
        dead = f"127.0.0.1:{server.getsockname()[1]}"
    page = play(missing, f"http://{dead}/missing.html", instruction="Read it.", reward=lambda episode: 1.0)
    assert page.reward is None and f"nothing answers at {dead}; start the site" in page.abstained


def test_an_address_reaches_its_own_origin_alone(play: Play, web: str) -> None:
    async def scenario(env: WebEnv) -> StepResult:
        await env.reset()
        return await env.step(Goto(url="http://127.0.0.1:9/"))

    step = play(scenario, web, instruction="Leave.")
    assert step.observation.error and not step.done


def test_a_page_of_an_own_folder_is_opened_by_its_path(play: Play, tmp_path: Path) -> None:
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "start.html").write_text("<title>Start</title><button>Go</button>")

    async def scenario(env: WebEnv) -> tuple[str, str]:
        step = await env.reset()
        return step.observation.title, env.task.task_id

    site = StaticSite("mine", tmp_path)
    options = {"site": site, "instruction": "Press Go."}
    assert play(scenario, "pages/start.html", **options) == ("Start", "mine/pages/start.html")
    with pytest.raises(TaskError, match=r"mine/start\.html: the page does not say what to do; give instruction="):
        open_env("start.html", site=site)
    for wrong in ("start.html", "file:///home/me/start.html"):
        with pytest.raises(TaskError, match=r"site=StaticSite"):
            open_env(wrong, instruction="Press Go.")
    with pytest.raises(
        BrowserError,
        match=r"cannot begin: .*pages/star\.html is not there; did you mean start\.html\? correct the path",
    ):
        play(scenario, "pages/star.html", **options)


def test_a_tab_of_its_own_ends_no_episode_of_miniwob(play: Play) -> None:
    async def scenario(env: WebEnv) -> list[StepResult]:
        await env.reset()
        away = await env.step({"type": "new_tab"})
        back = await env.step({"type": "switch_tab", "tab": 1})
        last = await env.step(Click(element=1))
        await env.reset()
        return [away, back, last, *[await env.step({"type": "new_tab"}) for _ in range(4)]]

    away, back, last, *tabs = play(scenario, "miniwob/click-test", horizon=4, repeats=0)
    assert [(step.done, step.abstained) for step in (away, back, last)] == [(False, None), (False, None), (True, None)]
    assert away.observation.instruction == back.observation.instruction == "Click the button."
    assert last.reward == 1.0 and tabs[-1].stop is StopReason.HORIZON and tabs[-1].reward == 0.0


def test_calls_out_of_order_say_what_to_call(play: Play) -> None:
    async def scenario(env: WebEnv) -> None:
        with pytest.raises(TaskError, match=r"call reset\(\) first"):
            await env.step(Click(element=1))
        await env.reset()
        with pytest.raises(ConfigError, match="3 is no action"):
            await env.step(3)  # type: ignore[arg-type]
        await env.step(Click(element=1))
        with pytest.raises(TaskError, match=r"the episode is over \(done\): call reset"):
            await env.step(Click(element=1))
        with pytest.raises(TaskError, match=r"seed 50000 is not one of miniwob/click-test: .*train 200000 to 1199999"):
            await env.reset(seed=50_000)

    play(scenario, "miniwob/click-test", seed=7)
    with pytest.raises(BrowserError, match="use `async with open_env"):
        asyncio.run(open_env("miniwob/click-test").reset())


def is_alive(pid: int) -> bool:
    """Whether it runs; a dead one whose parent ended is a zombie until the system removes it."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_without_await_inside_a_running_loop() -> None:
    before = set(psutil.Process().children(recursive=True))
    with open_env_sync("miniwob/click-test", seed=7) as env:
        env.reset()
        pids = [child.pid for child in set(psutil.Process().children(recursive=True)) - before]
        ended = env.step("click [1]")
    assert ended.reward == 1.0 and env.reward is not None and env.reward.passed
    assert pids and not any(map(is_alive, pids)), "Chromium is left behind"
    assert not set(psutil.Process().children()) - before
    env.close()
    with pytest.raises(BrowserError, match="the environment is closed"):
        env.reset()
    with pytest.raises(BrowserError, match="own event loop"):
        open_env_sync("miniwob/click-test", pool=make_pool())


def test_a_script_that_forgets_to_close_ends_and_leaves_no_browser() -> None:
    code = (
        "import psutil; from envs import open_env_sync; env = open_env_sync('miniwob/click-test'); env.reset();"
        "print(psutil.Process().children()[0].pid)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    assert not is_alive(int(done.stdout))


@pytest.mark.parametrize(
    ("task", "words"),
    [
        ("miniwob/clik-test", "did you mean miniwob/click-test"),
        ("miniwob/", "envs.list_tasks('miniwob') gives all"),
        ("bundled/shop-asks", "did you mean bundled/shop-ask"),
        ("design2code/99", "gives all 8"),
        ("minwob/click-test", "did you mean miniwob"),
        ("click-test", "did you mean miniwob/click-test? open_env takes miniwob/…"),
        ("clik-test", "did you mean miniwob/click-test"),
        ("shop-open", "did you mean bundled/shop-open? "),
        ("trac-file", "did you mean trac/trac-file? "),
        ("shop/shop-open/1", "open_env takes miniwob/…, bundled/…, design2code/…, oscar/…, trac/…, live/HOST"),
        ("minwob", "did you mean miniwob? "),
        ("live/example.com", "give instruction="),
        ("https://example.com/a", "give instruction="),
        ("ftp://example.com/a", "is no http or https address"),
        ("file:///a/index.html", 'StaticSite("mine", "FOLDER")'),
        ("/a/index.html", "/a/index.html: files are served"),
        ("../a/index.html", "../a/index.html: files are served"),
    ],
)
def test_an_unknown_task_is_refused_with_what_is_near(task: str, words: str) -> None:
    with pytest.raises(TaskError) as refused:
        open_env(task)
    assert words in str(refused.value)


def test_every_listed_task_is_found_and_is_what_the_files_hold() -> None:
    listed = list_tasks()
    assert len(listed) == len(set(listed)) == sum(len(list_tasks(family)) for family in families())
    for family in ("miniwob", "design2code", "bundled", "oscar", "trac"):
        prefix = "" if family in ("miniwob", "design2code") else f"{family}/"
        stored = {prefix + task.task_id: task for task in load_tasks(ROOT / f"datasets/tasks/{family}.jsonl")}
        assert {task_id: find_task(task_id) for task_id in list_tasks(family)} == stored


def test_a_recipe_of_ones_own_lists_its_tasks_and_says_how_it_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLWRIGHT_SITES", str(tmp_path))
    monkeypatch.setenv("ROLLWRIGHT_SITE_BUILDS", str(tmp_path / "builds"))
    shipped = find_task("trac/trac-open/1")
    tasks = [shipped.model_copy(update={"task_id": name, "site": "notes"}) for name in ("notes/add/1", "read/2")]
    save_tasks(tmp_path / "mine.jsonl", tasks)
    (tmp_path / "notes.yaml").write_text("kind: wsgi\nstart: {application: 'notes:app'}\ntasks: mine.jsonl\n")
    assert list_tasks("notes") == ["notes/add/1", "notes/read/2"] == list_tasks()[-2:]
    assert find_task("notes/read/2") == tasks[1]
    for task, site in (("notes/add/1", "notes"), ("oscar/oscar-open", "oscar")):
        with pytest.raises(SiteError, match=f"python -m flows.sites build {site}"), open_env_sync(task) as env:
            env.reset()


def test_the_ids_that_the_documentation_names_are_there() -> None:
    named = re.findall(
        r"`((?:miniwob|bundled|design2code|oscar|trac)/[^`]+)`", (ROOT / "docs/environments.md").read_text()
    )
    assert len(named) >= 4 and all(find_task(task_id) for task_id in named)


def test_a_seed_chooses_among_the_tasks_of_a_kind() -> None:
    for task_id in list_tasks("bundled"):
        task = find_task(task_id)
        (seeds,) = task.seeds.values()
        found = find_task(f"bundled/{task.kind}", seed=seeds.start)
        assert found.kind == task.kind and seeds in found.seeds.values()
        assert open_env(task_id).seed == seeds.start


def test_a_live_host_and_an_address_make_the_same_task() -> None:
    by_host, by_address = (
        open_env(each, instruction="Look.") for each in ("live/example.com/a?b=1", "https://example.com/a?b=1")
    )
    assert by_host.task == by_address.task
    assert (by_host.task.site, by_host.task.path) == ("example.com", "/a?b=1")
    with pytest.raises(TaskError, match="on this machine"):
        open_env("live/127.0.0.1:8080", instruction="Look.")


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda episode: 1.5, "gave 1.5"),
        (lambda episode: float("nan"), "gave nan"),
        (lambda episode: "good", "gave 'good'"),
        (lambda episode: 1 / 0, "ZeroDivisionError"),
    ],
)
async def test_a_reward_function_that_gives_no_reward_is_named(function: Any, words: str) -> None:
    def polite(episode: Episode) -> Any:
        return function(episode)

    task, evidence = find_task("miniwob/click-test"), Any
    with pytest.raises(ConfigError) as refused:
        await FunctionSource(polite).parts(task, evidence)  # type: ignore[arg-type]
    assert "polite" in str(refused.value) and words in str(refused.value) and task.task_id in str(refused.value)


def test_weights_are_those_of_a_run() -> None:
    assert {name: weight for name, weight in RewardConfig().weights().items() if weight} == dict(WEIGHTS)
    with pytest.raises(ConfigError, match=r"no reward 'lenght'.*module:function"):
        open_env("miniwob/click-test", weights={"lenght": 0.1})


def test_options_of_a_pool_are_checked() -> None:
    assert isinstance(make_pool(marks=True), BrowserPool)
    with pytest.raises(ConfigError, match="did you mean max_sessions"):
        make_pool(max_session=3)


def test_importing_the_package_imports_almost_nothing() -> None:
    code = (
        "import sys; before = set(sys.modules); import envs; new = set(sys.modules) - before; print(len(new), 'pydantic' in new);"
        "from envs import open_env, Click; print(*({'torch', 'prefect', 'playwright', 'dask'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first.endswith(" False") and int(first.split()[0]) < 10 and second == ""


def test_every_public_name_is_there() -> None:
    assert {name for name in envs.__all__ if getattr(envs, name, None) is None} == set()
    with pytest.raises(AttributeError, match="no attribute 'open_envs'"):
        envs.open_envs  # noqa: B018
