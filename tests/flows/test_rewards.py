"""From a flow to the report: a group that is graded by program and by a judge, and the evidence of
both where a person looks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from envs.browser.process.chromium import find_chromium
from envs.rewards import read_rubric
from envs.tasks import load_tasks, save_tasks
from envs.types import ConfigError, rubric_hash
from flows.evaluate import evaluate
from flows.regrade import regrade
from flows.train import train
from tasks_lib.config import EvaluateConfig, TrainConfig, resolve, resolve_path
from tasks_lib.config.parameters import parameters_of
from tasks_lib.folder.regraded import Regraded, read_log
from tasks_lib.regrading.config import RegradeConfig
from tasks_lib.report import build_report
from tests.builders import stored_blob
from tests.envs.rewards_judge.fake_judge import FakeJudge, fake_judge, judged, purpose_of, says
from training.ledger.store import RunStore, read_json

from .services import DaskCluster

RUBRIC = read_rubric(
    {
        "fact_groups": [
            {"name": "page", "facts": [{"id": "over", "type": "page_fact", "name": "done", "value": True}]},
            {"name": "seen", "weight": 3, "facts": [
                {"id": "pressed", "type": "judge", "description": "The button was pressed"}]},
        ],
        "pass_threshold": 0.5,
    }
)  # fmt: skip


@contextmanager
def endpoint(lost: bool = False) -> Iterator[FakeJudge]:
    """The fake judge on a loop of its own: the flow's workers are other processes, and the flow
    blocks this thread.

    Args:
        lost: It answers the first question of a run, and drops the connections of all others.
    """
    answer = judged(verdict=says("SUCCESS", "the button <b>changed</b>"))
    if lost:
        answer = lambda _, request: says("SUCCESS") if purpose_of(request) == "same_answer" else None  # noqa: E731

    ready, found, over = threading.Event(), list[FakeJudge](), asyncio.Event()

    async def serve() -> None:
        async with fake_judge(answer) as fake:
            found.append(fake)
            ready.set()
            await over.wait()

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), name="judge")
    thread.start()
    try:
        assert ready.wait(10)
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(10)
        loop.close()


def write_tasks(path: Path) -> None:
    """click-test with a rubric of both kinds of facts, click-option as it is."""
    tasks = {task.kind: task for task in load_tasks(resolve_path(EvaluateConfig().tasks.file))}
    both = {"rubric": RUBRIC, "rubric_hash": rubric_hash(RUBRIC)}
    save_tasks(path, [tasks["click-test"].model_copy(update=both), tasks["click-option"]])


def cut_end(store: RunStore) -> None:
    """The folder as it would be if the run had been killed at its end."""
    store.evaluation_path(0).unlink()
    store.group_path(store.group_ids()[-1]).unlink()


@pytest.mark.dask
def test_episodes_that_no_judge_graded_are_graded_when_it_is_back(
    prefect_api: None, dask_cluster: DaskCluster, tmp_path: Path
) -> None:
    write_tasks(tmp_path / "tasks.jsonl")
    judge = {"models": {"default": "m"}, "style": "webjudge", "retries": 0}
    tasks = {"file": str(tmp_path / "tasks.jsonl"), "kinds": ["click-test"]}
    cluster = {"address": dask_cluster.address}
    values: dict[str, Any] = {
        "cluster": cluster,
        "root": str(tmp_path),
        "run_id": "alone",
        "episodes": 2,
        "split": "validation",
        "tasks": tasks,
        # nobody listens there
        "rollout": {"concurrency": 2, "dom_diffs": True, "judge": {**judge, "base_url": "http://127.0.0.1:9"}},
        "policy": {"max_new_tokens": 24},
    }
    store = RunStore(tmp_path / "alone")
    with pytest.raises(ConfigError, match=r"rollout\.judge: no judge answers \(http://127\.0\.0\.1:9, model 'm'"):
        evaluate(**parameters_of(resolve(EvaluateConfig, {**values, "cluster": {}})))
    assert not store.config_path.exists() and not (store.root / "episodes").exists(), "nothing was played"
    training = {name: values[name] for name in ("root", "tasks", "rollout")}
    with pytest.raises(ConfigError, match=r"rollout\.judge: no judge answers \(http://127\.0\.0\.1:9, model 'm'"):
        train(**parameters_of(resolve(TrainConfig, {"preset": "quickstart", "run_id": "trained", **training})))
    assert not RunStore(tmp_path / "trained").config_path.exists()
    with endpoint(lost=True) as fake:
        values["rollout"]["judge"]["base_url"] = fake.url
        evaluate(**parameters_of(resolve(EvaluateConfig, values)))
        cut_end(store)
        asked = len(fake.requests)
        assert evaluate(**parameters_of(resolve(EvaluateConfig, values)))["n"] == 2, "what is missing is played"
        assert fake.count("same_answer") == 2 < asked < len(fake.requests)
        asked = len(fake.requests)
        evaluate(**parameters_of(resolve(EvaluateConfig, values)))
        assert len(fake.requests) == asked, "a finished one needs no judge"
    regrading = {"run": str(store.root), "which": "all", "name": "dead", "judge": {**judge, "base_url": fake.url}}
    with pytest.raises(ConfigError, match=r"judge: no judge answers .*start it, or correct judge\.base_url"):
        regrade(**parameters_of(resolve(RegradeConfig, regrading)))
    before = {each: store.trajectory(each).reward for each in store.episode_ids()}
    assert [reward.score is None or "unreachable" in reward.parts[1].evidence for reward in before.values()] == [
        True
    ] * 2
    again = {"run": str(store.root), "which": "all", "batch": 1, "cluster": cluster}
    with endpoint() as fake:
        found = regrade(**parameters_of(resolve(RegradeConfig, {**again, "judge": {**judge, "base_url": fake.url}})))
        assert fake.count("verdict") == 2
        assert (
            regrade(**parameters_of(resolve(RegradeConfig, {**again, "judge": {**judge, "base_url": fake.url}})))
            == found
        )
        assert fake.count("verdict") == 2, "what is there is not asked for again"
        assert found["judge"]["requests"] == {"spent": len(fake.requests), "left": None}
    assert (found["episodes"], found["with_reward"], found["abstained"], found["tokens"] > 0) == (2, 2, {}, True)
    for episode_id, reward in before.items():
        assert store.trajectory(episode_id).reward == reward, "what was stored stays as it was"
        assert any(step.dom_diff for step in store.trajectory(episode_id).steps), "the judge was shown them again"
        graded = Regraded.model_validate(read_json(store.regraded_path("again", episode_id)))
        assert graded.before == reward
        assert {part.name: part.value for part in graded.reward.parts}["seen/pressed"] == 1
    (start,) = read_log(store, "again").starts  # the second had nothing left to grade
    assert (start.which, start.episodes, start.settings["judge"]["base_url"]) == ("all", 2, fake.url)
    assert start.ended is not None and start.at < start.ended
    page = (store.report_path / "index.html").read_text()
    assert "<code>again</code>" in page and f"judge m (webjudge) at {fake.url}" in page, "the report is written again"
    assert "2 episodes, 2 changed" in page and "seen/pressed not available → 1.00" in page


@pytest.mark.dask
def test_a_group_graded_by_program_and_by_judge_is_in_the_report(
    prefect_api: None, dask_cluster: DaskCluster, tmp_path: Path
) -> None:
    write_tasks(tmp_path / "tasks.jsonl")
    with endpoint() as fake:
        judge = {"base_url": fake.url, "models": {"default": "m"}, "style": "webjudge", "budget_requests": 50}
        values: dict[str, Any] = {
            "root": str(tmp_path),
            "run_id": "judged",
            "cluster": {"address": dask_cluster.address},
            "episodes": 4,
            "split": "validation",
            "tasks": {"file": str(tmp_path / "tasks.jsonl")},
            "rollout": {"concurrency": 4, "judge": judge, "signals": True, "dom_diffs": True},
            "rewards": {"performance": 0.1},
            "policy": {"max_new_tokens": 24},
        }
        result = evaluate(**parameters_of(resolve(EvaluateConfig, values)))
    assert result["n"] == 4 and fake.count("verdict") == 2
    asked = len(fake.requests)
    assert result["judge"]["requests"] == {"spent": asked, "left": 50 - asked}, "of all workers together"

    store = RunStore(tmp_path / "judged")
    graded = [store.trajectory(episode_id) for episode_id in result["episodes"]]
    for episode in graded:
        parts = {part.name: part for part in episode.reward.parts}
        if episode.kind == "click-option":
            assert parts.keys() == {"page", "performance"} and episode.reward.cost.tokens == 0
            continue
        assert parts.keys() == {"page/over", "seen/pressed", "performance"}
        assert parts["seen/pressed"].value == 1 and episode.reward.cost.tokens > 0
        assert episode.reward.passed and episode.reward.rubric_hash == rubric_hash(RUBRIC)
        assert stored_blob(store, episode.judgement).suffix == ".json"
        assert stored_blob(store, episode.steps[0].screenshot).suffix == ".jpg"
    assert store.rubric(rubric_hash(RUBRIC)) == RUBRIC

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(find_chromium()))
        page = browser.new_page()
        page.goto(build_report(store.root).as_uri())
        page.select_option("[data-facet=kind]", "click-test")
        page.click("#list button")
        for summary in page.locator("#detail summary").all():
            if not summary.evaluate("each => each.parentElement.open"):
                summary.click()
        shown, costs = page.inner_text("#detail .after"), page.inner_text("#grading")
        facts, checks, calls, changes = (
            [row.split("\t") for row in page.locator(f"#detail .{name} tbody tr").all_inner_texts()]
            for name in ("rubric", "checks", "calls", "changes")
        )
        last = page.inner_text("#detail details:has-text('After the last action')")
        browser.close()
    assert "done is " in shown, "by program"
    assert "The button was pressed: verdict: the button <b>changed</b>" in shown, "by judge"
    assert "performance\tshaping" in shown and "tokens" in shown
    assert "somebody was asked about\t2" in costs
    assert [(row[0], row[1], row[4], row[5]) for row in facts] == [
        ("page", "over", "1.00", "program"),
        ("seen", "pressed", "1.00", "judge"),
    ]
    assert checks[-1] == ["verdict", "", "yes", "1 for, 0 against", "the button <b>changed</b>"], "what the judge said"
    assert {row[0] for row in calls} >= {"key_points", "relevance", "verdict"}, "what it was asked"
    assert changes, "what the click changed in the document"
    assert "no picture was kept" in last, "MiniWoB shows nothing at its end"
