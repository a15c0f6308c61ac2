"""Asks a person before a sweep plays more episodes than it may without being asked."""

from __future__ import annotations

from collections.abc import Sequence

from envs.types import Record
from tasks_lib.processes.approval import ask_approval, check_can_be_approved
from tasks_lib.sweeps.arms import Arm
from tasks_lib.sweeps.config import SweepConfig
from tasks_lib.sweeps.sweeping import Log, Sweep
from training.ledger.store import RunStore, move_aside_advice, read_record, write_json

APPROVAL = "approval.json"
"""File of the sweep's folder with the newest approval."""


class SweepApproval(Record):
    """Episodes that a person has approved."""

    episodes: int
    by: str
    reason: str


def episodes_of(arms: Sequence[Arm]) -> int:
    """Return the number of episodes that arms play from their beginning."""
    return sum(arm.config.total_episodes for arm in arms)


def needs_approval(config: SweepConfig, arms: Sequence[Arm]) -> bool:
    """Return True if these arms play more than is allowed, and more than was approved before."""
    if config.approve_above is None or episodes_of(arms) <= config.approve_above:
        return False
    approved = _read(config)
    return approved is None or episodes_of(arms) > approved.episodes


def check_budget(config: SweepConfig, arms: Sequence[Arm]) -> None:
    """Raise ``ConfigError`` if a person has to approve these arms, and none can."""
    if needs_approval(config, arms):
        check_can_be_approved("approve_above")


def ask_for_budget(sweep: Sweep, log: Log) -> None:
    """Pause the flow run until a person approves the unfinished arms, if they are over the budget.

    Raises:
        ConfigError: no person can, as there is no server of theirs.
        RefusedError: the answer is no, or there was none in time.
    """
    config, arms = sweep.config, sweep.unfinished()
    if not needs_approval(config, arms):
        return
    check_budget(config, arms)
    episodes = episodes_of(arms)
    question = (
        f"sweep {config.run_id} is to play up to {episodes} episodes in {len(arms)} arms, more than "
        f"{config.approve_above} (approve_above)"
    )
    log(f"{question}: paused until a person approves it on the flow run's page")
    answer = ask_approval(question, config.approval_hours)
    log(f"approved by {answer.by}")
    write_json(sweep.store.root / APPROVAL, SweepApproval(episodes=episodes, by=answer.by, reason=answer.reason))


def _read(config: SweepConfig) -> SweepApproval | None:
    path = RunStore(config.run_dir).root / APPROVAL
    if not path.exists():
        return None
    return read_record(path, SweepApproval, "approval of a sweep", f"{move_aside_advice(path)}: it is asked for again")
