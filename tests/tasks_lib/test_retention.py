"""Which policies a run keeps, and that nothing which is needed ever goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.types import PolicyError, StorageError
from tasks_lib.config import TrainConfig
from tasks_lib.config.differences import comparable_settings
from tasks_lib.folder.checkpoints import check_checkpoint
from tasks_lib.folder.weight_removal import PolicyRetention
from training.config import TrainerConfig
from training.ledger.checkpoint_files import MANIFEST, REMOVED, check_checkpoint_files, file_hashes
from training.ledger.retention import best_version, removable_versions
from training.ledger.store import RunStore, write_json
from training.trainer.resume import state_path


@given(st.integers(0, 30), st.integers(0, 8), st.sets(st.integers(0, 30)))
def test_the_newest_the_first_and_the_needed_stay(last: int, keep: int, needed: set[int]) -> None:
    published = range(last + 1)
    gone = removable_versions(published, keep, needed)
    assert not {0, last, last - 1, *needed} & {*gone}
    left = [version for version in published if version not in gone]
    assert left[-keep:] == list(published)[-keep:]
    if keep:
        assert len(left) <= max(keep, 2) + 1 + len(needed), "and nothing else does"
    else:
        assert not gone


def test_the_best_is_the_newest_with_the_highest_mean() -> None:
    assert best_version({}) is None and best_version({0: None}) is None
    assert best_version({0: 0.2, 5: 0.7, 10: 0.5, 15: None}) == 5
    assert best_version({0: 0.5, 5: 0.5}) == 5


class Published:
    """A run's folder whose policies are a few bytes each."""

    def __init__(self, root: Path) -> None:
        self.store = RunStore(root)
        self.manifests: dict[int, bytes] = {}

    def publish(self, version: int) -> None:
        folder = self.store.policy_path(version)
        (folder / "extra").mkdir(parents=True)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "extra/more.json"):
            (folder / name).write_text(f'"{name} of {version}"')
        write_json(folder / MANIFEST, {"version": version, "files": file_hashes(folder)})
        self.manifests[version] = (folder / MANIFEST).read_bytes()
        state_path(self.store, version).mkdir(parents=True)
        for old in sorted(state_path(self.store, 0).parent.iterdir())[:-2]:
            old.rmdir()

    def check(self) -> list[int]:
        """Each version has its weights or says that they were removed; those that have weights."""
        whole = []
        for version, manifest in self.manifests.items():
            folder = self.store.policy_path(version)
            assert (folder / MANIFEST).read_bytes() == manifest
            if (folder / REMOVED).exists():
                assert {path.name for path in folder.iterdir()} == {MANIFEST, REMOVED}
                with pytest.raises(
                    StorageError, match=r"were removed.*trainer\.keep_policies.*take another version: v0"
                ):
                    self.store.check_policy(version)
            else:
                self.store.check_policy(version)
                whole.append(version)
        assert self.store.versions() == [*self.manifests]
        return whole


def test_published_versions_have_weights_or_tell_of_their_removal(tmp_path: Path) -> None:
    run, settings = Published(tmp_path), TrainerConfig(keep_policies=3)
    means = {0: 0.1, 2: 0.9, 4: 0.5, 6: 0.6, 8: 0.95}
    retention = PolicyRetention(run.store, settings)
    for version in range(10):
        run.publish(version)
        known = {each: mean for each, mean in means.items() if each < version}
        retention.remove(version, known)
        whole = run.check()
        assert {0, version, max(version - 1, 0)} <= {*whole}
        assert 2 in whole or version in (0, 1, 9), "the best one, until version 8 was better"
    assert whole == [0, 7, 8, 9]
    assert retention.remove(9, known) == [], "there is nothing left to do"


def test_versions_that_groups_under_way_need_stay_until_these_ended(tmp_path: Path) -> None:
    """A worker that takes such a group over loads the weights that it was started with."""
    run = Published(tmp_path)
    for version in range(7):
        run.publish(version)
    retention = PolicyRetention(run.store, TrainerConfig(keep_policies=2))
    assert retention.remove(6, {}, under_way=(1, 3)) == [2, 4]
    assert run.check() == [0, 1, 3, 5, 6]
    assert retention.remove(6, {}, under_way=(3,)) == [1]
    assert retention.remove(6, {}) == [3]


def test_a_removed_version_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 1,000 versions on shared storage, each look at all of them is 1,000 requests."""
    run = Published(tmp_path)
    for version in range(20):
        run.publish(version)
    retention = PolicyRetention(run.store, TrainerConfig(keep_policies=2))
    assert len(retention.remove(19, {})) == 17
    listed: list[Path] = []
    listing = Path.iterdir

    def look(path: Path) -> Iterator[Path]:
        listed.append(path)
        return listing(path)

    monkeypatch.setattr(Path, "iterdir", look)
    run.publish(20)
    listed.clear()
    assert retention.remove(20, {}) == [18] and [path.name for path in listed if path.name[0] == "v"] == ["v000018"] * 2


def test_a_removal_that_was_cut_off_is_completed(tmp_path: Path) -> None:
    run = Published(tmp_path)
    for version in range(5):
        run.publish(version)
    write_json(run.store.policy_path(1) / REMOVED, {})
    (run.store.policy_path(1) / "config.json").unlink()
    assert PolicyRetention(run.store, TrainerConfig(keep_policies=2)).remove(4, {}) == [1, 2]
    assert run.check() == [0, 3, 4]


def test_without_a_number_nothing_is_removed(tmp_path: Path) -> None:
    run = Published(tmp_path)
    for version in range(6):
        run.publish(version)
    assert PolicyRetention(run.store, TrainerConfig()).remove(5, {}) == []
    state_path(run.store, 2).with_name(".tmp-v000002").mkdir()  # being written
    assert PolicyRetention(run.store, TrainerConfig(keep_policies=1)).remove(5, {1: 1.0}) == [3]
    assert run.check() == [0, 1, 2, 4, 5]
    settings = TrainerConfig(keep_policies=1, keep_best=False)
    assert PolicyRetention(run.store, settings).remove(5, {1: 1.0}) == [1]


def test_who_asks_for_a_removed_one_is_told_which_there_are(tmp_path: Path) -> None:
    run = Published(tmp_path)
    for version in range(5):
        run.publish(version)
    PolicyRetention(run.store, TrainerConfig(keep_policies=2)).remove(4, {})
    folder = run.store.policy_path(1)
    with pytest.raises(
        PolicyError, match=r"^policy\.checkpoint: the weights of .*v000001 were removed.*v000000, v000003"
    ):
        check_checkpoint(folder)
    with pytest.raises(StorageError, match="were removed"):
        check_checkpoint_files(folder)


def test_what_is_kept_may_change_when_a_run_goes_on() -> None:
    def values(monitor: bool = False, **trainer: Any) -> dict[str, Any]:
        given = {"policy": {"template": "qwen2_vl"}, "trainer": trainer, "monitor": monitor}
        config = TrainConfig.model_validate(given)
        return comparable_settings(config.model_dump(mode="json"))

    assert values() == values(monitor=True)
    assert values() == values(state_every=5, keep_policies=3, keep_best=False, keep_states=4)
    assert values() != values(learning_rate=0.5)
