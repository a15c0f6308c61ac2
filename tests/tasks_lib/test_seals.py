"""What a run's result rests on is changed by hand: the doctor names it, and opening refuses it or
makes it again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.types import StorageError
from tasks_lib.commands.doctor import examine
from tasks_lib.config import TrainConfig
from tasks_lib.folder.values import finished_result
from tasks_lib.loops.run import open_run
from tests.tasks_lib.damaged_run import write_run
from training.ledger.checkpoint_files import file_hashes
from training.ledger.store import RunStore, atomic_write_bytes, write_json

TRAINED, OTHER, PENDING = (f"groups/i00000{number}/i00000{number}-g0000.json" for number in (0, 1, 2))


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def faults(store: RunStore) -> list[str]:
    return [str(each) for each in examine(store.root) if each.severity == "fault"]


def changed(**values: Any) -> Callable[[Path], None]:
    """Change a JSON document by hand, as an editor does."""

    def change(path: Path) -> None:
        document = json.loads(path.read_bytes())
        document.update({key: value(document[key]) if callable(value) else value for key, value in values.items()})
        path.write_text(json.dumps(document, indent=2))

    return change


def first_episode(**values: Any) -> Callable[[Path], None]:
    return changed(episodes=lambda episodes: [{**episodes[0], **values}, *episodes[1:]])


def without_last_line(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def another_state(folder: Path) -> None:
    shutil.rmtree(folder)
    shutil.copytree(folder.with_name("v000001"), folder)


REFUSED, REMADE, LATER = "refused", "made again", "seen when it is used"
RESTS_ON = {
    "a task less": ("tasks.jsonl", without_last_line, REFUSED),
    "another kind": ("tasks.jsonl", lambda path: path.write_text(path.read_text().replace('"kind":"', '"kind":"no-', 1)), REFUSED),
    "no tasks": ("tasks.jsonl", Path.unlink, REMADE),
    "another seed": ("config.json", changed(config=lambda config: {**config, "seed": 5}), REMADE),
    "an older copy": ("config.copy.json", changed(git_commit="0" * 40), REMADE),
    "another hash of the tasks": ("config.json", changed(tasks_sha256="0" * 64), REMADE),
    "the numbers of an evaluation": ("evaluations/v000002.json", changed(mean=1.0), REFUSED),
    "the result": ("result.json", changed(updates=99), REMADE),
    "the parent of a policy": ("policies/v000001/manifest.json", changed(parent=7), REFUSED),
    "weights added": ("policies/v000002/adapter_model.safetensors", lambda path: path.write_bytes(b"x"), REFUSED),
    "a score that was trained on": (TRAINED, first_episode(score=0.0, passed=False), REMADE),
    "versions of tokens": (TRAINED, first_episode(versions=[[9, 9]]), REMADE),
    "the kind of a group": (OTHER, changed(kind="click-tab"), REMADE),
    "the version of a group": (OTHER, changed(policy_version=7), REMADE),
    "a group that is pending": (PENDING, first_episode(score=0.5), REMADE),
    "sites that were left out": ("left_out/i000001.json", changed(sites=["miniwob"]), LATER),
    "the state of another version": ("trainer/state/v000002", another_state, LATER),
}  # fmt: skip
"""What is changed by hand in a finished run, and what opening it does."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainConfig, Path]:
    config, store = write_run(tmp_path_factory.mktemp("finished"))
    write_json(store.evaluation_path(2), {"version": 2, "mean": 0.5, "n": 2, "by_kind": {}}, sealed=True)
    write_json(store.result_path, {"updates": 2}, sealed=True)
    write_json(store.left_out_path("i000001"), {"sites": []}, sealed=True)
    for version in (1, 2):
        folder = store.trainer_path / "state" / f"v{version:06d}"
        atomic_write_bytes(folder / "optimizer.txt", b"state %d" % version)
        write_json(folder / "manifest.json", {"version": version, "files": file_hashes(folder)}, sealed=True)
    return config, store.root


def restore(root: Path, before: dict[str, bytes]) -> None:
    for name in content(root).keys() - before.keys():
        (root / name).unlink()
    for name, data in before.items():
        atomic_write_bytes(root / name, data, sync=False)


@pytest.mark.parametrize("then", [REFUSED, REMADE, LATER])
def test_what_a_result_rests_on_does_not_change_unseen(
    finished: tuple[TrainConfig, Path], tmp_path: Path, then: str
) -> None:
    config, root = finished
    shutil.copytree(root, tmp_path / "r")
    store, config = RunStore(tmp_path / "r"), config.model_copy(update={"root": str(tmp_path)})
    whole = config.model_copy(update={"iterations": 2})
    assert faults(store) == [] and finished_result(whole, store) == {"updates": 2}
    before = content(store.root)
    for what, (name, damage) in [(what, row[:2]) for what, row in RESTS_ON.items() if row[2] == then]:
        damage(store.root / name)
        assert any(name in fault for fault in faults(store)), f"{what}: the doctor names the file"
        if name.startswith(("tasks", "evaluations", "result")):
            assert finished_result(whole, store) is None, f"{what}: it is no finished run"
        if then == REFUSED:
            advice = rf"(?s){name}.*(put back|move|Put|start another)"
            with pytest.raises(StorageError, match=advice), open_run(config):
                pass
        elif then == REMADE and name != "result.json":  # which the loop writes
            with open_run(config):
                pass
            assert faults(store) == [], what
            after = content(store.root)
            kept = {file for file in before if "journal" not in file and not file.startswith("config")}
            assert {file: after[file] for file in kept} == {file: before[file] for file in kept}, what
        restore(store.root, before)
