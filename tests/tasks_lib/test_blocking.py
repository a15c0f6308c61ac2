"""The blocklist on shared storage, in simulated time: many writers, draws that are repeated, and
when nothing is left to draw."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from envs.episodes.grading import JUDGED_WALL
from envs.rewards import score
from envs.types import SeedRange, SiteError, Split, StopReason, StorageError, Trajectory, WebTask
from tasks_lib.config import TrainConfig, resolve
from tasks_lib.loops.run import open_run
from tasks_lib.worker.blocklist import HOUR, Blocklist
from tests.envs.rewards.played import trajectory
from training.ledger.store import RunStore, write_json
from training.records.groups import EpisodeSummary, GroupRecord, GroupSpec, StepShape

CAPTCHA = trajectory(
    error="http://shop/ shows Cloudflare's challenge (cloudflare)",
    wall="cloudflare",
    stop_reason=StopReason.BLOCKED,
    reward=score([], abstained="blocked"),
)
NOON = 1_800_000_000.0


def task(site: str) -> WebTask:
    seeds = {Split.TRAIN: SeedRange(start=0, stop=9)}
    return WebTask(task_id=f"{site}/a", site=site, kind=site, path="/", difficulty=1, horizon=3, seeds=seeds)


def files(store: RunStore) -> list[Path]:
    return sorted(store.blocklist_path.glob("*.json"))


def test_a_site_is_left_out_until_it_expires_and_its_files_vanish(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    listed = Blocklist(store)
    sites = {"shop", "mail"}
    assert listed.left_out("i000000", sites, 12, NOON) == frozenset()
    listed.record_wall(task("shop"), CAPTCHA, NOON)
    assert listed.left_out("i000001", sites, 12, NOON + 11 * HOUR) == {"shop"}
    assert listed.left_out("i000002", sites, 12, NOON + 13 * HOUR) == frozenset() and files(store)
    assert listed.left_out("i000003", sites, 12, NOON + 24 * HOUR) == frozenset() and not files(store)


def test_a_draw_that_is_done_again_leaves_out_the_same_sites(tmp_path: Path) -> None:
    listed = Blocklist(RunStore(tmp_path))
    sites = {"shop", "mail"}
    assert listed.left_out("i000000", sites, 12, NOON) == frozenset()
    listed.record_wall(task("shop"), CAPTCHA, NOON + 1)
    assert listed.left_out("i000000", sites, 12, NOON + 2) == frozenset(), "killed after its draw, and resumed"
    assert listed.left_out("i000001", sites, 12, NOON + 3) == {"shop"}
    assert listed.left_out("i000001", sites, 12, NOON + 99 * HOUR) == {"shop"}


def test_many_workers_write_at_once_and_an_episode_of_many_counts_once(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        writing = [
            threads.submit(Blocklist(store).record_wall, task(f"site{number % 4}"), CAPTCHA, NOON + number / 100)
            for number in range(200)
        ]
    assert all(each.exception() is None for each in writing)
    assert len(files(store)) == 4, "one for each site, worker and minute"
    left_out = Blocklist(store).left_out("i000000", {"site0", "site1", "elsewhere"}, 1, NOON + 10)
    assert left_out == {"site0", "site1"}


def test_when_all_are_blocked_it_says_which_and_when_the_first_is_free(tmp_path: Path) -> None:
    listed = Blocklist(RunStore(tmp_path))
    listed.record_wall(task("shop"), CAPTCHA, NOON)
    for episode in ("a", "b"):
        listed.record_wall(task("mail"), judged(episode), NOON + 2 * HOUR)
    with pytest.raises(SiteError) as caught:
        listed.left_out("i000000", {"shop", "mail"}, 12, NOON + 3 * HOUR)
    said = str(caught.value)
    assert "mail (judge, until 2027-01-15 22:00 UTC), shop (cloudflare, until 2027-01-15 20:00 UTC)" in said
    assert "The first to be free again is shop, in 9.0 h" in said and str(listed.folder) in said
    assert listed.left_out("i000000", {"shop", "mail"}, 12, NOON + 13 * HOUR) == {"mail"}


def judged(episode_id: str) -> Trajectory:
    """An episode of which the judge says that it met a wall."""
    return trajectory(
        episode_id=episode_id, wall=JUDGED_WALL, error=None, reward=score([], abstained="blocked: it looks shut")
    )


def test_one_mistake_of_a_judge_blocks_nothing(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    listed = Blocklist(store)
    for _ in range(2):
        listed.record_wall(task("shop"), judged("a"), NOON)
    assert listed.left_out("i000000", {"shop"}, 12, NOON + 1) == frozenset() and len(files(store)) == 1
    listed.record_wall(task("shop"), judged("b"), NOON + 13 * HOUR)
    assert listed.left_out("i000001", {"shop"}, 12, NOON + 13 * HOUR) == frozenset(), "too long after the first"
    assert len(files(store)) == 1, "and that is forgotten"
    listed.record_wall(task("shop"), judged("c"), NOON + 13 * HOUR + 1)
    assert listed.left_out("i000002", {"shop", "mail"}, 12, NOON + 14 * HOUR) == {"shop"}
    assert listed.left_out("i000003", {"shop", "mail"}, 12, NOON + 26 * HOUR) == frozenset() and files(store)
    assert listed.left_out("i000004", {"shop", "mail"}, 12, NOON + 38 * HOUR) == frozenset() and not files(store)


def test_a_judge_cannot_shut_a_site_of_ours(tmp_path: Path) -> None:
    listed = Blocklist(RunStore(tmp_path), ours={"shop"})
    for episode in ("a", "b", "c"):
        listed.record_wall(task("shop"), judged(episode), NOON)
        listed.record_wall(task("mail"), judged(episode), NOON)
    assert listed.left_out("i000000", {"shop", "mail"}, 12, NOON + 1) == {"mail"}
    listed.record_wall(task("shop"), CAPTCHA, NOON)
    assert listed.left_out("i000001", {"shop", "mail", "bank"}, 12, NOON + 1) == {"mail", "shop"}, "a sign is a sign"


def test_a_list_that_is_turned_off_is_not_read(tmp_path: Path) -> None:
    listed = Blocklist(RunStore(tmp_path))
    listed.record_wall(task("shop"), CAPTCHA)
    assert listed.left_out("i000000", ["shop"], 0) == frozenset()
    with pytest.raises(SiteError):
        listed.left_out("i000000", ["shop"], 1)


def test_a_file_that_is_no_entry_is_named(tmp_path: Path) -> None:
    listed = Blocklist(RunStore(tmp_path))
    listed.folder.mkdir()
    (listed.folder / "notes.json").write_text("{}")
    with pytest.raises(StorageError, match=r"notes\.json is no entry of a blocklist .*move it to notes\.json\.damaged"):
        listed.left_out("i000000", {"shop"}, 12, NOON)


SAMPLERS: dict[str, Any] = {
    "success": None,
    "curriculum": {"name": "curriculum"},
    "uniform": {"name": "uniform"},
    "no_repeat": {"name": "no_repeat"},
    "sequential": {"name": "sequential"},
    "ratio": {"name": "ratio", "weights": {"1": 1.0}},
}


def open_config(folder: Path, sampler: Any) -> TrainConfig:
    tasks = [
        task(site).model_copy(update={"task_id": f"{site}/{number}"})
        for site in ("shop", "mail")
        for number in range(3)
    ]
    (folder / "tasks.jsonl").write_text("".join(each.model_dump_json() + "\n" for each in tasks))
    chosen = {"file": str(folder / "tasks.jsonl"), "sampler": sampler}
    config: TrainConfig = resolve(TrainConfig, {"root": str(folder), "run_id": "r", "tasks": chosen})
    return config


@pytest.mark.parametrize("name", SAMPLERS)
def test_groups_are_drawn_around_a_blocked_site(tmp_path: Path, name: str) -> None:
    config = open_config(tmp_path, SAMPLERS[name])
    with open_run(config) as run:
        before = run.sampler.groups(0, 0)
        assert {group.task.site for group in before} == {"shop", "mail"}
        Blocklist(run.store).record_wall(task("shop"), CAPTCHA)
        assert run.sampler.groups(0, 0) == before
        around = [run.sampler.groups(0, 1), run.sampler.groups(1, 0)]
        assert all({group.task.site for group in groups} == {"mail"} for groups in around)
        assert all(len(groups) == config.rollout.groups_per_iteration for groups in around)
    with open_run(config) as resumed:
        for path in resumed.store.blocklist_path.glob("*.json"):
            path.unlink()  # it expired meanwhile
        assert [resumed.sampler.groups(0, 0), resumed.sampler.groups(0, 1), resumed.sampler.groups(1, 0)] == [
            before,
            *around,
        ]


@pytest.mark.parametrize("name", ["no_repeat", "sequential"])
def test_rows_that_were_passed_over_come_once_their_site_is_free(tmp_path: Path, name: str) -> None:
    """Three of six rows are of a blocked site when they are due; a run that is killed after each
    draw draws the same."""
    config = open_config(tmp_path, SAMPLERS[name])
    config = config.model_copy(update={"rollout": config.rollout.model_copy(update={"groups_per_iteration": 3})})

    def drawn(iteration: int) -> list[str]:
        with open_run(config) as run:  # a new process for each
            groups = run.sampler.groups(iteration, 0)
            for group in groups:
                write_json(run.store.group_path(group.group_id), ended(group))
            return [group.task.task_id for group in groups]

    with open_run(config) as run:
        Blocklist(run.store).record_wall(task("shop"), CAPTCHA)
        folder = run.store.blocklist_path
    around = drawn(0)
    assert sorted(around) == ["mail/0", "mail/1", "mail/2"], "the rows of the free site"
    for path in folder.glob("*.json"):
        path.unlink()  # the block expired
    after = drawn(1)
    assert sorted(after) == ["shop/0", "shop/1", "shop/2"], "those that were passed over"
    with open_run(config) as run:
        assert run.sampler.state(2).passed == ()
        assert [[g.task.task_id for g in run.sampler.groups(number, 0)] for number in (0, 1)] == [around, after]
    shutil.rmtree(tmp_path / "r" / "starts", ignore_errors=True)
    with open_run(config) as run:  # without the files of the starts, from the records alone
        assert [[g.task.task_id for g in run.sampler.groups(number, 0)] for number in (1, 0)] == [after, around]


def ended(group: GroupSpec) -> GroupRecord:
    """What came of a group: one episode, which passed."""
    episode = EpisodeSummary(
        episode_id=group.episode_id(0, 0),
        seed=group.seeds[0],
        sample=0,
        score=1.0,
        passed=True,
        steps=1,
        response_tokens=1,
        stop_reason=StopReason.DONE,
        abstained=None,
        shapes=(StepShape(1, 1, 0),),
        sha256="",
    )
    names = {"group_id": group.group_id, "task_id": group.task.task_id, "kind": group.task.kind}
    return GroupRecord(token="", **names, policy_version=0, episodes=(episode,))


def test_a_sampler_stuck_on_a_blocked_site_is_passed_over(tmp_path: Path) -> None:
    config = open_config(tmp_path, {"name": "sequential", "limit": 3})
    with open_run(config) as run:
        Blocklist(run.store).record_wall(task("shop"), CAPTCHA)
        groups = run.sampler.groups(0, 0)
        assert {group.task.site for group in groups} == {"mail"} and len(groups) == 16
        assert run.sampler.groups(0, 0) == groups
