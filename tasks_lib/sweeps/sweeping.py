"""Opens a sweep's folder and runs its arms in this process.

The folder has the sweep's configuration, and the states of its arms.

A sweep may be started again with other arms. New arms are played, unchanged ones go on, and arms
that were removed are *dropped*: their runs stay in place, ``sweep.json`` remembers them, and they
are not compared with the others. An arm that is added again goes on. A run goes on only with its
own values: an arm that has begun and gets other values under its name is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from envs.types import TrainingError
from tasks_lib.config import TrainConfig
from tasks_lib.config.differences import comparable_settings, differences
from tasks_lib.folder.failed_start import free_name
from tasks_lib.folder.frozen_config import read_frozen, write_frozen
from tasks_lib.folder.lock import run_lock
from tasks_lib.folder.values import (
    MAX_DIFFERENCES,
    ChangedValuesError,
    add_new_defaults,
    check_kind,
    check_values,
    finished_result,
    git_commit,
    versions,
)
from tasks_lib.processes.interrupts import find_interrupt
from tasks_lib.sweeps.arms import Arm, describe_values, with_known_names
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.page import build_sweep_report, read_summary, summary_path
from tasks_lib.sweeps.summary import ArmRecord, ArmState, SweepSummary, summarise
from training.ledger.store import RunStore, write_json

MAY_CHANGE = frozenset({"run_id", "iterations", "cluster", "root"})
"""Keys of the arms that may differ when a sweep is started again.

``evaluation`` may not, as in a run: all arms are measured alike.
"""
MAX_ERROR = 400
"""Maximum characters of an arm's error that are kept. Its flow run's log has all of it."""

Log = Callable[[str], None]


class Sweep:
    """One sweep under its lock.

    Every change of an arm is written at once: `save`.
    """

    def __init__(self, config: SweepConfig) -> None:
        """Raises ``ConfigError`` if an arm, or a run of its name, has begun with other values."""
        self.config = config
        self.store = RunStore(config.run_dir)
        self.arms = arms_of(config)
        self.dropped = dropped_arms(config, self.arms)
        for arm in self.arms:
            check_values(arm.config, RunStore(arm.config.run_dir))
        freeze_sweep(config, self.arms, self.store)
        self._records = {arm.run_id: _record(arm) for arm in self.arms}
        self.report = self.save()

    def unfinished(self) -> list[Arm]:
        """Return the arms to start or resume, in their order."""
        return [arm for arm in self.arms if self._records[arm.run_id].state is not ArmState.FINISHED]

    @property
    def summary(self) -> SweepSummary:
        """Content of ``sweep.json``."""
        records = [self._records[arm.run_id] for arm in self.arms]
        return summarise(self.config.run_id, self.config.deployment, [*records, *self.dropped])

    def save(self) -> Path:
        """Write ``sweep.json`` and the report, and return the report's path."""
        write_json(summary_path(self.store.root), self.summary)
        return build_sweep_report(self.store.root)

    def set_state(self, arm: Arm, state: ArmState, error: str | None = None) -> None:
        """Record the state of an arm."""
        update = {"state": state, "error": short_message(error) if error is not None else None}
        self._records[arm.run_id] = _record(arm).model_copy(update=update)
        self.save()

    def take_result(self, arm: Arm) -> None:
        """Record the result of an arm that ended well, from its folder.

        The arm counts as failed if there is no result: then it wrote to another folder than the one
        that we see.
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
        """Raise ``TrainingError`` with the failed arms, if there are any."""
        failed = [record for record in self._records.values() if record.state is ArmState.FAILED]
        if failed:
            named = "".join(f"\n  {record.run_id}: {record.error}" for record in failed)
            raise TrainingError(
                f"{len(failed)} of {len(self.arms)} arms failed; mend what is named, then start the same sweep again: only those are "
                f"tried again{named}"
            )


def describe_dropped(record: ArmRecord) -> str:
    """Return a line on an arm that was removed from the sweep."""
    return (
        f"arm {record.run_id} ({describe_values(record.values)}) is dropped: its run stays as it is and is not compared; "
        f"name it again and it goes on"
    )


@contextmanager
def open_sweep(config: SweepConfig) -> Iterator[Sweep]:
    """Open (or resume) a sweep under its lock."""
    with run_lock(config.run_dir):
        yield Sweep(config)


def run_as_subflows(sweep: Sweep, train: Callable[[TrainConfig], Any], log: Log) -> None:
    """Play the unfinished arms one after the other.

    A failed arm is recorded, and the next one begins.

    Args:
        train: Flow that plays one arm; it is a subflow where this is called from a flow.
        log: Logs a line about each arm.
    """
    todo = sweep.unfinished()
    for number, arm in enumerate(todo, start=1):
        log(f"arm {number} of {len(todo)}: {arm.run_id} ({arm.description})")
        sweep.set_state(arm, ArmState.RUNNING)
        try:
            train(arm.config)
        except Exception as error:
            if (interrupt := find_interrupt(error)) is not None:
                sweep.set_state(arm, ArmState.INTERRUPTED)
                raise interrupt from None
            sweep.set_state(arm, ArmState.FAILED, f"{type(error).__name__}: {error}")
            log(f"arm {arm.run_id} failed: {short_message(str(error))}")
        except BaseException:
            sweep.set_state(arm, ArmState.INTERRUPTED)
            raise
        else:
            sweep.take_result(arm)


def short_message(text: str) -> str:
    """Return a message without line breaks, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_ERROR else f"{line[:MAX_ERROR]}…"


def arms_of(config: SweepConfig) -> tuple[Arm, ...]:
    """Return the arms of a sweep. Those that it has begun keep the names that they were begun
    under.

    Raises:
        ConfigError: an arm that has begun has other values now.
    """
    begun = {
        run_id: comparable_settings(add_new_defaults(TrainConfig, values))
        for run_id, values in _begun_configs(config).items()
        if _is_begun(config, run_id)
    }
    arms = with_known_names(config.all_arms(), begun)
    changed: dict[str, None] = {}
    lines: dict[str, None] = {}
    for arm in arms:
        if (then := begun.get(arm.run_id)) is None:
            continue
        now = comparable_settings(arm.config.model_dump(mode="json"))
        keys = [key for key in now if key not in MAY_CHANGE and now[key] != then.get(key)]
        changed |= dict.fromkeys([arm.run_id] if keys else [])
        changes = differences({key: now[key] for key in keys}, {key: then.get(key) for key in keys})
        lines |= dict.fromkeys(f"\n  {key}: {old} then, {new} now" for key, new, old in changes)
    if changed:
        more = f" and {len(changed) - MAX_DIFFERENCES} more" if len(changed) > MAX_DIFFERENCES else ""
        raise ChangedValuesError(
            f"sweep {config.run_id} has begun {', '.join(list(changed)[:MAX_DIFFERENCES])}{more} with other values "
            f"(see {RunStore(config.run_dir).config_path}), and a run keeps those that it has; give what is to differ in grid or "
            f"arms, where it makes arms of another name, or give another run_id, such as run_id={free_name(config.run_dir)}"
            f"{''.join(list(lines)[:MAX_DIFFERENCES])}"
        )
    return arms


def dropped_arms(config: SweepConfig, arms: tuple[Arm, ...]) -> tuple[ArmRecord, ...]:
    """Return the records of arms that were removed from the sweep.

    An arm that never began leaves no record. Without ``sweep.json`` the records come from
    ``config.json`` and the arms' folders: a choice that was made stays known.

    Raises:
        StorageError: ``sweep.json`` is torn.
    """
    named, folder = {arm.run_id for arm in arms}, config.run_dir
    known = read_summary(folder).arms if summary_path(folder).exists() else tuple(_records_from_folders(config, arms))
    return tuple(
        record.model_copy(update={"state": ArmState.DROPPED})
        for record in known
        if record.run_id not in named and (record.state is not ArmState.WAITING or _is_begun(config, record.run_id))
    )


def _records_from_folders(config: SweepConfig, arms: tuple[Arm, ...]) -> Iterator[ArmRecord]:
    """Yield records of all arms that have begun, from their folders.

    An arm's values are those of the keys that are swept now, and of its other differences.
    """
    keys = {key for arm in arms for key in arm.values}
    base = dict(_flat(arms[0].config.model_dump(mode="json")))
    for run_id, values in _begun_configs(config).items():
        if not _is_begun(config, run_id):
            continue
        begun = {**add_new_defaults(TrainConfig, values), "root": str(config.run_dir.parent), "preset": ""}
        own = {
            key: value
            for key, value in _flat(begun)
            if key in keys or (value != base.get(key) and key.split(".")[0] not in (*MAY_CHANGE, "preset"))
        }
        yield _record(Arm(run_id, own, TrainConfig.model_validate(begun)))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every leaf."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def freeze_sweep(config: SweepConfig, arms: tuple[Arm, ...], store: RunStore) -> None:
    """Write the sweep's configuration to its folder, with each arm's whole configuration.

    A preset may be edited later. Configurations of dropped arms stay if they have begun, in case
    they come back.
    """
    begun = {run_id: values for run_id, values in _begun_configs(config).items() if _is_begun(config, run_id)}
    document = {
        "config": config.model_dump(mode="json"),
        "arms": {**begun, **{arm.run_id: arm.config.model_dump(mode="json") for arm in arms}},
        "versions": versions(),
        "git_commit": git_commit(),
    }
    write_frozen(store.config_path, document)


def _begun_configs(config: SweepConfig) -> Mapping[str, dict[str, Any]]:
    """Return the configurations of all arms that the sweep ever had, by name.

    Raises ``ConfigError`` if the folder is of something else.
    """
    path = RunStore(config.run_dir).config_path
    return check_kind(path, type(config).model_fields)["arms"] if read_frozen(path) is not None else {}


def _is_begun(config: SweepConfig, run_id: str) -> bool:
    """Return True if there is a run of that name."""
    return read_frozen(RunStore(config.run_dir.parent / run_id).config_path) is not None


def _record(arm: Arm) -> ArmRecord:
    """Return an arm's record, from its folder."""
    store = RunStore(arm.config.run_dir)
    record = ArmRecord(run_id=arm.run_id, values=arm.values, split=arm.config.evaluation.split)
    if (store.report_path / "index.html").exists():
        record = record.model_copy(update={"report": f"../{arm.run_id}/report/index.html"})
    if (result := finished_result(arm.config, store)) is None:
        return record
    measured = {name: result[name] for name in ("success_before", "success_after")}
    minutes = result["seconds"]["total"] / 60
    split = check_kind(store.config_path, TrainConfig.model_fields)["config"]["evaluation"]["split"]
    return ArmRecord.model_validate(
        {**record.model_dump(), **measured, "state": ArmState.FINISHED, "minutes": minutes, "split": split}
    )
