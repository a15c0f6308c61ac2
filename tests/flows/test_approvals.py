"""Flow runs that pause on a real server until a person answers their form."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.types import ConfigError
from flows import sweep as sweep_module
from flows.promote import promote
from tasks_lib.config import PROJECT, load_preset
from tasks_lib.config.parameters import parameters_of
from tasks_lib.config.promotion import PromoteConfig
from tasks_lib.folder.checkpoints import publish_base
from tasks_lib.preflight.flows import check_sweep
from tasks_lib.processes import approval
from tasks_lib.processes.approval import RefusedError
from tasks_lib.sweeps.approval import episodes_of
from tasks_lib.sweeps.config import SweepConfig
from training.ledger.aliases import read_alias
from training.ledger.store import RunStore, read_json

from .services import PrefectServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.usefixtures("prefect_api")]


class FlowThread:
    """A flow in a thread; ``result`` or ``error`` once it has ended."""

    def __init__(self, flow: Callable[..., Any], parameters: dict[str, Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

        def run() -> None:
            try:
                self.result = flow(**parameters)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=contextvars.copy_context().run, args=(run,), daemon=True)
        self.thread.start()

    def join(self) -> None:
        self.thread.join(120)
        assert not self.thread.is_alive()


def paused(server: PrefectServer, name: str, work: FlowThread) -> dict[str, Any]:
    """The newest flow run of this name, once it is paused and its form can be shown."""
    deadline = time.monotonic() + 120
    while True:
        runs = server.flow_runs(name)
        if runs and runs[-1]["state_name"] == "Paused":
            inputs = server.api(f"flow_runs/{runs[-1]['id']}/input/filter", prefix="paused", limit=10)
            if len(inputs) == 2:
                return {**runs[-1], "form": {entry["key"]: entry["value"] for entry in inputs}}
        assert work.thread.is_alive(), work.error
        assert time.monotonic() < deadline, "never"
        time.sleep(0.1)


def answer(server: PrefectServer, run: dict[str, Any], **values: object) -> str:
    status: str = server.api(f"flow_runs/{run['id']}/resume", run_input=values)["status"]
    return status


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approval, "POLL_SECONDS", 0.2)


def test_a_promotion_waits_for_a_yes_and_a_no_ends_it(server: PrefectServer, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "asked")
    publish_base(store, PROJECT / "datasets" / "policies" / "reader")
    parameters = parameters_of(PromoteConfig(run=str(store.root), alias="staging", approval=True))
    for approved in (False, True):
        work = FlowThread(promote, parameters)
        run = paused(server, "asked@staging", work)
        (description,) = [value for key, value in run["form"].items() if key.endswith("description")]
        assert "version 0 of asked is to be its alias staging" in description
        assert answer(server, run, approved=approved) == "REJECT", "the form asks for a name"
        assert read_alias(store, "staging") is None
        assert answer(server, run, approved=approved, by="Ann", reason="the last one is worse") == "ACCEPT"
        work.join()
        if approved:
            alias = read_alias(store, "staging")
            assert alias is not None and (alias.version, alias.by) == (0, "Ann")
        else:
            assert isinstance(work.error, RefusedError)
            assert str(work.error).startswith("Ann did not approve (the last one is worse): version 0 of asked")
    ended = server.flow_runs("asked@staging")
    assert [run["state_name"] for run in ended] == ["Failed", "Completed"]
    assert ended[-1]["state"]["message"] == "asked@staging is version 0"


def test_no_answer_in_time_is_a_no(server: PrefectServer, tmp_path: Path) -> None:
    store = RunStore(tmp_path / "late")
    publish_base(store, PROJECT / "datasets" / "policies" / "reader")
    config = PromoteConfig(run=str(store.root), alias="staging", approval=True, approval_hours=1 / 3600)
    work = FlowThread(promote, parameters_of(config))
    work.join()
    assert isinstance(work.error, RefusedError) and "start the same command again to ask again" in str(work.error)
    assert read_alias(store, "staging") is None


def test_a_sweep_beyond_its_budget_asks_once(
    server: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[str] = []
    monkeypatch.setattr(sweep_module, "train", lambda general, **_: played.append(general["run_id"]))
    base = {**load_preset("quickstart"), "iterations": 2, "evaluation": {"episodes": 10, "every": 1}}
    given = {"run_id": "dear", "root": str(tmp_path), "base": base, "grid": {"seed": [0, 1]}}
    config = SweepConfig.model_validate(given)
    (arm, _) = config.all_arms()
    groups, size = arm.config.rollout.groups_per_iteration, arm.config.algorithm.group_size
    assert episodes_of([arm]) == 2 * groups * size + 3 * 10
    total = episodes_of(config.all_arms())

    def start(budget: int, root: str = "") -> FlowThread:
        values = {**given, "approve_above": budget, **({"root": root} if root else {})}
        return FlowThread(sweep_module.sweep, parameters_of(SweepConfig.model_validate(values)))

    refused = start(total - 1)
    run = paused(server, "dear", refused)
    assert str(total) in str(run["form"]) and played == []
    answer(server, run, approved=False, by="Bob")
    refused.join()
    assert isinstance(refused.error, RefusedError) and played == []
    asked = start(total - 1)
    answer(server, paused(server, "dear", asked), approved=True, by="Ann")
    asked.join()
    assert played == ["dear-seed0", "dear-seed1"]
    assert read_json(tmp_path / "dear" / "approval.json") == {"episodes": total, "by": "Ann", "reason": ""}
    for again in (start(total - 1), start(total, str(tmp_path / "other"))):
        again.join()
    assert len(played) == 6, "nothing more than was approved, and nothing over the budget: not asked"


def test_a_budget_without_a_server_is_refused_before_anything_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    given = {"root": str(tmp_path), "base": {"preset": "quickstart"}, "grid": {"seed": [0]}, "approve_above": 10}
    with (
        temporary_settings({PREFECT_API_URL: None}),
        pytest.raises(ConfigError, match=r"approve_above: .*PREFECT_API_URL"),
    ):
        check_sweep(SweepConfig.model_validate(given))
    check_sweep(SweepConfig.model_validate({**given, "approve_above": 10**6}))
