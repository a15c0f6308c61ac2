"""A run's folder: what may be changed when it is opened again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from envs.chat import DamagedLedger, Ledger
from envs.types import ConfigError, PolicyError, StorageError
from tasks_lib.config import PROJECT, TrainConfig, resolve
from tasks_lib.folder.checkpoints import check_checkpoint, publish_base
from tasks_lib.folder.frozen_config import COPY
from tasks_lib.loops.run import open_run
from tasks_lib.preflight.flows import check_training
from tasks_lib.processes.dask_clients import units_of_shard
from tasks_lib.rollouts.evaluation import evaluate_version
from tests.tasks_lib.damaged_run import write_run
from training.ledger.store import RunStore, read_json, write_json


def _config(root: Path, **changes: Any) -> TrainConfig:
    config: TrainConfig = resolve(TrainConfig, {"root": str(root), "preset": "quickstart", "run_id": "r", **changes})
    return config


def test_a_run_of_before_a_key_was_there_goes_on_with_its_default(tmp_path: Path) -> None:
    with open_run(_config(tmp_path)) as run:
        path = run.store.config_path
    written = read_json(path)
    del written["config"]["rewards"], written["config"]["tasks"]["blocklist_hours"]
    write_json(path, written)
    with open_run(_config(tmp_path)):
        assert "rewards" in read_json(path)["config"]
    write_json(path, written)
    with (
        pytest.raises(ConfigError, match="started with other values of: rewards "),
        open_run(_config(tmp_path, rewards={"length": 0.5})),
    ):
        pass


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("concurrency", [4, 24, 512])
@pytest.mark.parametrize("running", [0, 7])
@pytest.mark.parametrize("given", [0, 6])
def test_workers_have_a_place_for_all_groups_that_are_under_way(
    workers: int, concurrency: int, running: int, given: int, tmp_path: Path
) -> None:
    rollout = {"concurrency": concurrency, "groups_per_task": given}
    changes = {"cluster": {"workers": workers}, "pacing": {"running": running}, "rollout": rollout}
    with open_run(_config(tmp_path, mode="async", **changes)) as run:
        at_once = run.config.pacing.groups_at_once(workers, concurrency, 8)
        size = run.groups_per_task * 8
        side_by_side = run.places // units_of_shard(size, run.places, shared=True)
        assert side_by_side * size >= min(3 * concurrency, 2 * size), "a worker gets what it plays three times over"
        assert run.groups_per_task == given or (not given and 1 <= run.groups_per_task <= min(4, -(-concurrency // 8)))
        assert running or at_once >= 3 * concurrency * workers / 8


def test_what_decided_the_run_so_far_may_not_change(tmp_path: Path) -> None:
    with open_run(_config(tmp_path)):
        pass
    with open_run(_config(tmp_path, iterations=99)):
        pass
    with (
        pytest.raises(
            ConfigError,
            match=r"started with other values of: seed, rollout (.|\n)*\n  rollout.attempts: 3 then, 2 now\n  seed: 0 then, 4 now$",
        ),
        open_run(_config(tmp_path, seed=4, rollout={"attempts": 2})),
    ):
        pass


DAMAGE = {
    "cut short": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\0" * 512),
    "other schema": lambda path: path.write_text('{"config": [1]}'),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_configuration_never_lets_other_values_in(tmp_path: Path, damage: str) -> None:
    """What refuses changed keys is read from the copy; without that nothing goes on, whatever is
    advised is followed."""
    with open_run(_config(tmp_path)) as run:
        path = run.store.config_path
        whole = path.read_bytes()
        write_json(run.store.group_path("i000000-g0000"), {})  # it has begun
    DAMAGE[damage](path)
    with pytest.raises(ConfigError, match=r"other values of: seed"):
        check_training(_config(tmp_path, seed=4))
    check_training(_config(tmp_path))
    DAMAGE[damage](path.with_name(COPY))
    for config in (_config(tmp_path), _config(tmp_path, seed=4)):
        with pytest.raises(
            StorageError, match=r"config.json is .*put back a copy of that file .*or use another run_id$"
        ) as said:
            check_training(config)
        assert "delete" not in str(said.value) and "\n" not in str(said.value)
    check_training(_config(tmp_path, run_id="another", seed=4))
    path.write_bytes(whole)
    check_training(_config(tmp_path))
    with pytest.raises(ConfigError, match=r"other values of: seed"):
        check_training(_config(tmp_path, seed=4))


def test_opening_a_run_removes_files_of_killed_processes(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with open_run(_config(tmp_path)) as run:
        root = run.store.root
    (root / "blobs" / "ab").mkdir(parents=True)
    left = [root / "blobs" / "ab" / f".x.jpg.{dead.pid}.0123abcd.tmp", root / f".result.json.{dead.pid}.0123abcd.tmp"]
    kept = [root / f".live.json.{os.getpid()}.0123abcd.tmp", root / "blobs" / "ab" / "notes.tmp"]
    for path in (*left, *kept):
        path.touch()
    with open_run(_config(tmp_path)):
        assert not any(path.exists() for path in left) and all(path.exists() for path in kept)


def test_a_damaged_policy_is_noticed_when_a_run_is_opened(tmp_path: Path) -> None:
    config = _config(tmp_path)
    with open_run(config) as run:
        publish_base(run.store, PROJECT / "datasets" / "policies" / "reader")
        weights = run.store.policy_path(0) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    for begin in (check_training, lambda config: open_run(config).__enter__()):
        with pytest.raises(
            StorageError, match=r"policy v0 is damaged: .*model\.safetensors .*; to go on, move"
        ) as said:
            begin(config)
    found = re.search(r"move (\S+) to (\S+) and start the same command again", str(said.value))
    assert found
    Path(found[2]).parent.mkdir()
    Path(found[1]).rename(found[2])
    with open_run(config) as run:
        publish_base(run.store, PROJECT / "datasets" / "policies" / "reader")
        run.store.check_policy(0)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_checkpoint_that_was_cut_short_is_refused_by_name(tmp_path: Path, name: str) -> None:
    """Of a warm start, of a run and of anybody's: copied in, it would get a manifest that agrees
    with the damage."""
    reader = PROJECT / "datasets" / "policies" / "reader"
    for where, left_out in (("warm", ()), ("anybody", ("recipe.json",))):
        folder = Path(shutil.copytree(reader, tmp_path / where, ignore=shutil.ignore_patterns(*left_out)))
        check_checkpoint(folder)
        path = folder / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(PolicyError, match=rf"^policy\.checkpoint: {path} .*give another checkpoint"):
            check_checkpoint(folder)
        with pytest.raises(StorageError, match=name):
            RunStore(tmp_path / "run").publish_policy(0, folder, {})
        assert not RunStore(tmp_path / "run").policy_path(0).exists()


def test_only_the_judge_budget_of_a_run_may_change(tmp_path: Path) -> None:
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_requests": 9}
    with open_run(_config(tmp_path, rollout={"judge": judge})) as run:
        ledger = Ledger(run.store.spent_path())
        for _ in range(9):
            assert ledger.claim(run.rollouts.rollout.judge.limits) is None
        assert (
            ledger.claim(run.rollouts.rollout.judge.limits) == "the budget of 9 requests is used up (budget_requests)"
        )
    greater = {**judge, "budget_requests": 10, "budget_tokens": 500}
    config = _config(tmp_path, rollout={"judge": greater})
    check_training(config)
    with open_run(config) as run:
        limits = run.rollouts.request([], 0).rollout.judge.limits
        assert ledger.claim(limits) is None and ledger.claim(limits) is not None, "one more, as what was spent is kept"
        assert read_json(run.store.config_path)["config"]["rollout"]["judge"]["budget_requests"] == 10
    for other, says in (
        ({**judge, "votes": 3}, r"\n  rollout\.judge\.votes: 1 then, 3 now$"),
        (None, r"\n  rollout\.judge: .*, null now$"),
    ):
        with pytest.raises(ConfigError, match=rf"started with other values of: rollout \((.|\n)*{says}"):
            check_training(_config(tmp_path, rollout={"judge": other}))


@pytest.mark.parametrize("content", ['{"requests": 7, "to', '{"requests": -7, "tokens": 0}', "[7, 0]", "\0" * 96])
def test_a_run_with_an_unknown_judge_bill_begins_nothing(tmp_path: Path, content: str) -> None:
    judge = {"base_url": "http://127.0.0.1:9/v1", "models": {"default": "m"}, "budget_requests": 9}
    config = _config(tmp_path, rollout={"judge": judge})
    check_training(config)
    match = r"judge_spent\.sqlite: this is no ledger .*; nothing is sent until you write .* and then delete the file"
    with open_run(config) as run:
        path = run.store.spent_path()
        path.write_text(content)
        with pytest.raises(
            DamagedLedger, match=match
        ):  # outside of a flow: anything that is rolled out would be another error
            evaluate_version(run.rollouts, 0, run.tasks, episodes=1, workers=1)
        assert path.read_text() == content and not list(run.store.root.glob("groups/*"))
    with pytest.raises(DamagedLedger, match=match):
        check_training(config)
    path.unlink()
    check_training(config)
    without = _config(tmp_path / "without")
    with open_run(without) as run:
        run.store.spent_path().write_text(content)
    check_training(without)  # without a judge nobody counts


def test_a_run_goes_on_when_the_checkpoint_that_it_began_with_is_gone(tmp_path: Path) -> None:
    base = Path(shutil.copytree(PROJECT / "datasets" / "policies" / "reader", tmp_path / "base"))
    store = RunStore(tmp_path / "run")
    publish_base(store, base)
    shutil.rmtree(base)
    publish_base(store, base)
    assert store.versions() == [0]


def files_read(monkeypatch: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """Files of groups, batches and trajectories that are read from now on, below a folder."""
    read: list[str] = []

    def look(path: object) -> None:
        name = str(path)
        if name.startswith(str(folder)):
            read.append(str(Path(name).relative_to(folder)))

    read_bytes, opened = Path.read_bytes, open

    def bytes_of(path: Path) -> bytes:
        look(path)
        return read_bytes(path)

    def open_file(path: Any, *arguments: Any, **options: Any) -> Any:
        look(path)
        return opened(path, *arguments, **options)

    monkeypatch.setattr(Path, "read_bytes", bytes_of)
    monkeypatch.setattr("builtins.open", open_file)
    return read


def test_a_run_that_goes_on_reads_only_what_came_since(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups, batches and trajectories of versions that were checked once are not read again, and
    the ledger is as before. What was changed since is read, and refused."""
    config, store = write_run(tmp_path)
    with open_run(config) as run:
        events, episodes = run.journal.events(), run.journal.episodes()
    read = files_read(monkeypatch, store.root)

    def opened() -> set[str]:
        read.clear()
        with open_run(config) as run:
            assert (run.journal.events(), run.journal.episodes()) == (events, episodes)
            assert run.journal.updates() == [1, 2]
        return {name for name in read if name.startswith(("groups/i00000", "batches", "trajectories"))}

    last = {f"groups/i000002/i000002-g{number:04d}.json" for number in range(3)} | {"batches/v000003.json"}
    assert opened() <= last, "those of the iteration under way"
    store.journal_path.unlink()
    assert len(opened()) > len(last), "a new ledger is made of all files"
    assert opened() <= last
    group = store.group_path("i000000-g0000")
    os.utime(group, ns=(0, 0))
    assert str(group.relative_to(store.root)) in opened()
    assert opened() <= last
    store.trajectory_path("i000001-g0000-s00-a0").unlink()
    with pytest.raises(StorageError, match="the trajectory of episode i000001-g0000-s00-a0 does not exist"):
        opened()
