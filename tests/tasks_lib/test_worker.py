"""The Dask worker's plugin with a real browser and a real model, without a cluster around it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

from envs import Click, Episode
from envs.bundled.generate import GeneratorSpec, generate
from envs.chat import DamagedLedger, Ledger
from envs.rewards import read_rubric
from envs.rewards.chromiumrl import StepDiff
from envs.rewards.judge import JudgeConfig, Judgement, JudgeModels, JudgeStyle
from envs.sites.design2code import FOLDER
from envs.tasks.imports import import_tasks
from envs.types import BrowserError, Invalid, Split, StopReason, Submit, Trajectory, rubric_hash
from tasks_lib.config import EvaluateConfig, RewardConfig, resolve, resolve_path
from tasks_lib.folder.task_sets import select_kinds
from tasks_lib.rollouts.evaluation import evaluation_groups
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker import actors
from tasks_lib.worker.live import Doing
from tasks_lib.worker.requests import RolloutReport, RolloutRequest, WorkerUse
from tasks_lib.worker.reward_stage import judge_account
from tasks_lib.worker.rollout_worker import RolloutWorker
from tasks_lib.worker.turns import picture_size
from tests.envs.rewards_judge.fake_judge import FakeJudge, Request, completion, fake_judge, judged, says
from training.config import AlgorithmConfig
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary

from .test_live import read_live


def tenth(episode: Episode) -> float:
    """A reward of the user's own, which the worker finds by its name."""
    return 0.1


def first_element(text: str) -> Click:
    """A parser of the user's own: whatever the policy writes."""
    return Click(element=1)


def make_request(folder: Path) -> RolloutRequest:
    """Two episodes of click-test with the base policy."""
    config: EvaluateConfig = resolve(EvaluateConfig, {"run_id": "worker"})
    store = RunStore(folder)
    store.publish_policy(0, resolve_path(config.policy.checkpoint), {})
    tasks = select_kinds(resolve_path(config.tasks.file), ["click-test"])
    groups = evaluation_groups(tasks, phase="e000000", episodes=2)
    return Rollouts(store, config.policy, config.rollout, seed=0).request(groups, 0)


def roll_out(request: RolloutRequest, worker: RolloutWorker) -> RolloutReport:
    """What a worker reports, which is set up for this request alone."""
    worker.setup(None)
    try:
        return worker.roll_out(request)
    finally:
        worker.teardown(None)


class Played(NamedTuple):
    """A request of two episodes, and what the worker reported and stored."""

    request: RolloutRequest
    report: RolloutReport
    store: RunStore

    def use(self) -> tuple[WorkerUse, WorkerUse]:
        assert self.report.use is not None
        return self.report.use

    def episodes(self) -> tuple[EpisodeSummary, ...]:
        return read_group(self.store, "e000000-g0000").episodes

    def trajectories(self) -> list[Trajectory]:
        return [self.store.trajectory(episode.episode_id) for episode in self.episodes()]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """What a worker made of the request, with a parser and a reward of the user's own.

    Its plugin took the place of another one, which was still warming up.
    """
    folder = tmp_path_factory.mktemp("played")
    request = make_request(folder)
    request = request.model_copy(
        update={
            "rewards": RewardConfig(extra={f"{__name__}:tenth": 1.0}),
            "rollout": request.rollout.model_copy(update={"parser": f"{__name__}:first_element"}),
        }
    )
    first = RolloutWorker(request)
    first.setup(None)
    first.teardown(None)  # what Dask does when a plugin of the same name is registered
    return Played(request, roll_out(request, RolloutWorker(request)), RunStore(folder))


def test_a_plugin_may_be_replaced_while_it_warms_up(played: Played) -> None:
    assert played.report.group_ids == ("e000000-g0000",)
    assert played.report.already_committed == 0 and len(played.episodes()) == 2


def test_the_live_file_of_an_ended_shard_shows_an_idle_worker(played: Played) -> None:
    (state,) = read_live(played.store)
    assert (state.phase, state.episodes, sum(state.finished.values())) == ("e000000", 2, 2)
    assert {slot.doing for slot in state.slots} == {Doing.IDLE}
    assert [browser["state"] for browser in state.browsers["browsers"]] == ["ready"]


def test_the_user_s_parser_reads_every_turn(played: Played) -> None:
    steps = [(step.action, step.form) for trajectory in played.trajectories() for step in trajectory.steps]
    assert set(steps) == {(Click(element=1), "custom")}


def test_the_user_s_reward_counts_beside_the_page_s(played: Played) -> None:
    """The click solves the task, so the page's part is 1."""
    assert all(trajectory.reward.parts[-1].name.endswith(":tenth") for trajectory in played.trajectories())
    assert [episode.score for episode in played.episodes()] == pytest.approx([(1.0 + 0.1) / 2] * 2)


def test_the_record_says_how_each_step_s_page_settled(played: Played) -> None:
    assert [episode.settled for episode in played.episodes()] == [{"rested": each.steps} for each in played.episodes()]


def test_every_turn_passes_through_every_stage(played: Played) -> None:
    pipeline, turns = played.report.pipeline, sum(episode.steps for episode in played.episodes())
    assert pipeline["encode"]["done"] == pipeline["generate"]["done"] == pipeline["batches"]["turns"] == turns >= 2
    assert pipeline["permit"]["done"] == 2


def test_the_use_of_a_worker_grows_from_its_first_shard_on(played: Played) -> None:
    began, ended = played.use()
    assert (began.worker, began.lent, began.turns) == (ended.worker, 0, 0)
    assert ended.turns == played.report.pipeline["batches"]["turns"]
    assert ended.slots == played.request.rollout.concurrency
    assert 0 < ended.generating - began.generating <= ended.seconds - began.seconds


def test_browsers_are_lent_from_an_episode_s_first_step_to_its_last(played: Played) -> None:
    """An episode also has a beginning and an end without a browser."""
    steps = [step.seconds for trajectory in played.trajectories() for step in trajectory.steps]
    _, ended = played.use()
    whole = sum(trajectory.seconds for trajectory in played.trajectories())
    assert sum(seconds.generate + seconds.act for seconds in steps) <= ended.lent <= whole


def test_a_worker_that_ends_cancels_its_request_and_commits_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks_lib.worker.event_loop.LAST_SECONDS", 0.1)
    store = RunStore(tmp_path)
    request = make_request(tmp_path)
    group = request.groups[0]
    many = group.model_copy(update={"seeds": group.seeds * 100})
    worker = RolloutWorker(None)
    worker.setup(None)
    with ThreadPoolExecutor(1) as thread:
        rolling = thread.submit(worker.roll_out, request.model_copy(update={"groups": (many,)}))
        deadline = time.monotonic() + 60
        while not any(state.finished for state in read_live(store)) and time.monotonic() < deadline:
            assert not rolling.done(), rolling.result()
            time.sleep(0.05)
        worker.teardown(None)
        with pytest.raises(BrowserError, match="was ended in the middle of its work"):
            rolling.result(timeout=10)
    assert not store.group_path(group.group_id).exists()
    stored = [store.trajectory(episode_id) for episode_id in store.episode_ids()]
    assert all(each.error is None for each in stored), "no episode was blamed for our end"


def test_requests_of_different_runs_follow_each_other(tmp_path: Path) -> None:
    """On a cluster of the user's own the plugin stays; both runs have a version 0, and neither may
    be served the other's."""
    requests = [make_request(tmp_path / name) for name in ("one", "two")]
    again = requests[0].model_copy(update={"run_dir": requests[1].run_dir})
    worker = RolloutWorker()
    worker.setup(None)
    try:
        first, second, third = (worker.roll_out(request) for request in (*requests, again))
    finally:
        worker.teardown(None)
    assert {report.group_ids for report in (first, second, third)} == {("e000000-g0000",)}
    assert first.use is not None and second.use is not None
    assert first.use[0].worker != second.use[0].worker, "the second run was served by the first one's engine"
    assert third.already_committed == 1 and third.use is None
    for request in requests:
        assert len(list(RunStore(Path(request.run_dir)).episode_ids())) == 2


JUDGED = read_rubric(
    {
        "fact_groups": [
            {"name": "page", "facts": [{"id": "done", "type": "page_fact", "name": "done", "value": True}]},
            {"name": "seen", "facts": [{"id": "nice", "type": "judge", "description": "the page looks nice"}]},
        ]
    }
)


def judged_request(folder: Path, url: str) -> RolloutRequest:
    """Two episodes that a judge is asked about."""
    request = make_request(folder)
    (group,) = request.groups
    task = group.task.model_copy(update={"rubric": JUDGED, "rubric_hash": rubric_hash(JUDGED)})
    judge = JudgeConfig(base_url=url, models=JudgeModels(default="m"), style=JudgeStyle.WEBJUDGE, budget_requests=100)
    return request.model_copy(
        update={
            "groups": (group.model_copy(update={"task": task}),),
            "rollout": request.rollout.model_copy(update={"judge": judge}),
        }
    )


async def test_facts_for_a_judge_are_graded_beside_the_slots(tmp_path: Path) -> None:
    """Every episode is put before the judge, after its browser was given back; the group is
    committed with what it said."""

    async with fake_judge(judged(verdict=says("SUCCESS", "very nice"))) as fake:
        request = judged_request(tmp_path, fake.url)
        report = await asyncio.to_thread(roll_out, request, RolloutWorker())
        assert report.group_ids == ("e000000-g0000",) and fake.count("verdict") == 2
        counts = report.pipeline["reward"]
        assert (counts["graded"], counts["abstained"], counts["tokens"] > 0) == (2, 0, True)
        assert counts["seconds"].keys() >= {"program", "ask"}
        spent = judge_account(request.rollout.judge, request.spent_path)["judge"]
        assert spent["requests"] == {"spent": len(fake.requests), "left": 100 - len(fake.requests)}
        assert spent["tokens"] == {"spent": counts["tokens"], "left": None}
    store = RunStore(tmp_path)
    assert Ledger(store.spent_path()).read().requests > 0
    for episode in store.episode_ids():
        stored = store.trajectory(episode)
        parts = {part.name: part for part in stored.reward.parts}
        assert parts["seen/nice"].value == 1.0 and "very nice" in parts["seen/nice"].evidence
        assert parts["page/done"].value is not None and stored.final is not None
        assert stored.reward.rubric_hash == rubric_hash(JUDGED)
        asked = Judgement.model_validate_json(store.blob(stored.judgement))
        assert asked.state == "passed" and asked.tokens == stored.reward.cost.tokens


async def test_a_damaged_ledger_costs_no_episode(tmp_path: Path) -> None:
    """While episodes are graded, and again when the shard is tried once more: one error of ours, no
    group of errors, nothing committed."""
    spent = RunStore(tmp_path).spent_path()

    damaged = False

    def answer(fake: FakeJudge, request: Request) -> bytes:
        nonlocal damaged
        if not damaged:
            with closing(sqlite3.connect(spent)) as other:  # between the transactions of the judge
                other.executescript("BEGIN IMMEDIATE; DROP TABLE spent; CREATE TABLE spent (x); COMMIT")
            damaged = True
        return completion('{"key_points": ["the page looks nice"]}')

    async with fake_judge(judged(key_points=answer)) as fake:
        request = judged_request(tmp_path, fake.url)
        worker = RolloutWorker()
        worker.setup(None)
        try:
            spent.write_text("{7")
            with pytest.raises(DamagedLedger):
                await asyncio.to_thread(worker.roll_out, request)
            assert not fake.requests and not read_live(RunStore(tmp_path)), "nothing is begun"
            spent.unlink()
            with pytest.raises(DamagedLedger, match=r"judge_spent\.sqlite: this is no ledger .*delete the file"):
                await asyncio.to_thread(worker.roll_out, request)
            asked, store = len(fake.requests), RunStore(tmp_path)
            assert damaged and not store.group_path("e000000-g0000").exists()
            with pytest.raises(DamagedLedger):
                await asyncio.to_thread(worker.roll_out, request)
            assert len(fake.requests) == asked
            spent.with_suffix(".json").write_text('{"requests": 90, "tokens": 0}')
            spent.unlink()
            report = await asyncio.to_thread(worker.roll_out, request)
        finally:
            await asyncio.to_thread(worker.teardown, None)
        assert report.pipeline["reward"]["abstained"] == 0 and store.group_path("e000000-g0000").exists()
        assert Ledger(spent).read().requests == 90 + len(fake.requests) - asked


def test_pages_are_handed_in_and_graded_by_what_they_look_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sites in one request; what steps changed is beside the trajectories. The oracle of pages
    knows the page (a policy sees its picture)."""
    page = (FOLDER / "6.html").read_text(encoding="utf-8")
    designs = tmp_path / "designs"
    designs.mkdir()
    for ending in ("html", "png"):
        shutil.copyfile(FOLDER / f"6.{ending}", designs / f"12.{ending}")
    tasks = [each.task for each in import_tasks("design2code", designs, split=Split.HELD_OUT)]
    known = actors.oracle_action
    monkeypatch.setattr(
        actors,
        "oracle_action",
        lambda kind, *seen: Submit(html=page) if kind == "design2code" else known(kind, *seen),
    )
    rollout = {"dom_diffs": True, "designs": str(designs)}
    config: EvaluateConfig = resolve(EvaluateConfig, {"run_id": "worker", "rollout": rollout})
    store = RunStore(tmp_path)
    store.publish_policy(0, resolve_path(config.policy.checkpoint), {})
    groups = evaluation_groups(
        [*tasks, *select_kinds(resolve_path(config.tasks.file), ["click-test"])], phase="e000000", episodes=2
    )
    request = Rollouts(store, config.policy, config.rollout, seed=0).request(groups, 0, actor="oracle")
    report = roll_out(request, RolloutWorker())
    assert report.pipeline["reward"]["graded"] == 2 and report.pipeline["reward"]["seconds"]["visual"] > 0
    built, clicked = (store.trajectory(episode) for episode in sorted(store.episode_ids()))
    if built.kind != "design2code":
        built, clicked = clicked, built
    assert built.stop_reason is StopReason.SUBMITTED and built.reward.score == 1.0 and built.reward.passed
    assert [part.name for part in built.reward.parts] == ["design2code"]
    assert [part.name for part in clicked.reward.parts] == ["page"] and clicked.reward.score == 1.0
    assert StepDiff.model_validate_json(store.blob(clicked.steps[-1].dom_diff)).schema_version == "1.0"


LARGEST_PICTURE = 50_000
"""Pixels; MiniWoB's page has 33,600."""


def test_demonstrations_of_generated_tasks_are_stored_like_those_of_pages(tmp_path: Path) -> None:
    """Beside one of MiniWoB's in the same request: prompt, picture, turn and reward of every step,
    and rows that cloning takes."""
    config: EvaluateConfig = resolve(EvaluateConfig, {"run_id": "worker"})
    store = RunStore(tmp_path)
    store.publish_policy(0, resolve_path(config.policy.checkpoint), {})
    kinds = ("shop-basket-1", "directory-count", "tracker-close")
    made = list(generate(GeneratorSpec(count=3, kinds=kinds, per_world=1, splits={Split.DEMO: 1})))
    pages = select_kinds(resolve_path(config.tasks.file), ["click-test"])
    groups = evaluation_groups([*made, *pages], phase="i000000", episodes=4, split=Split.DEMO)
    policy = config.policy.model_copy(update={"image_pixels": LARGEST_PICTURE})
    request = Rollouts(store, policy, config.rollout, seed=0).request(groups, 0, actor="oracle")
    roll_out(request, RolloutWorker())
    episodes = [read_group(store, group.group_id).episodes for group in groups]
    assert [(len(group), group[0].passed, group[0].score) for group in episodes] == [(1, True, 1.0)] * 4
    stored = [store.trajectory(group[0].episode_id) for group in episodes]
    assert {each.kind for each in stored} == {*kinds, "click-test"}
    for each in stored:
        assert each.reward.passed and each.error is None
        for step in each.steps:
            assert step.prompt and step.prompt_ids and step.response_ids and set(step.logprobs) == {0.0}
            assert store.blob(step.screenshot).startswith(b"\xff\xd8") and not isinstance(step.action, Invalid)
    last = [each.final_screenshot for each in stored if each.final_screenshot]
    assert len(last) == 3, "MiniWoB's page shows nothing at its end"
    for name in (*last, *(step.screenshot for each in stored for step in each.steps)):
        width, height = picture_size(store.blob(name))
        assert width * height <= LARGEST_PICTURE, "each picture is fitted, the last one of an episode too"
    batch = build_batch(1, episodes, AlgorithmConfig(name="filtered_bc"))
    assert len(batch.rows) == sum(len(each.steps) for each in stored) and batch.episodes == 4
