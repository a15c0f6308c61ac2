"""The Dask worker's plugin, without a cluster around it."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs import Click, Episode
from envs.bundled.generate import GeneratorSpec, generate
from envs.episodes.grading import JUDGED_WALL
from envs.rewards import read_rubric, score
from envs.rewards.chromiumrl import StepDiff
from envs.rewards.judge import DamagedLedger, JudgeConfig, Judgement, JudgeModels, JudgeStyle, Ledger
from envs.sites.design2code import FOLDER
from envs.tasks.imports import import_tasks
from envs.types import BrowserError, Invalid, Split, StopReason, Submit, Trajectory, WebTask, rubric_hash
from tasks_lib.config import EvaluateConfig, RewardConfig, resolve, resolve_path
from tasks_lib.folder.task_sets import select_kinds
from tasks_lib.rollouts.planning import evaluation_groups
from tasks_lib.rollouts.shards import Rollouts
from tasks_lib.worker import actors
from tasks_lib.worker.activity import ActivityClock
from tasks_lib.worker.blocklist import Blocklist
from tasks_lib.worker.live import Doing, LiveFile, LiveState, WorkerState, update_live_file
from tasks_lib.worker.playing import GroupCommitter
from tasks_lib.worker.requests import RolloutRequest
from tasks_lib.worker.reward_stage import judge_account
from tasks_lib.worker.rollout_worker import RolloutWorker
from tasks_lib.worker.turns import picture_size
from tests.envs.rewards.played import trajectory
from tests.envs.rewards_judge.fake_judge import FakeJudge, Request, completion, fake_judge, judged, says
from training.config import AlgorithmConfig
from training.ledger.journal import read_group
from training.ledger.store import RunStore
from training.records.batches import build_batch
from training.records.groups import GroupSpec


def read_live(store: RunStore) -> list[WorkerState]:
    """The newest state of every worker of a run."""
    files = sorted((store.root / "live").glob("*.json"))
    return [WorkerState.model_validate_json(path.read_bytes()) for path in files]


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


def test_a_plugin_may_be_replaced_while_it_warms_up(tmp_path: Path) -> None:
    request = make_request(tmp_path)
    request = request.model_copy(
        update={
            "rewards": RewardConfig(extra={f"{__name__}:tenth": 1.0}),
            "rollout": request.rollout.model_copy(update={"parser": f"{__name__}:first_element"}),
        }
    )
    first, second = RolloutWorker(request), RolloutWorker(request)
    first.setup(None)
    first.teardown(None)  # what Dask does when a plugin of the same name is registered
    second.setup(None)
    try:
        report = second.roll_out(request)
    finally:
        second.teardown(None)
    assert report.group_ids == ("e000000-g0000",)
    (state,) = read_live(RunStore(tmp_path))
    assert (state.phase, state.episodes, sum(state.finished.values())) == ("e000000", 2, 2)
    assert {slot.doing for slot in state.slots} == {Doing.IDLE}
    assert [browser["state"] for browser in state.browsers["browsers"]] == ["ready"]
    assert report.pipeline["encode"]["done"] == report.pipeline["generate"]["done"] >= 2
    episodes = read_group(RunStore(tmp_path), "e000000-g0000").episodes
    trajectories = [RunStore(tmp_path).trajectory(one.episode_id) for one in episodes]
    assert {(step.action, step.form) for each in trajectories for step in each.steps} == {(Click(element=1), "custom")}
    assert all(each.reward.parts[-1].name.endswith(":tenth") for each in trajectories)
    assert [one.score for one in episodes] == pytest.approx([(1.0 + 0.1) / 2] * 2), "the click solves it"
    assert [one.settled for one in episodes] == [{"rested": one.steps} for one in episodes]
    assert report.pipeline["batches"]["turns"] == report.pipeline["generate"]["done"]
    assert report.pipeline["permit"]["done"] == 2 and report.use is not None
    began, ended = report.use
    assert (began.worker, began.lent, began.turns) == (ended.worker, 0, 0)
    assert ended.turns == report.pipeline["batches"]["turns"] and ended.slots == request.rollout.concurrency
    # The browsers are lent for as long as the episodes take but for their beginnings and ends.
    played = sum(each.seconds for each in trajectories)
    steps = [step.seconds for each in trajectories for step in each.steps]
    assert sum(each.generate + each.act for each in steps) <= ended.lent <= played
    assert 0 < ended.generating - began.generating <= ended.seconds - began.seconds


async def test_what_a_worker_has_is_closed_also_where_closing_one_of_it_fails() -> None:
    closed = []

    def closing(name: str) -> Any:
        async def close() -> None:
            closed.append(name)
            raise BrowserError(f"{name} does not close")

        return SimpleNamespace(close=close, __aexit__=close)

    worker: Any = object.__new__(RolloutWorker)
    worker._judge, worker._pool, worker._looks = closing("judge"), closing("pool"), None
    worker._engine = closing("engine")
    worker._sites = {name: closing(name) for name in ("shop", "wiki")}
    with pytest.raises(BrowserError, match="does not close"):
        await worker._close()
    assert closed == ["engine", "judge", "pool", "wiki", "shop"]
    await worker._close()
    assert len(closed) == 5, "each of them once"


def test_a_worker_that_ends_breaks_its_order_off_and_commits_nothing_of_it(
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
        with pytest.raises(BrowserError, match="told to end"):
            rolling.result(timeout=10)
        with pytest.raises(BrowserError, match="told to end"):
            worker._loop.carry_out(asyncio.sleep(0))  # a request that comes now
    assert not store.group_path(group.group_id).exists()
    stored = [store.trajectory(episode_id) for episode_id in store.episode_ids()]
    assert all(each.error is None for each in stored), "no episode was blamed for our end"


async def test_what_a_worker_does_is_written_while_it_does_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.worker.live.WRITE_SECONDS", 0.01)
    live, store = LiveState("i000003", 8, dict), RunStore(tmp_path)
    slot = live.take_slot()

    def now() -> WorkerState:
        return read_live(store)[0]

    async with update_live_file(live, store):
        slot.begin("i000003-g0001-s02-a0", "click-link", 3)
        slot.set_doing(Doing.ACT, 2)
        async with asyncio.timeout(10):
            while not read_live(store) or now().slots[0].step != 2:
                await asyncio.sleep(0.01)
        assert now().slots[0].model_dump(exclude={"seconds"}) == {
            "episode_id": "i000003-g0001-s02-a0",
            "kind": "click-link",
            "step": 2,
            "horizon": 3,
            "doing": Doing.ACT,
        }
        slot.set_free()
    assert now().slots[0].doing is Doing.IDLE and now().slots[0].episode_id == ""


async def test_a_state_that_cannot_be_written_is_logged_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks_lib.worker.live.WRITE_SECONDS", 0.01)
    monkeypatch.setattr("tasks_lib.worker.live.MAX_LAG", 60)
    live, store = LiveState("i000003", 8, dict), RunStore(tmp_path)
    folder = store.live_path("w").parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.write_text("a file where the folder should be")

    async with update_live_file(live, store):
        async with asyncio.timeout(30):
            while not caplog.records:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)  # further tries, of which nothing is said
        folder.unlink()
    assert read_live(store)[0].phase == "i000003", "it is tried again"
    assert [record.levelname for record in caplog.records if record.name == "tasks_lib.worker.live"] == ["WARNING"], (
        "once"
    )
    assert "cannot be written" in caplog.text and str(folder) in caplog.text


async def test_an_event_loop_that_is_late_is_measured_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("tasks_lib.worker.live.WRITE_SECONDS", 0.05)
    monkeypatch.setattr("tasks_lib.worker.live.MAX_LAG", 0.3)
    live, store = LiveState("i000003", 8, dict), RunStore(tmp_path)
    lags = []
    async with update_live_file(live, store):
        await asyncio.sleep(0.1)
        time.sleep(0.6)  # what an episode must never do
        async with asyncio.timeout(10):
            while not lags or lags[-1] < 0.3:
                await asyncio.sleep(0.01)
                lags.append(live.lag)
    assert "event loop of this worker was" in caplog.text


async def test_shards_that_overlap_share_one_file_and_its_slots(tmp_path: Path) -> None:
    store, file = RunStore(tmp_path), LiveFile()
    async with file.shard(LiveState("i000003", 8, dict), store) as first:
        first.take_slot().begin("a", "click", 3)
        async with file.shard(LiveState("i000004", 4, dict), store) as second:
            assert second is first and (second.phase, second.episodes) == ("i000004", 12)
            slot = second.take_slot()
            slot.set_free()
            assert second.take_slot() is slot and len(second.slots) == 2, "a slot that is free is used again"
    (state,) = read_live(store)
    assert (state.phase, state.episodes) == ("i000004", 12)
    async with file.shard(LiveState("i000005", 2, dict), store) as third:
        assert third is not first and third.episodes == 2


def test_orders_of_different_runs_follow_each_other(tmp_path: Path) -> None:
    """On a cluster of the user's own the plugin stays; both runs have a version 0, and neither may
    be served the other's."""
    requests = [make_request(tmp_path / name) for name in ("one", "two")]
    worker = RolloutWorker()
    worker.setup(None)
    engines = []
    try:
        for request in (*requests, requests[0].model_copy(update={"run_dir": requests[1].run_dir})):
            report = worker.roll_out(request)
            assert report.group_ids == ("e000000-g0000",)
            engines.append(worker._engine)
        assert engines[0] is not engines[1], "the second run was served by the first one's engine"
        assert report.already_committed == 1
    finally:
        worker.teardown(None)
    for request in requests:
        assert len(list(RunStore(Path(request.run_dir)).episode_ids())) == 2


async def test_a_group_is_committed_with_the_last_of_its_rewards(tmp_path: Path) -> None:
    store, clock = RunStore(tmp_path), ActivityClock(("reward", "store"))
    task = WebTask(task_id="shop/lamp", site="shop", kind="lamp", path="/", difficulty=1, horizon=9, seeds={})
    group = GroupSpec(group_id="i000000-g0000", task=task, seeds=(1, 1, 1))
    first_two = asyncio.Event()

    class Stage:
        """The second reward takes until both others are stored."""

        async def grade(self, task: WebTask, episode: Trajectory) -> Trajectory:
            if episode.sample == 1:
                await first_two.wait()
            return episode

    def ended(sample: int, **more: Any) -> list[Trajectory]:
        return [trajectory(episode_id=f"i000000-g0000-s0{sample}-a0", group_id=group.group_id, sample=sample, **more)]

    with ThreadPoolExecutor(2) as files:
        committer = GroupCommitter([group], store, clock, files, Stage(), {"shop"})  # type: ignore[arg-type]
        waiting = asyncio.create_task(committer.add(group, ended(1)))
        await committer.add(group, ended(0, wall=JUDGED_WALL))
        abstained = {"reward": score([], abstained="a wall"), "wall": "cloudflare", "error": "a wall"}
        await committer.add(group, ended(2, **abstained))
        assert not store.group_path(group.group_id).exists() and len(list(store.episode_ids())) == 2
        first_two.set()
        await waiting
    assert [episode.sample for episode in read_group(store, group.group_id).episodes] == [0, 1, 2]
    (wall,) = Blocklist(store).read_walls().values()
    assert (wall.site, wall.wall, wall.evidence) == ("shop", "cloudflare", "a wall")


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
        worker = RolloutWorker()
        worker.setup(None)
        try:
            report = await asyncio.to_thread(worker.roll_out, request)
        finally:
            await asyncio.to_thread(worker.teardown, None)
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
            assert worker._pool is None, "nothing is begun"
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
    worker = RolloutWorker()
    worker.setup(None)
    try:
        report = worker.roll_out(request)
    finally:
        worker.teardown(None)
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
    worker = RolloutWorker()
    worker.setup(None)
    try:
        worker.roll_out(Rollouts(store, policy, config.rollout, seed=0).request(groups, 0, actor="oracle"))
    finally:
        worker.teardown(None)
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
