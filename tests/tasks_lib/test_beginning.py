"""A start that fails before anything was done leaves the name to the corrected command, and one
that did something is never touched."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.chat import Ledger, SpendingLimits
from tasks_lib.building.config import BuildTasksConfig
from tasks_lib.building.shards import open_build
from tasks_lib.config import TrainConfig, WarmStartConfig, resolve
from tasks_lib.folder.checkpoints import publish_base
from tasks_lib.folder.failed_start import free_name, has_begun
from tasks_lib.loops.run import open_run
from tasks_lib.warm_start.stages import open_warm_start
from training.ledger.store import RunStore, write_json

READER = Path("datasets/policies/reader").resolve()


def train(root: Path, **changes: Any) -> Any:
    return open_run(resolve(TrainConfig, {"preset": "quickstart", "root": str(root), "run_id": "r", **changes}))


def warm(root: Path, **changes: Any) -> Any:
    values = {"base": str(READER), "root": str(root), "run_id": "r", **changes}
    return open_warm_start(resolve(WarmStartConfig, values))


def build(root: Path, **changes: Any) -> Any:
    sources = [{"kind": "files", "name": "own", "paths": ["datasets/tasks/miniwob.jsonl"]}]
    return open_build(resolve(BuildTasksConfig, {"sources": sources, "root": str(root), "run_id": "r", **changes}))


@pytest.mark.parametrize("opened", [train, warm, build])
@pytest.mark.parametrize("error", [RuntimeError("no cluster"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
def test_a_start_that_fails_leaves_its_name_to_the_corrected_command(
    tmp_path: Path, opened: Callable[..., Any], error: BaseException
) -> None:
    store = RunStore(tmp_path / "r")
    with pytest.raises(type(error)), opened(tmp_path):
        assert store.config_path.exists()
        if opened is not build:
            publish_base(store, READER)
            Ledger(store.spent_path()).claim(SpendingLimits(None, None))  # the judge was asked whether it is there
        raise error
    assert not store.config_path.exists() and not store.versions() and not has_begun(store)
    with opened(tmp_path, seed=5):
        pass
    assert store.config_path.exists()


@pytest.mark.parametrize(
    "work",
    [
        lambda store: write_json(store.group_path("e000000-g0000"), {}),
        lambda store: write_json(store.trajectory_path("e000000-g0000-s00-a0"), {}),
        lambda store: store.metrics_path.write_text("{}\n"),
        lambda store: store.publish_policy(1, READER, {"parent": 0}),
        lambda store: write_json(store.root / "pretrain" / "recipe.json", {}),
        lambda store: (store.root / "notes of mine").write_text("hello"),
    ],
    ids=["group", "trajectory", "metrics", "policy", "pre-training", "another file"],
)
def test_what_was_done_is_kept_whatever_it_is(tmp_path: Path, work: Callable[[RunStore], Any]) -> None:
    store = RunStore(tmp_path / "r")
    with pytest.raises(RuntimeError), train(tmp_path):
        publish_base(store, READER)
        work(store)
        raise RuntimeError("later")
    assert has_begun(store) and store.config_path.exists() and 0 in store.versions() and store.tasks_path.exists()


def test_a_later_start_takes_nothing_back(tmp_path: Path) -> None:
    with train(tmp_path):
        publish_base(RunStore(tmp_path / "r"), READER)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "r" / "policies").rglob("*")}
    for changes in ({}, {"seed": 5}):  # fails later, is refused
        with pytest.raises(Exception, match=r"later|other values"), train(tmp_path, **changes):
            raise RuntimeError("later")
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "r" / "policies").rglob("*")} == before
    assert RunStore(tmp_path / "r").config_path.exists()


def test_a_free_name(tmp_path: Path) -> None:
    assert free_name(tmp_path / "mine") == "mine-2"
    (tmp_path / "mine-2").mkdir()
    os.symlink("/nowhere", tmp_path / "mine-3")
    assert free_name(tmp_path / "mine") == "mine-4"
