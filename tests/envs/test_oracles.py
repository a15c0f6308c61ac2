"""Every oracle solves its pages from the observation alone: the observation and the actions suffice."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from envs.browser import BrowserPool
from envs.oracles import ORACLES, oracle_action
from envs.oracles.parts import spot
from envs.sites import Site
from envs.sites.miniwob_kinds import KINDS
from envs.types import Action, Invalid, Observation, Split, TaskError, WebTask, read_action

PRESET = Path(__file__).parents[2] / "deployments" / "presets" / "quickstart.yaml"
QUICKSTART = yaml.safe_load(PRESET.read_text())["tasks"]["kinds"]
DEMONSTRATED = yaml.safe_load(PRESET.with_name("reader.yaml").read_text())["tasks"]["kinds"]
FURTHER = ["click-button", "click-checkboxes", "click-option", "focus-text-2", "login-user"]
SEEDS = 5


def said_by(mode: str, action: Action, observation: Observation) -> Action:
    """The action with its element named in another way."""
    number = getattr(action, "element", None)
    if mode == "element" or number is None:
        return action
    element = observation.elements[number - 1]
    x, y, width, height = element.box
    ways: dict[str, dict[str, Any]] = {
        "id": {"element": element.id},
        "mark": {"element": None, "mark": number},
        "coordinates": {
            "element": None,
            "at": [round(share) for share in spot(observation, x + width / 2, y + height / 2)],
        },
    }
    return read_action({**action.model_dump(), **ways[mode]})


async def attempt(pool: BrowserPool, site: Site, task: WebTask, seeds: range, mode: str) -> list[str]:
    """Failed episodes of a kind, described."""
    failures = []
    async with pool.lease(site) as session:
        for seed in seeds:
            frame = await session.reset(task, seed)
            history: list[Action] = []
            while not frame.done and len(history) < task.horizon:
                history.append(oracle_action(task.kind, frame.observation, history))
                frame = await session.step(said_by(mode, history[-1], frame.observation))
            if frame.page_facts["raw_reward"] != 1:
                failures.append(
                    f"{task.kind} seed {seed}: {frame.page_facts}, {frame.observation.error} after {history}"
                )
    return failures


def solve(miniwob: Any, tasks: list[WebTask], seeds: int, mode: str = "element") -> list[str]:
    async def run() -> list[str]:
        async with miniwob(max_sessions=8) as (pool, site):
            starts = [task.seeds[Split.DEMO].start for task in tasks]
            work = [
                attempt(pool, site, task, range(at, at + seeds), mode) for task, at in zip(tasks, starts, strict=True)
            ]
            return [failure for failures in await asyncio.gather(*work) for failure in failures]

    return asyncio.run(run())


def test_oracles_solve_their_kinds_within_the_horizon(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    assert solve(miniwob, [miniwob_tasks[kind] for kind in sorted(ORACLES)], SEEDS) == []


@pytest.mark.parametrize("mode", ["id", "mark", "coordinates"])
def test_they_are_solved_however_elements_are_named(miniwob: Any, miniwob_tasks: dict[str, WebTask], mode: str) -> None:
    assert solve(miniwob, [miniwob_tasks[kind] for kind in sorted(ORACLES)], 1, mode) == []


def test_quickstart_kinds_are_solved_on_30_seeds(miniwob: Any, miniwob_tasks: dict[str, WebTask]) -> None:
    assert solve(miniwob, [miniwob_tasks[kind] for kind in sorted({*QUICKSTART, *DEMONSTRATED, *FURTHER})], 30) == []


def test_the_table_of_kinds_and_the_registry_agree() -> None:
    assert set(KINDS) == set(ORACLES)
    assert set(QUICKSTART) <= set(ORACLES)


def test_an_oracle_that_sees_nothing_says_so() -> None:
    empty = Observation(instruction='Click on the "ok" button.', elements=(), url="", viewport=(168, 224))
    assert isinstance(oracle_action("click-button", empty), Invalid)


def test_a_kind_without_oracle_is_a_task_error() -> None:
    empty = Observation(instruction="", elements=(), url="", viewport=(168, 224))
    with pytest.raises(TaskError, match="no oracle for 'draw-line'"):
        oracle_action("draw-line", empty)
