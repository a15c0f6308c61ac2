"""Advice about damaged files of a run: each file is damaged, the error is read, and what it says is
done.

Then the next start goes on: it reads everything, its ledger counts as before, nothing is trained on
twice, nothing that was there is gone, and keys that may not change are still refused.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.types import RewardBundle, RollwrightError, Rubric, SiteError, StorageError, rubric_hash
from tasks_lib.commands.doctor import examine
from tasks_lib.config import TrainConfig
from tasks_lib.folder.metrics_lines import EvaluationMetrics, IterationMetrics
from tasks_lib.folder.regraded import Regraded, RegradingStart, read_log, read_regraded, write_start
from tasks_lib.folder.values import ChangedValuesError, finished_result
from tasks_lib.loops.results import write_result
from tasks_lib.loops.run import open_run
from tasks_lib.loops.synchronous import SynchronousLoop
from tasks_lib.rollouts.evaluation import evaluate_version, policy_digest
from tasks_lib.rollouts.shards import RolloutResult
from tasks_lib.worker.blocklist import Blocklist
from tests.tasks_lib.damaged_run import TOKEN, played, write_run
from training.ledger.checkpoint_files import file_hashes
from training.ledger.journal import published_batch, read_batch, read_group
from training.ledger.seal import sha256_of
from training.ledger.store import RunStore, atomic_write_bytes, read_json, write_json
from training.records.groups import EpisodeSummary, GroupRecord, GroupSpec
from training.trainer.resume import find_resume_point, state_path
from training.trainer.spec import TrainerSpec

EPISODE = "i000001-g0000-s00-a0"
FACT = {"id": "at", "type": "url", "url": "/orders/12"}
RUBRIC = Rubric.model_validate({"fact_groups": [{"name": "page", "facts": [FACT]}]})
REWARD = RewardBundle(score=1.0, passed=True)
REGRADED = Regraded(episode_id=EPISODE, task_id="miniwob/click-link", reward=REWARD, before=REWARD)
SPEC = TrainerSpec(total_updates=4)


class Play:
    """Stands in for ``Rollouts``: commits the groups that are not there, as workers do, and counts
    them."""

    def __init__(self, store: RunStore) -> None:
        self.store, self.played = store, list[str]()
        self.rollout, self.servers = SimpleNamespace(judge=None, horizon=None), None

    def run(self, groups: list[GroupSpec], *, version: int, workers: int, actor: str = "policy") -> RolloutResult:
        for group in groups:
            if not self.store.group_path(group.group_id).exists():
                self.played.append(group.group_id)
                commit(self.store, group)
        return RolloutResult([read_group(self.store, group.group_id) for group in groups], {"wall": 2.0})


def commit(store: RunStore, group: GroupSpec) -> None:
    task = {"task_id": group.task.task_id, "kind": group.task.kind}
    episodes = [played(store, group.group_id, at, 0, float(at % 2), **task) for at in range(len(group.seeds))]
    kept = [EpisodeSummary.of(each, store.put_trajectory(each, TOKEN)) for each in episodes]
    write_json(
        store.group_path(group.group_id),
        GroupRecord(
            group_id=group.group_id,
            token=TOKEN,
            task_id=group.task.task_id,
            kind=group.task.kind,
            policy_version=0,
            episodes=tuple(kept),
        ),
    )


def publish(store: RunStore, version: int, weights: bytes | None = None) -> None:
    """What a trainer leaves after its update."""
    folder = store.policy_path(version)
    atomic_write_bytes(folder / "model.safetensors", weights or b"weights %d" % version)
    atomic_write_bytes(state_path(store, version) / "optimizer.txt", b"state %d" % version)
    write_json(state_path(store, version) / "manifest.json", {"files": file_hashes(state_path(store, version))})
    manifest: dict[str, Any] = {
        "version": version,
        "files": file_hashes(folder),
        "seconds": {"load": 1.0},
        "waited_seconds": 0.0,
        "metrics": {},
    }
    if version:
        manifest["batch"] = sha256_of(store.batch_path(version))
        manifest["group_ids"] = read_batch(store, version).group_ids
    write_json(folder / "manifest.json", manifest)


def start(config: TrainConfig, newest: int = 2) -> dict[str, Any]:
    """What the flow does with a run's folder, up to the rollouts of iteration 2; what it read."""
    store, said = RunStore(config.run_dir), list[str]()
    assert finished_result(config, store) is None
    with open_run(config) as run:
        progress: Any = SimpleNamespace(log=said.append, iteration=lambda *_: None)
        for version in range(run.version + 1, newest + 1):  # as `SynchronousLoop.iterate` does
            publish(store, version)
            run.journal.record_update(published_batch(store, version))
        find_resume_point(store, SPEC)
        run.rollouts = Play(store)  # type: ignore[assignment]
        loop = SynchronousLoop(run, None, 1, progress)  # type: ignore[arg-type]
        evaluations = [evaluate_version(run.rollouts, each, run.tasks, episodes=14, workers=1) for each in (0, newest)]
        assert run.rollouts.played == [], "what was played is not played again"  # type: ignore[attr-defined]
        Blocklist(store).left_out("i000003", {"shop"}, 12, 1000.0)
        result = write_result(run, set_up=1.0, loop=loop.wall, peak_rss_mb=1.0)
        store.result_path.unlink()
        store.left_out_path("i000003").unlink()  # so that the next start reads the list of blocks
        if not store.regraded_path("again", EPISODE).exists():
            write_json(store.regraded_path("again", EPISODE), REGRADED)  # as the regrading does for what is left
        return {
            "states": run.journal.episodes(),
            "events": run.journal.events(),
            "groups": run.sampler.groups(2, 0),
            "evaluations": [
                {name: each[name] for name in ("mean", "n", "by_kind", "episodes")} for each in evaluations
            ],
            "lines": [line.iteration for line in run.metrics.lines(IterationMetrics)],
            "success": result["success_before"],
            "regraded": read_regraded(store.regraded_path("again", EPISODE)),
            "rubric": store.rubric(rubric_hash(RUBRIC)),
            "left_out": Blocklist(store).was_left_out("i000002"),
            "log": read_log(store, "again"),
        }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, dict[str, Any]]:
    """A run with a file of every kind, and what a start reads of it."""
    config, store = write_run(tmp_path_factory.mktemp("whole"))
    for version in range(3):
        publish(store, version)
    store.metrics_path.write_bytes(b"")  # the loop writes whole lines
    with open_run(config) as run:
        for version in (0, 2):
            result = evaluate_version(Play(store), version, run.tasks, episodes=14, workers=1)  # type: ignore[arg-type]
            line = EvaluationMetrics.model_validate({**result, "wall": 1.0}, extra="ignore")
            kept = {name: value for name, value in result.items() if name not in ("episodes", "causes")}
            assert line.content() == {"kind": "evaluation", "wall": 1.0, **kept}, "nothing else is left out"
            run.metrics.append(line, version)
        run.sampler.groups(2, 0)
    write_json(store.regraded_path("again", EPISODE), REGRADED)
    write_start(store, "again", RegradingStart(at=1.0, which="all", episodes=1, settings={}))
    store.put_rubric(RUBRIC)
    write_json(store.left_out_path("i000002"), {"sites": []})
    seen = '{"site": "mail", "wall": "captcha", "time": 900.0}'
    atomic_write_bytes(store.blocklist_path / "0a-15-w.json", seen.encode())
    return config, start(config)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def of_another_kind(path: Path) -> None:
    path.write_text('{"strange": 1}')


def a_list(path: Path) -> None:
    path.write_text("[1]")


DAMAGES: tuple[Callable[[Path], None], ...] = (truncated, of_another_kind, a_list)
BACKUP, ASIDE, BY_ITSELF = "put back a copy of", "move", ""
FILES = {
    "config.json": BACKUP,
    "config.copy.json": BY_ITSELF,
    "journal.sqlite": BY_ITSELF,
    "metrics.jsonl": BY_ITSELF,
    "tasks.jsonl": BACKUP,
    "policies/v000002/manifest.json": ASIDE,
    "trainer/state/v000001/optimizer.txt": BY_ITSELF,
    "groups/i000000/i000000-g0000.json": BY_ITSELF,
    "groups/i000002/i000002-g0000.json": BY_ITSELF,
    "batches/v000001.json": BY_ITSELF,
    "batches/v000003.json": BY_ITSELF,
    "evaluations/v000000.json": ASIDE,
    "evaluations/v000002.json": ASIDE,
    "policies/evaluated-v000000.json": ASIDE,
    "starts/i000002.json": ASIDE,
    f"regraded/again/*/{EPISODE}.json": ASIDE,
    "regraded/again/regrading.json": BACKUP,
    "rubrics/*.json": BACKUP,
    "left_out/i000002.json": BACKUP,
    "blocklist/0a-15-w.json": ASIDE,
}
"""Files of a run, and what the error says that is to be done when one of them is damaged. Without
``config.json``'s copy nothing is left of it."""


def follow(message: str, backup: Path, root: Path) -> tuple[str, str]:
    """Do what an error says; the file that it names, and what that was."""
    assert "delete" not in message and "\n" not in message, message
    path = Path(re.findall(rf"{re.escape(str(root))}[^\s;:,()]*", message)[0])
    if found := re.search(r"move (\S+) to (\S+)", message):
        source = path if found[1] == "it" else Path(found[1])
        target = source.parent / found[2].rstrip(":;,")
        assert source.exists() and not target.exists(), "nothing is lost"
        target.parent.mkdir(exist_ok=True)
        source.rename(target)
        return str(path.relative_to(root)), ASIDE
    assert BACKUP in message, message
    shutil.copy(backup / path.relative_to(root), path)
    return str(path.relative_to(root)), BACKUP


@pytest.mark.parametrize("shift", range(len(DAMAGES)))
def test_what_errors_advise_is_safe_to_do(
    whole: tuple[TrainConfig, dict[str, Any]], tmp_path: Path, shift: int
) -> None:
    """Everything is damaged at once, each file in its way; one error after the other is followed
    until the run goes on."""
    config, before = whole
    backup, root = config.run_dir, tmp_path / "r"
    shutil.copytree(backup, root)
    config = config.model_copy(update={"root": str(tmp_path)})
    wanted = {}
    for number, (name, action) in enumerate(FILES.items()):
        (path,) = root.glob(name)
        DAMAGES[(number + shift) % len(DAMAGES)](path)
        wanted[str(path.relative_to(root))] = action
    done = {}
    for _ in FILES:
        try:
            after = start(config)
            break
        except RollwrightError as error:
            name, action = follow(str(error), backup, root)
            assert name not in done, "what was advised did not help"
            done[name] = action
    else:
        pytest.fail("the run does not go on")
    assert done == {name: action for name, action in wanted.items() if action != BY_ITSELF}
    for key, value in before.items():
        assert after[key] == value, key
    used = [row.episode_id for version in (1, 2) for row in published_batch(RunStore(root), version).rows]
    assert after["states"]["consumed"] == len(set(used)), "by the files"
    other = config.model_copy(update={"algorithm": config.algorithm.model_copy(update={"std_epsilon": 0.3})})
    with pytest.raises(ChangedValuesError, match=r"algorithm\.std_epsilon"), open_run(other):
        pass
    assert [each for each in examine(root) if each.severity == "fault"] == []


def test_a_blocked_site_is_visited_again_without_its_blocklist(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    atomic_write_bytes(store.blocklist_path / "a.json", b'{"site": "mail", "wall": "captcha", "time": 900.0}')
    with pytest.raises(SiteError) as said:
        Blocklist(store).left_out("i000000", {"mail"}, 12, 1000.0)
    follow(str(said.value), tmp_path, tmp_path)
    assert Blocklist(store).left_out("i000000", {"mail"}, 12, 1000.0) == frozenset()


def test_a_policy_with_new_weights_is_evaluated_again(
    whole: tuple[TrainConfig, dict[str, Any]], tmp_path: Path
) -> None:
    """With the same weights its evaluation stands. What was played by the others is kept, and
    counts no more."""
    config, _ = whole
    shutil.copytree(config.run_dir, tmp_path / "r")
    config = config.model_copy(update={"root": str(tmp_path)})
    store, said = RunStore(config.run_dir), list[str]()
    old = read_json(store.evaluation_path(2))
    for weights, again in ((b"weights 2", False), (b"others", True), (b"others", False)):
        (store.policy_path(2) / "model.safetensors").write_bytes(b"torn")
        with pytest.raises(StorageError) as error:
            start(config)
        follow(str(error.value), tmp_path, store.root)
        shutil.rmtree(store.root / "damaged")  # so that it may be moved there once more
        said.clear()
        with open_run(config) as run:
            publish(store, 2, weights)
            run.rollouts = Play(store)  # type: ignore[assignment]
            progress: Any = SimpleNamespace(log=said.append)
            loop = SynchronousLoop(run, None, 1, progress)  # type: ignore[arg-type]
            loop.evaluate()
            lines = run.metrics.lines(EvaluationMetrics)
            assert bool(run.rollouts.played) is again  # type: ignore[attr-defined]
        assert any("made again with other weights" in each for each in said) is again
    found = read_json(store.evaluation_path(2))
    assert found["policy"] != old["policy"] and [line.version for line in lines] == [0, 2, 2]
    assert lines[-1].policy == found["policy"] == policy_digest(store, 2)
    kept = store.root / "outdated" / "v000002-1"
    assert read_json(kept / "evaluations/v000002.json") == old and any((kept / "groups/e000002").iterdir())


def test_a_finished_run_whose_last_policy_is_gone_is_not_finished(
    whole: tuple[TrainConfig, dict[str, Any]], tmp_path: Path
) -> None:
    """Its result is still there: the advice to move the policy aside would come to nothing."""
    config, _ = whole
    shutil.copytree(config.run_dir, tmp_path / "r")
    config = config.model_copy(update={"root": str(tmp_path), "iterations": 2})
    store = RunStore(config.run_dir)
    write_json(store.result_path, {"updates": 2})
    assert finished_result(config, store) is not None
    store.policy_path(2).rename(tmp_path / "aside")
    assert finished_result(config, store) is None
