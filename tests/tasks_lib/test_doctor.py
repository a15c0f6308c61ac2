"""Damaged run folders: what opening one does about them, and what the doctor says. Every advice is
followed."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from prefect.logging import disable_run_logger

from envs.types import StorageError, TrainingError
from flows.doctor import main
from tasks_lib.commands.doctor import examine
from tasks_lib.config import TrainConfig
from tasks_lib.folder.batches import batch_of
from tasks_lib.folder.metrics_lines import IterationMetrics
from tasks_lib.folder.repair import repair_group, repair_run
from tasks_lib.loops.run import open_run
from tasks_lib.processes.trainer import update_policy
from tests.builders import stored_blob
from tests.tasks_lib import damaged_run
from tests.tasks_lib.damaged_run import TOKEN, played, write_run
from training.ledger.journal import Journal, read_batch
from training.ledger.store import RunStore, atomic_write_bytes, read_json, write_json
from training.records.batches import TrainingBatch
from training.trainer.rows import read_batch_file as read_rows_of
from training.trainer.rows import read_rows

PUBLISHED, PENDING = "groups/i000000/i000000-g0000.json", "groups/i000002/i000002-g0000.json"
OTHER = "groups/i000001/i000001-g0000.json"


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(bytes(range(256)))


def another_schema(path: Path) -> None:
    path.write_text('{"version": 1}')


def another_one(path: Path) -> None:
    """A whole file of the same kind, but of another name."""
    other = sorted(each for each in path.parent.parent.glob("*/*.json") if each.name != path.name)
    shutil.copy(other[-1], path)


def missing(path: Path) -> None:
    path.unlink()


DAMAGES = (truncated, empty, garbage, another_schema, another_one, missing)
damages = pytest.mark.parametrize("damage", DAMAGES, ids=lambda each: each.__name__)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Path]:
    """A run that no test changes."""
    folder = tmp_path_factory.mktemp("whole")
    config, store = write_run(folder)
    return config, store.root


@pytest.fixture
def run(whole: tuple[TrainConfig, Path], tmp_path: Path) -> tuple[TrainConfig, RunStore]:
    """A copy of it."""
    config, root = whole
    shutil.copytree(root, tmp_path / "r")
    return config.model_copy(update={"root": str(tmp_path)}), RunStore(tmp_path / "r")


def content(root: Path) -> dict[str, bytes]:
    """All files of a folder but what opening a run changes in any case."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in files
        if path.name not in ("journal.sqlite", "run.lock") and path.suffix != ".damaged"
    }


def states(store: RunStore) -> dict[str, int]:
    """The ledger as the files give it."""
    journal = Journal(Path(":memory:"))
    try:
        journal.refresh(store)
        return journal.episodes()
    finally:
        journal.close()


def faults(store: RunStore) -> list[str]:
    return [str(each) for each in examine(store.root) if each.severity == "fault"]


def test_a_whole_run_has_no_finding_and_opening_it_changes_nothing(
    run: tuple[TrainConfig, RunStore], capsys: pytest.CaptureFixture[str]
) -> None:
    config, store = run
    before = content(store.root)
    assert main(["--run", str(store.root)]) == 0 and capsys.readouterr().out.endswith(": no faults\n")
    assert examine(store.root) == [] and repair_run(store, config) == []
    assert content(store.root) == before
    wanted = {"consumed": 4, "zero_variance": 6, "abstained": 6, "in_flight": 5}
    counted = states(store)
    assert {name: counted[name] for name in wanted} == wanted and counted["started"] == 21


@damages
@pytest.mark.parametrize("name", [PUBLISHED, PENDING])
def test_a_damaged_record_is_made_again_from_its_trajectories(
    run: tuple[TrainConfig, RunStore], damage: Callable[[Path], None], name: str
) -> None:
    config, store = run
    before, counted = content(store.root), states(store)
    damage(store.root / name)
    if damage is missing and name == PENDING:  # then it is rolled out again, and its batch is made again with it
        (said,) = repair_run(store, config)
        assert said.startswith(str(store.batch_path(3))) and not store.batch_path(3).exists()
        return
    assert (store.root / name).stem in "".join(faults(store)) and "start the run again" in "".join(faults(store))
    (said,) = repair_run(store, config)
    assert name in said and "made again from its 2 trajectories" in said
    assert content(store.root) == before and states(store) == counted
    assert faults(store) == []


@damages
def test_a_damaged_batch_is_the_one_that_the_manifest_names(
    run: tuple[TrainConfig, RunStore], damage: Callable[[Path], None]
) -> None:
    config, store = run
    before = content(store.root)
    damage(store.batch_path(1))
    assert "batches/v000001.json" in "".join(faults(store))
    (said,) = repair_run(store, config)
    assert "made again from its groups, as its manifest says" in said and content(store.root) == before


@damages
def test_a_damaged_batch_that_nothing_was_trained_on_is_put_aside(
    run: tuple[TrainConfig, RunStore], damage: Callable[[Path], None]
) -> None:
    config, store = run
    damage(store.batch_path(3))
    said = repair_run(store, config)
    assert not store.batch_path(3).exists() and (said != []) == (damage is not missing)


def test_a_batch_whose_groups_give_another_one_is_refused(run: tuple[TrainConfig, RunStore]) -> None:
    config, store = run
    truncated(store.batch_path(1))
    document = read_json(store.root / PUBLISHED)
    document["episodes"][0]["score"] = 0.5
    write_json(store.root / PUBLISHED, document, sealed=True)
    with pytest.raises(StorageError, match="its groups give another one than version 1 was trained on"):
        repair_run(store, config)


@damages
def test_a_damaged_trajectory_of_a_published_iteration_is_named(
    run: tuple[TrainConfig, RunStore], damage: Callable[[Path], None]
) -> None:
    """Opening sees those that are missing or cut off; the doctor sees all."""
    config, store = run
    episode = "i000000-g0001-s01-a0"
    path = store.trajectory_path(episode)
    copy = path.read_bytes()
    damage(path)
    assert (
        len(faults(store)) == 1 and episode in faults(store)[0] and "Put the files back from a copy" in faults(store)[0]
    )
    if damage in (truncated, empty, garbage, missing):
        with pytest.raises(StorageError, match=rf"{episode}.*Put the files back from a copy"):
            repair_run(store, config)
    path.write_bytes(copy)  # the advice
    assert faults(store) == [] and repair_run(store, config) == []


@pytest.mark.parametrize("batch", [lambda _: None, truncated], ids=["batch whole", "batch truncated"])
def test_the_record_of_a_group_that_only_abstained_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: Callable[[Path], None]
) -> None:
    """No row of a batch is of such a group; the batch, or else the manifest, names it."""
    monkeypatch.setattr(damaged_run, "GROUPS", [[1.0, 0.0], [None, None]])
    config, store = write_run(tmp_path)
    before, counted = content(store.root), states(store)
    record = store.group_path("i000000-g0001")
    record.unlink()
    batch(store.batch_path(1))
    with open_run(config) as run:
        assert any("i000000-g0001" in line and "made again from its 4 trajectories" in line for line in run.repairs)
        assert run.journal.episodes() == counted and run.sampler.groups(0, 0), "nothing of it is in flight"
    assert {name: data for name, data in content(store.root).items() if name in before} == before
    record.unlink()
    for episode_id, token in store.stored_trajectories():
        if episode_id.startswith("i000000-g0001"):
            store.trajectory_path(episode_id, token).unlink()
    with pytest.raises(StorageError, match=r"record of group i000000-g0001 cannot be made again.*Put the files"):
        repair_run(store, config)


def test_a_record_that_lost_an_episode_is_refused(run: tuple[TrainConfig, RunStore]) -> None:
    """Also one that abstained, which no batch names: its trajectory is there."""
    config, store = run
    path = store.root / "groups/i000000/i000000-g0002.json"
    document = read_json(path)
    document["episodes"].pop(0)
    write_json(path, document, sealed=True)
    with pytest.raises(StorageError, match="does not list episode i000000-g0002-s00-a0, which its attempt has stored"):
        repair_run(store, config)
    assert any("i000000-g0002-s00-a0" in each for each in faults(store))


def test_what_cannot_be_made_again_is_named(run: tuple[TrainConfig, RunStore]) -> None:
    """The record of a group that was trained on, and a trajectory of it. Of the iteration under way
    the group is rolled out again."""
    config, store = run
    for name in (PENDING, PUBLISHED):
        group_id = Path(name).stem
        truncated(store.trajectory_path(f"{group_id}-s01-a0"))
        truncated(store.root / name)
        if name == PENDING:
            assert any("rolled out again" in each for each in faults(store))
            assert "of its 2 episodes i000002-g0000-s01 are not whole" in repair_run(store, config)[0]
            assert not store.group_path(group_id).exists()
    with pytest.raises(
        StorageError, match=r"of its 2 episodes i000000-g0000-s01 are not whole.*cannot be played again"
    ):
        repair_run(store, config)


@damages
def test_a_damaged_record_of_any_group_is_seen_to_before_it_is_rolled_out(
    run: tuple[TrainConfig, RunStore], damage: Callable[[Path], None]
) -> None:
    """Also of an evaluation: a worker takes a record that is there for one that is whole."""
    _, store = run
    before = (store.root / PENDING).read_bytes()
    damage(store.root / PENDING)
    said = repair_group(store, Path(PENDING).stem, None, size=2, attempts=2)
    assert (said == "") == (damage is missing) and repair_group(
        store, Path(PENDING).stem, None, size=2, attempts=2
    ) == ""
    if damage is not missing:
        assert (store.root / PENDING).read_bytes() == before
        damage(store.root / PENDING)
        store.trajectory_path("i000002-g0000-s00-a0", TOKEN).unlink()
        assert "it is rolled out again" in repair_group(store, Path(PENDING).stem, None, size=2, attempts=2)
        assert not store.group_path(Path(PENDING).stem).exists()


def test_a_killed_attempt_is_no_part_of_the_new_record(
    run: tuple[TrainConfig, RunStore],
) -> None:
    config, store = run
    other = played(store, "i000000-g0000", 0, 0, 0.0)
    store.put_trajectory(other, "dead")
    assert [each.severity for each in examine(store.root)] == ["note"]
    before = content(store.root)
    truncated(store.root / PUBLISHED)
    repair_run(store, config)
    assert content(store.root) == before and TOKEN in (store.root / PUBLISHED).read_text()


CHECKED = {
    "config": ("config.json", truncated),
    "manifest": ("policies/v000001/manifest.json", truncated),
    "weights": ("policies/v000001/model.safetensors", garbage),
    "weights gone": ("policies/v000000/model.safetensors", missing),
    "metrics": ("metrics.jsonl", lambda path: path.write_bytes(b"{\n" + path.read_bytes())),
    "counters": (
        "metrics.jsonl",
        lambda path: path.write_bytes(path.read_bytes().replace(b'"consumed":2', b'"consumed":3')),
    ),
}


@pytest.mark.parametrize("what", CHECKED)
def test_the_doctor_checks_every_other_file(
    run: tuple[TrainConfig, RunStore], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _, store = run
    name, damage = CHECKED[what]
    damage(store.root / name)
    before = content(store.root)
    assert main(["--run", str(store.root), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    found = [each for each in document["findings"] if each["severity"] == "fault"]
    assert document["faults"] == len(found) and name in {each["path"] for each in found}
    assert all(each["what"] and each["todo"] for each in found)
    assert content(store.root) == before, "the doctor only reads"


def test_what_the_doctor_advises_is_safe_to_do(run: tuple[TrainConfig, RunStore]) -> None:
    """A start of an iteration is made again by the same draws, and a damaged line is in other
    files."""
    config, store = run
    with open_run(config) as opened:
        drawn = opened.sampler.groups(2, 0)
    start = store.sampler_state_path(2)
    kept = start.read_bytes()
    truncated(start)
    store.metrics_path.write_bytes(b"{\n" + store.metrics_path.read_bytes())
    found = {each.path: each.todo for each in examine(store.root) if each.severity == "fault"}
    assert {path: todo.partition(":")[0] for path, todo in found.items()} == {
        "starts/i000002.json": "move it to i000002.json.damaged",
        "metrics.jsonl": "start the run again",
    }
    start.rename(start.with_name("i000002.json.damaged"))
    with open_run(config) as opened:
        assert opened.sampler.groups(2, 0) == drawn and start.read_bytes() == kept
        assert len(opened.metrics.lines(IterationMetrics)) == 2
    assert faults(store) == []


@pytest.mark.parametrize("lost", ["screenshot", "trajectory"])
def test_a_pending_update_leaves_out_episodes_with_lost_evidence(run: tuple[TrainConfig, RunStore], lost: str) -> None:
    """The trainer refuses the batch; it gets another one, and the ledger says of each episode where
    it went and why."""
    config, store = run
    episode = "i000002-g0000-s01-a0"
    path = store.trajectory_path(episode)
    (stored_blob(store, store.trajectory(episode).steps[1].screenshot) if lost == "screenshot" else path).unlink()
    whole = read_batch(store, 3)

    class Trainer:
        """Reads what a trainer reads, and publishes."""

        def update(self, version: int) -> dict[str, Any]:
            batch, sha256 = read_rows_of(store, version)
            read_rows(store, batch)
            weights = store.policy_path(version) / "model.safetensors"
            atomic_write_bytes(weights, b"weights")
            files = {weights.name: {"size": 7, "sha256": hashlib.sha256(b"weights").hexdigest()}}
            manifest = {"version": version, "batch": sha256, "group_ids": batch.group_ids, "files": files}
            write_json(weights.parent / "manifest.json", manifest)
            return manifest

    def remake(damaged: Mapping[str, str]) -> TrainingBatch:
        return batch_of(store, 3, config.algorithm, damaged, seed=config.seed)

    assert repair_run(store, config) == [], "it is not known before the trainer reads it"
    with disable_run_logger():
        with pytest.raises(TrainingError):
            update_policy.fn(store.root, whole, Trainer())  # type: ignore[arg-type]
        update_policy.fn(store.root, whole, Trainer(), remake)  # type: ignore[arg-type]
    made = read_batch(store, 3)
    assert made.rows == tuple(row for row in whole.rows if row.episode_id != episode)
    assert made.left_out is not None and "missing" in made.left_out[episode].reason.replace("does not exist", "missing")
    assert str(store.root) not in made.model_dump_json(), "its bytes are the same wherever the run lies"
    counted = states(store)
    assert (counted["damaged"], counted["in_flight"], counted["consumed"]) == (1, 0, 5)
    if lost == "screenshot":
        assert repair_run(store, config) == []
        data = store.batch_path(3).read_bytes()
        truncated(store.batch_path(3))
        assert "made again from its groups" in repair_run(store, config)[0]
        assert store.batch_path(3).read_bytes() == data


def test_the_doctor_follows_trajectories_to_their_blobs(run: tuple[TrainConfig, RunStore]) -> None:
    _, store = run
    first, second = (store.trajectory(f"i000001-g0000-s{sample:02d}-a0").steps[0].screenshot for sample in (0, 1))
    stored_blob(store, first).unlink()
    garbage(stored_blob(store, second))
    found = faults(store)
    assert len(found) == 2 and first in found[0] and second in found[1]


def test_the_doctor_sees_a_journal_that_is_behind_and_one_that_is_none(run: tuple[TrainConfig, RunStore]) -> None:
    _, store = run
    journal = Journal(store.journal_path)
    journal.clear()
    journal.close()
    (found,) = examine(store.root)
    assert found.severity == "note" and "the files differ, first in episode i000000-g0000-s00-a0" in found.what
    garbage(store.journal_path)
    (found,) = examine(store.root)
    assert found.severity == "note" and "no ledger" in found.what


def test_what_is_no_run_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--run", str(tmp_path)]) == 2
    assert "is no folder of a run" in capsys.readouterr().err
    assert main(["--run", str(tmp_path / "gone")]) == 2
    assert f"there is no folder {tmp_path / 'gone'}; runs are in runs/" in capsys.readouterr().err
