"""A sweep's folder: what it was started with, what became of its arms; and the arms that this process plays itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.types import ConfigError, TrainingError
from tasks_lib.config import TrainConfig
from tasks_lib.differences import differences
from tasks_lib.interrupts import interrupted_by
from tasks_lib.report.sweep import build_sweep_report, summary_path
from tasks_lib.run import (
    MOST_DIFFERENCES,
    check_kind,
    check_values,
    finished_result,
    git_commit,
    run_lock,
    versions,
    with_new_keys,
)
from tasks_lib.sweeps.arms import Arm
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.summary import ArmRecord, ArmState, SweepSummary, summarise
from training.store import RunStore, read_json, write_json

MAY_CHANGE = frozenset({"run_id", "iterations", "cluster", "root"})
"""Keys of the arms that may differ when a sweep is started again. Not ``evaluation``, as in a run: all arms are measured alike."""
MOST_ERROR = 400
"""Characters of an arm's error that are kept; the whole of it is in its flow run's log."""

Say = Callable[[str], None]


class Sweep:
    """One sweep under its lock. Every change of an arm is written down at once: `save`."""

    def __init__(self, config: SweepConfig) -> None:
        """Raises ``ConfigError`` if the sweep, or a run with the name of one of its arms, was started with other values."""
        self.config = config
        self.store = RunStore(config.run_dir)
        self.arms = config.all_arms()
        check_sweep(config, self.arms, self.store)
        for arm in self.arms:
            check_values(arm.config, RunStore(arm.config.run_dir))
        freeze_sweep(config, self.arms, self.store)
        self._records = {arm.run_id: _record(arm) for arm in self.arms}
        self.report = self.save()

    def unfinished(self) -> list[Arm]:
        """Arms to start, or to go on with, in their order."""
        return [arm for arm in self.arms if self._records[arm.run_id].state is not ArmState.FINISHED]

    @property
    def summary(self) -> SweepSummary:
        """What is in ``sweep.json``."""
        records = (self._records[arm.run_id] for arm in self.arms)
        return summarise(self.config.run_id, self.config.deployment, records)

    def save(self) -> Path:
        """Write ``sweep.json`` and the report; the report's path."""
        write_json(summary_path(self.store.root), self.summary)
        return build_sweep_report(self.store.root)

    def set_state(self, arm: Arm, state: ArmState, error: str | None = None) -> None:
        """Note how far an arm is."""
        update = {"state": state, "error": one_line(error) if error is not None else None}
        self._records[arm.run_id] = _record(arm).model_copy(update=update)
        self.save()

    def take_result(self, arm: Arm) -> None:
        """Note what an arm that ended well left in its folder.

        It is a failed one if there is no result: then the folder that it was written to is not the one that we see.
        """
        record = _record(arm)
        if record.state is not ArmState.FINISHED:
            path = RunStore(arm.config.run_dir).result_path
            wanted = f"{path} has no result of {arm.config.iterations} updates"
            self.set_state(
                arm, ArmState.FAILED, f"it ended well, but {wanted}: root has to be on storage that is shared"
            )
            return
        self._records[arm.run_id] = record
        self.save()

    def check(self) -> None:
        """Raises ``TrainingError`` that names the failed arms, if there are any."""
        failed = [record for record in self._records.values() if record.state is ArmState.FAILED]
        if failed:
            named = "".join(f"\n  {record.run_id}: {record.error}" for record in failed)
            raise TrainingError(
                f"{len(failed)} of {len(self.arms)} arms failed; mend what is named, then start the same sweep again: only those are "
                f"tried again{named}"
            )


@contextmanager
def open_sweep(config: SweepConfig) -> Iterator[Sweep]:
    """Open (or resume) a sweep under its lock."""
    with run_lock(config.run_dir):
        yield Sweep(config)


def run_here(sweep: Sweep, train: Callable[[TrainConfig], Any], say: Say) -> None:
    """Play the unfinished arms one after the other. An arm that fails is noted, and the next one begins.

    Args:
        train: The flow that plays one; it is a subflow where this is called from a flow.
        say: Is told of each arm.
    """
    todo = sweep.unfinished()
    for number, arm in enumerate(todo, start=1):
        say(f"arm {number} of {len(todo)}: {arm.run_id} ({arm.told})")
        sweep.set_state(arm, ArmState.RUNNING)
        try:
            train(arm.config)
        except Exception as error:
            if (interrupt := interrupted_by(error)) is not None:
                sweep.set_state(arm, ArmState.INTERRUPTED)
                raise interrupt from None
            sweep.set_state(arm, ArmState.FAILED, f"{type(error).__name__}: {error}")
            say(f"arm {arm.run_id} failed: {one_line(str(error))}")
        except BaseException:
            sweep.set_state(arm, ArmState.INTERRUPTED)
            raise
        else:
            sweep.take_result(arm)


def one_line(text: str) -> str:
    """A message without line breaks, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= MOST_ERROR else f"{line[:MOST_ERROR]}…"


def check_sweep(config: SweepConfig, arms: tuple[Arm, ...], store: RunStore) -> None:
    """Compare with what the sweep was started with: arms may have been added to it, the others stay, with their values.

    Raises:
        ConfigError: an arm that it was started with has other values now, or is not there any more.
    """
    if not store.config_path.exists():
        return
    document = check_kind(store.config_path, type(config).model_fields)
    then, now = document["arms"], {arm.run_id: arm.config for arm in arms}
    if gone := [run_id for run_id in then if run_id not in now]:
        raise ConfigError(
            f"sweep {config.run_id} was started with arms that are not in it now (see {store.config_path}): {', '.join(gone)}; arms may "
            "be added, not taken away: start it with those too, or use another run_id"
        )
    changed: dict[str, None] = {}
    told: dict[str, None] = {}
    for run_id, values in then.items():
        frozen, present = with_new_keys(TrainConfig, values), now[run_id].model_dump(mode="json")
        keys = [key for key in present if key not in MAY_CHANGE and present[key] != frozen.get(key)]
        changed |= dict.fromkeys(keys)
        found = differences({key: present[key] for key in keys}, {key: frozen.get(key) for key in keys})
        told |= dict.fromkeys(f"\n  {key}: {old} then, {new} now" for key, new, old in found)
    if changed:
        raise ConfigError(
            f"sweep {config.run_id} was started with other values of: {', '.join(changed)} (see {store.config_path}); use those, or "
            f"another run_id{''.join(list(told)[:MOST_DIFFERENCES])}"
        )


def freeze_sweep(config: SweepConfig, arms: tuple[Arm, ...], store: RunStore) -> None:
    """Keep what a sweep was started with in its folder, each arm's whole configuration included: a preset may be edited later."""
    document = {
        "config": config.model_dump(mode="json"),
        "arms": {arm.run_id: arm.config.model_dump(mode="json") for arm in arms},
        "versions": versions(),
        "git_commit": git_commit(),
    }
    write_json(store.config_path, document)


def _record(arm: Arm) -> ArmRecord:
    """An arm as its folder has it."""
    store = RunStore(arm.config.run_dir)
    record = ArmRecord(run_id=arm.run_id, values=arm.values, split=arm.config.evaluation.split)
    if (store.report_path / "index.html").exists():
        record = record.model_copy(update={"report": f"../{arm.run_id}/report/index.html"})
    if (result := finished_result(arm.config, store)) is None:
        return record
    measured = {name: result[name] for name in ("success_before", "success_after")}
    minutes = result["seconds"]["total"] / 60
    split = read_json(store.config_path)["config"]["evaluation"]["split"]
    return ArmRecord.model_validate(
        {**record.model_dump(), **measured, "state": ArmState.FINISHED, "minutes": minutes, "split": split}
    )
