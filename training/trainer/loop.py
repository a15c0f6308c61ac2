"""Main loop of the trainer: wait for a batch, train, publish."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any

from envs.types import RollwrightError, TrainingError
from training.ledger.store import RunStore, write_json
from training.records.batches import TrainingBatch
from training.trainer.control.heartbeat import Heartbeat
from training.trainer.control.link import LOOK_SECONDS, LinkToOwner
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.publish import check_replay, publish_policy, publish_state
from training.trainer.resume import find_resume_point
from training.trainer.rows import TrainingRow, read_batch_file, read_rows
from training.trainer.sender import WeightSender
from training.trainer.setup import build_trainer, set_threads
from training.trainer.spec import TrainerSpec
from training.trainer.update import Stopwatch, own_rows, run_update

READY = "ready.json"
"""File that the first process writes once it waits for batches."""
SHORT_SECONDS = 0.05
"""Pause between two checks for an announced file, or without an owner."""
VISIBLE_SECONDS = 60.0
"""Limit of the wait for an announced batch or an earlier one to appear. The run's folder may be on
a network file system."""
LAST_SECONDS = 60.0
"""Longest wait until the last version was broadcast; the flow ends the trainer earlier."""


def run_trainer(store: RunStore, spec: TrainerSpec, link: LinkToOwner | None = None) -> None:
    """Resume from the latest published policy and train until ``spec.total_updates``.

    Args:
        link: Link to the owner, which announces batches and is notified of policies; ``None``: poll
            for files.

    Raises:
        TrainingError: There is no policy to start from, or a batch cannot be trained on.
        StorageError: The latest policy is damaged, or the disk is full.
    """
    version = spec.resume_from if spec.resume_from is not None else find_resume_point(store, spec).version
    started = time.time()
    trainer = build_trainer(store, spec, version)
    trainer.link = link
    # After build_trainer, in which accelerate sets its own number of threads.
    set_threads(spec.trainer.torch_threads)
    if trainer.args.should_save:
        trainer.heartbeat = Heartbeat(store.trainer_path)
        if spec.servers:
            try:
                trainer.sender = WeightSender(spec.servers, spec.owner, trainer.args.device)
            except OSError as error:
                _log(trainer, f"weights are not broadcast, as there is no way to {spec.servers}: {error}")
    version = _replay(trainer, store, version)
    if trainer.args.should_save:
        write_json(
            store.trainer_path / READY, {"pid": os.getpid(), "started": started, "seconds": time.time() - started}
        )
        _notify(link)
    _log(trainer, f"at version {version} after {time.time() - started:.1f} s")
    try:
        while version < spec.total_updates:
            version += 1
            trainer.beat("wait")
            waited = wait_for_batch(store, version, link)
            _update(trainer, store, version, waited)
            if trainer.args.should_save:
                _notify(link)
    except RollwrightError:
        trainer.states.wait()  # a refused batch leaves the state before whole
        raise
    if trainer.sender is not None:
        trainer.sender.wait(LAST_SECONDS)
        trainer.sender.close()
    if link is not None:
        link.leave()


def _notify(link: LinkToOwner | None) -> None:
    if link is not None:
        link.notify_owner()


def _replay(trainer: PolicyTrainer, store: RunStore, version: int) -> int:
    """Repeat the published updates after ``version`` and write the last one's state.

    Returns the latest version.

    Raises:
        TrainingError: A batch is not the one from which its version was made.
    """
    latest = store.latest_policy() or 0
    for repeated in range(version + 1, latest + 1):
        batch, sha256, rows = _read(trainer, store, repeated)
        manifest = store.manifest(repeated)
        if sha256 != manifest["batch"]:
            raise TrainingError(
                f"v{repeated} is to be done again, because its trainer state is damaged or was not written "
                f"(trainer.state_every), and {store.batch_path(repeated)} is not the batch that it was made from; "
                "put that file back"
            )
        run_update(trainer, batch, rows, Stopwatch(), manifest["metrics"]["learning_rate"])
        _log(trainer, f"v{repeated} is done again from {store.batch_path(repeated).name}")
    trainer.beat("save")
    if latest > version:
        if difference := check_replay(trainer, store, latest):
            _log(trainer, difference)
        publish_state(trainer, store, latest)
        trainer.states.wait()
    return latest


def _read(trainer: PolicyTrainer, store: RunStore, version: int) -> tuple[TrainingBatch, str, list[TrainingRow]]:
    """Read a batch, the sha256 of its file, and its rows.

    Rows of other processes come without ids and pictures.
    """
    batch, sha256 = read_batch_file(store, version)
    return batch, sha256, read_rows(store, batch, trainer.spec.banned_ids, partial(own_rows, trainer, version))


def wait_for_batch(
    store: RunStore, version: int, link: LinkToOwner | None = None, visible_seconds: float = VISIBLE_SECONDS
) -> float:
    """Wait for the batch that makes ``version`` and return the seconds waited.

    Raises:
        TrainingError: It is not there ``visible_seconds`` after it or a later one was announced.
    """
    path, start, missed = store.batch_path(version), time.perf_counter(), 0.0
    while not path.exists():
        check_start = time.perf_counter()
        announced = link.wait(version, LOOK_SECONDS) if link is not None else 0
        if announced >= version:
            if missed > visible_seconds:
                raise TrainingError(
                    f"{path} is not there {missed:.0f} s after batch {announced} was announced: "
                    "is the run's folder shared with this machine?"
                )
            time.sleep(SHORT_SECONDS)
            missed += time.perf_counter() - check_start
        elif link is None:
            time.sleep(SHORT_SECONDS)
    return time.perf_counter() - start


def _update(trainer: PolicyTrainer, store: RunStore, version: int, waited: float) -> None:
    start, watch = time.perf_counter(), Stopwatch()
    trainer.states.raise_failure()
    with watch.part("load"):
        batch, sha256, rows = _read(trainer, store, version)
    metrics = run_update(trainer, batch, rows, watch)
    trainer.beat("save")
    with watch.part("save_state"):
        if trainer.spec.trainer.state_due(version, trainer.spec.total_updates):
            publish_state(trainer, store, version)
        if version == trainer.spec.total_updates:
            trainer.states.wait()  # the flow ends the trainer once the last policy is there
    before_policy = time.perf_counter()

    def manifest() -> dict[str, Any]:
        now = time.perf_counter()
        seconds = {**watch.seconds, "save_policy": now - before_policy}
        # The parts add up to the update's wall time, without the wait for the batch.
        seconds["other"] = now - start - sum(seconds.values())
        return {
            "batch": sha256,
            "group_ids": batch.group_ids,
            "metrics": {**metrics, **_counts(batch)},
            "seconds": seconds,
            "waited_seconds": waited,
        }

    publish_policy(trainer, store, version, manifest)
    parts = ", ".join(f"{name} {value:.2f}" for name, value in watch.seconds.items())
    _log(
        trainer,
        f"v{version}: {len(rows)} rows, loss {metrics['loss']:.4f}, {time.perf_counter() - start:.2f} s ({parts})",
    )


def _counts(batch: TrainingBatch) -> dict[str, float]:
    return {
        "groups": float(len(batch.group_ids)),
        "zero_variance_groups": float(batch.zero_variance_groups),
        "episodes": float(batch.episodes),
        "replayed_rows": float(len(batch.replayed)),
        "abstained_episodes": float(batch.abstained_episodes),
    }


def _log(trainer: PolicyTrainer, message: str) -> None:
    if trainer.args.should_save:
        print(f"trainer: {message}", flush=True)
