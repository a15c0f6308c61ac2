"""Two ranks under DeepSpeed and torch's agent are killed between batch, state and publication: the
run that goes on trains each batch once."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from envs.types import TrainingError
from training.ledger.store import RunStore
from training.trainer.control.launch import TrainerProcess
from training.trainer.resume import ResumePoint, check_state, find_resume_point, state_path

from .conftest import make_run, make_spec
from .killed_ranks import ForkedRanks, Kill

UPDATES = 3
PATIENCE = 300.0
SPEC = make_spec(total_updates=UPDATES, trainer={"processes": 2, "zero_stage": 2, "keep_states": UPDATES})
SHARE = "global_step2/zero_pp_rank_1_mp_rank_00_optim_states.pt"
BEFORE_PUBLICATION = Kill(0, "os.rename", "policies/v000003", after="trainer/state/v000003/manifest.json")
KILLS = {
    "a rank between batch and update": Kill(1, "open", "batches/v000001.json"),
    "the agent in a state of a published version": Kill(
        1, "open", f".tmp-v000002/{SHARE}", of_agent=True, after="policies/v000002/manifest.json"
    ),
    "a rank between state and publication": BEFORE_PUBLICATION,
}
MORE_KILLS = {
    "the agent while the next batch is read": Kill(0, "open", "batches/v000002.json", of_agent=True),
    "a rank before the state has its name": Kill(
        0, "os.rename", "state/v000002", after="policies/v000002/manifest.json"
    ),
    "the agent before the last batch": Kill(1, "open", "batches/v000003.json", of_agent=True),
}


def train(store: RunStore, kills: Sequence[Kill]) -> None:
    """Train to the last version; each of the first starts ends with a kill."""
    for kill in (*kills, None):
        published = {path: path.stat().st_mtime_ns for path in store.root.glob("policies/v*/*")}
        with TrainerProcess.start(store.root, SPEC, ForkedRanks(kill)) as trainer:
            if kill:
                with pytest.raises(TrainingError, match=r"the trainer ended .exit code (1|-9)"):
                    trainer.wait_for_policy(UPDATES, PATIENCE)
            else:
                trainer.wait_for_policy(UPDATES, PATIENCE)
        assert not (store.trainer_path / "error.json").exists()
        assert {path: path.stat().st_mtime_ns for path in published} == published, "what is published stays"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> RunStore:
    """A run whose ranks were never killed."""
    run = make_run(tmp_path_factory.mktemp("whole"), checkpoint)
    for version in range(1, UPDATES + 1):
        run.fill(version, 20)
    train(run.store, ())
    return run.store


def weights(store: RunStore) -> list[str]:
    return [store.manifest(version)["files"]["model.safetensors"]["sha256"] for version in range(UPDATES + 1)]


@pytest.mark.chaos
@pytest.mark.parametrize("kills", [KILLS, pytest.param(MORE_KILLS, marks=(pytest.mark.slow, pytest.mark.long))])
def test_each_batch_is_trained_once(whole: RunStore, tmp_path: Path, kills: dict[str, Kill]) -> None:
    unused = shutil.ignore_patterns("trainer", "v00000[123]")
    store = RunStore(shutil.copytree(whole.root, tmp_path / "run", ignore=unused))
    train(store, [*kills.values()])
    assert store.versions() == list(range(UPDATES + 1))
    assert weights(store) == weights(whole) and len(set(weights(store))) == UPDATES + 1
    for version in range(1, UPDATES + 1):
        manifest, batch = store.manifest(version), store.batch_path(version).read_bytes()
        assert (manifest["parent"], manifest["batch"]) == (version - 1, hashlib.sha256(batch).hexdigest())
        check_state(state_path(store, version))
    assert find_resume_point(store, SPEC) == ResumePoint(UPDATES)
    assert not list(store.root.rglob(".tmp*"))
