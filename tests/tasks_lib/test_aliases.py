"""Aliases of versions: what they lead to, who may have one, and that retention keeps it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envs.types import ConfigError, PolicyError, StorageError
from tasks_lib.commands.doctor import examine
from tasks_lib.config import PROJECT, EvaluateConfig, TrainConfig, resolve_checkpoint
from tasks_lib.config.promotion import PromoteConfig
from tasks_lib.folder.checkpoints import check_checkpoint, evaluated_version, publish_base
from tasks_lib.folder.metrics import MetricsLog
from tasks_lib.folder.metrics_lines import EvaluationMetrics
from tasks_lib.folder.promotion import choose_promotion
from tasks_lib.folder.weight_removal import PolicyRetention
from tasks_lib.loops.run import open_run
from tasks_lib.preflight.flows import check_evaluation, check_promotion, check_training
from training.config import TrainerConfig
from training.ledger.aliases import read_alias, read_aliases, remove_alias, remove_unless_aliased, set_alias
from training.ledger.checkpoint_files import REMOVED
from training.ledger.store import RunStore, write_json

from .test_retention import Published

READER = PROJECT / "datasets" / "policies" / "reader"


def published(root: Path, count: int) -> Published:
    run = Published(root)
    for version in range(count):
        run.publish(version)
    return run


@pytest.fixture(scope="module")
def reader_run(tmp_path_factory: pytest.TempPathFactory) -> RunStore:
    """A run with two versions, both the shipped policy; the first one was measured to be better."""
    store = RunStore(tmp_path_factory.mktemp("runs") / "mine")
    for version in (0, 1):
        publish_base(store, READER, version)
    metrics = MetricsLog(store.metrics_path, store.root / "tensorboard")
    for version, mean in ((0, 0.75), (1, 0.5)):
        metrics.append(EvaluationMetrics(version=version, mean=mean, low=0.1, high=0.9, n=20), version)
    metrics.close()
    return store


def test_an_alias_leads_to_its_version_and_says_who_moved_it(tmp_path: Path) -> None:
    store = published(tmp_path / "x", 3).store
    set_alias(store, "best", 1, "ann@host")
    assert resolve_checkpoint(f"{store.root}@best") == store.policy_path(1)
    moved = set_alias(store, "best", 2, "bob")
    assert (moved.version, moved.before, moved.by) == (2, 1, "bob") and moved.at.endswith("Z")
    assert resolve_checkpoint(f"{store.root}@best") == store.policy_path(2)
    assert evaluated_version(RunStore(tmp_path / "e"), resolve_checkpoint(f"{store.root}@best")) == 2
    (tmp_path / "x@best").mkdir()
    assert resolve_checkpoint(f"{store.root}@best") == tmp_path / "x@best", "a folder of that name is that folder"


def test_what_has_no_alias_or_no_version_is_named(tmp_path: Path) -> None:
    store = published(tmp_path / "x", 3).store
    for name in ("best", "staging"):
        set_alias(store, name, 2, "ann")
    with pytest.raises(
        PolicyError, match=r"policy\.checkpoint: .*x has no alias 'bets'; .*best.*it has: best, staging"
    ):
        check_checkpoint(resolve_checkpoint(f"{store.root}@bets"))
    store.policy_path(2).rename(tmp_path / "moved")
    with pytest.raises(PolicyError, match=r"has no version 2 \(alias best, staging\); it has: v000000, v000001"):
        check_checkpoint(resolve_checkpoint(f"{store.root}@best"))
    (finding,) = [each for each in examine(store.root) if each.path == "aliases/best.json"]
    assert "names version 2, which has no weights" in finding.what
    with pytest.raises(ConfigError, match="has no version 7; it has"):
        set_alias(store, "best", 7, "ann")
    store.alias_path("staging").write_text("{}")
    with pytest.raises(StorageError, match=r"staging\.json is no alias: name: .*give the name again"):
        read_aliases(store)


def test_retention_never_removes_a_version_that_has_an_alias(tmp_path: Path) -> None:
    run = published(tmp_path, 8)
    set_alias(run.store, "staging", 3, "ann")
    retention = PolicyRetention(run.store, TrainerConfig(keep_policies=2, keep_best=False))
    assert retention.remove(7, {}) == [1, 2, 4, 5] and run.check() == [0, 3, 6, 7]
    with pytest.raises(StorageError, match="were removed"):
        set_alias(run.store, "staging", 4, "bob")
    assert remove_alias(run.store, "staging").version == 3
    assert retention.remove(7, {}) == [3], "it has no name any more"
    with pytest.raises(ConfigError, match="has no alias 'staging'; it has none yet; give one with"):
        remove_alias(run.store, "staging")


def test_a_name_given_during_a_removal_keeps_the_version_or_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each side writes before it reads what the other one writes."""
    store = published(tmp_path, 3).store
    marker = store.policy_path(1) / REMOVED

    def mark() -> None:
        set_alias(store, "kept", 1, "ann")  # the removal has read the aliases before
        write_json(marker, {})

    assert not remove_unless_aliased(store, 1, mark) and not marker.exists()
    store.check_policy(1)
    set_alias(store, "other", 0, "ann")
    checked = RunStore.check_policy

    def check(self: RunStore, version: int) -> None:
        checked(self, version)
        write_json(marker, {})  # the removal begins after the check

    monkeypatch.setattr(RunStore, "check_policy", check)
    for name, before in (("other", 0), ("new", None)):
        marker.unlink(missing_ok=True)
        with pytest.raises(StorageError, match="were removed"):
            set_alias(store, name, 1, "bob")
        alias = read_alias(store, name)
        assert (alias.version if alias else None) == before


def test_the_best_is_chosen_by_its_evaluation_and_others_are_the_newest(reader_run: RunStore) -> None:
    run = str(reader_run.root)
    assert choose_promotion(PromoteConfig(run=run, alias="best")).version == 0
    chosen = choose_promotion(PromoteConfig(run=run, alias="staging"))
    assert chosen.version == 1 and "version 1 of mine (success 0.500" in chosen.describe()
    with pytest.raises(ConfigError, match=r"version: .* has no version 9; it has: v000000, v000001"):
        check_promotion(PromoteConfig(run=run, alias="best", version=9))
    with pytest.raises(ConfigError, match="no published version"):
        check_promotion(PromoteConfig(run=f"{run}x", alias="best"))
    with pytest.raises(ConfigError, match=r"approval: .*PREFECT_API_URL.*prefect server start"):
        check_promotion(PromoteConfig(run=run, alias="best", approval=True))


def test_the_command_promotes_and_other_flows_accept_the_alias(reader_run: RunStore, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "flows.promote", str(reader_run.root), "--alias", "best"]
    done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "mine@best is version 0" in done.stderr and "Prefect server" not in done.stderr
    alias = read_alias(reader_run, "best")
    assert alias is not None and "@" in alias.by
    given = {"policy": {"checkpoint": f"{reader_run.root}@best"}, "root": str(tmp_path)}
    tasks = {"kinds": ["click-test-2"]}
    check_evaluation(EvaluateConfig.model_validate({**given, "tasks": tasks, "episodes": 2}))
    check_training(TrainConfig.model_validate({**given, "tasks": tasks, "evaluation": {"episodes": 2}}))
    wrong = {**given, "policy": {"checkpoint": f"{reader_run.root}@worst"}}
    with pytest.raises(PolicyError, match="has no alias 'worst'"):
        check_evaluation(EvaluateConfig.model_validate({**wrong, "tasks": tasks, "episodes": 2}))


def test_a_run_that_began_from_an_alias_goes_on_without_it(reader_run: RunStore, tmp_path: Path) -> None:
    set_alias(reader_run, "start", 1, "ann")
    given = {"policy": {"checkpoint": f"{reader_run.root}@start"}, "root": str(tmp_path), "run_id": "later"}
    config = TrainConfig.model_validate({**given, "tasks": {"kinds": ["click-test-2"]}, "evaluation": {"episodes": 2}})
    with open_run(config) as run:
        publish_base(run.store, resolve_checkpoint(config.policy.checkpoint))
    assert run.store.manifest(0)["source"] == "v000001"
    for change in (lambda: set_alias(reader_run, "start", 0, "bob"), lambda: remove_alias(reader_run, "start")):
        change()
        assert any("goes on after version 0" in line for line in check_training(config))
        with open_run(config) as run:
            publish_base(run.store, resolve_checkpoint(config.policy.checkpoint))
            assert run.version == 0
