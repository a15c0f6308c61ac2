"""An ended episode is graded by its task's rubric, else by its page; the browser and the policy are
stand-ins."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from envs.browser.page_step import PageStep
from envs.episodes import NOT_GRADED, part_sources
from envs.rewards import GradingEvidence, read_rubric
from envs.settle import Settled, SettleReason
from envs.types import BrowserError, EngineError, JudgeError, Rubric, StopReason, Trajectory, WebTask, rubric_hash
from tasks_lib.config import RewardConfig, RolloutConfig
from tasks_lib.folder.metrics import episode_figures
from tasks_lib.worker.actors import Turn
from tasks_lib.worker.attempt import EpisodeRunner
from tasks_lib.worker.live import SlotStatus
from tasks_lib.worker.reward_stage import RewardStage
from tests.builders import make_task
from tests.turns import make_turn
from training.records.groups import EpisodeSummary, GroupRecord, GroupSpec
from training.records.states import abstention_cause
from training.serving.config import ServingConfig
from training.serving.waiting import generate_patiently

from .played import DONE, LAMP, SHOP

RUBRIC = read_rubric(
    {
        "fact_groups": [
            {
                "name": "order",
                "facts": [
                    {"id": "at", "type": "url", "url": "/orders/12"},
                    {"id": "told", "type": "answer", "expected": "success"},
                    {"id": "red", "type": "judge", "description": "The lamp is red."},
                ],
            }
        ]
    }
)


Shown = PageStep | Exception | asyncio.Event
"""A page, what is raised instead of one, or what is waited for."""


class Browser:
    """Shows these pages one after the other; `given_back` tells when it was."""

    server = None
    records_network = False

    def __init__(self, results: Sequence[Shown]) -> None:
        self.results = list(results)
        self.given_back = False

    @asynccontextmanager
    async def lease(self, site: object) -> AsyncIterator[Browser]:
        try:
            yield self
        finally:
            self.given_back = True

    async def reset(self, task: WebTask, seed: int, *, forkable: bool = False) -> PageStep:
        return await self.next()

    async def step(self, action: object) -> PageStep:
        return await self.next()

    async def next(self) -> PageStep:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        if isinstance(result, asyncio.Event):
            await result.wait()
        assert isinstance(result, PageStep)
        return result


async def turn(situation: object) -> Turn:
    return make_turn(situation, "click [1]")


async def play(
    results: Sequence[Shown],
    rubric: Rubric | None,
    frozen: str = "",
    deadline: float = 10,
    attempts: int = 1,
    turn: Callable[[Any], Awaitable[Turn]] = turn,
) -> Trajectory:
    """The one attempt that there has to be."""
    task = make_task(horizon=5, rubric=rubric, rubric_hash=frozen)
    browser = Browser(results)

    @contextmanager
    def clock(doing: str) -> Iterator[None]:
        assert doing != "reward" or browser.given_back, "graded while the browser was still held"
        yield

    rollout = RolloutConfig(episode_deadline=deadline, attempts=attempts, repeats=0)
    runner: Any = EpisodeRunner(
        pool=browser,  # type: ignore[arg-type]
        sites={"shop": None},  # type: ignore[dict-item]
        actor=SimpleNamespace(policy_version=0),  # type: ignore[arg-type]
        turns=SimpleNamespace(run=turn),  # type: ignore[arg-type]
        clock=clock,  # type: ignore[arg-type]
        rollout=rollout,
        keep=lambda data: f"blob of {data.decode()}",
    )

    (ended,) = await runner.run(GroupSpec(group_id="i000000-g0000", task=task, seeds=(1,)), 0, SlotStatus())
    assert ended.reward.abstained == (ended.error or NOT_GRADED), "graded with the episode"
    stage = RewardStage(RewardConfig(), clock, sources=part_sources(), screenshot=lambda name: b"")  # type: ignore[arg-type]
    trajectory = await stage.grade(task, ended)
    stored = Trajectory.model_validate_json(trajectory.model_dump_json())
    assert stored == trajectory
    return stored


FACTS: dict[str, float | bool | str] = {"done": True, "raw_reward": -1.0}
OVER = [PageStep(SHOP, b"", False), PageStep(LAMP, b"", False), PageStep(DONE, b"", True, FACTS)]


async def test_the_page_after_the_last_action_is_graded_by_the_rubric() -> None:
    reward = (await play(OVER, RUBRIC, rubric_hash(RUBRIC))).reward
    assert [part.name for part in reward.parts] == ["order/at", "order/told", "order/red"]
    assert [part.value for part in reward.parts] == [1.0, 0.0, None]
    assert "/orders/12" in reward.parts[0].evidence and "no judge" in reward.parts[2].evidence
    assert reward.score == 0.5 and reward.binary == 0 and not reward.passed
    assert reward.rubric_hash == rubric_hash(RUBRIC)


async def test_the_last_page_is_kept_as_it_looks_where_a_step_led_to_it() -> None:
    last = PageStep(DONE, b"last", True, FACTS)
    assert (await play([OVER[0], last], RUBRIC)).final_screenshot == "blob of last"
    assert GradingEvidence.of(await play([OVER[0], last], RUBRIC)).final_screenshot == "blob of last"
    assert (await play(OVER, RUBRIC)).final_screenshot == "", "a page that shows nothing at its end"
    assert (await play([last], RUBRIC)).final_screenshot == "", "no step was taken"


async def test_a_step_records_why_the_wait_for_its_page_ended() -> None:
    waits = [SettleReason.RESTED, None, SettleReason.DEADLINE]
    pages = [PageStep(LAMP, b"", False, FACTS, settled=reason and Settled(1, 1, reason, True)) for reason in waits]
    pages[-1] = replace(pages[-1], done=True)
    ended = await play([OVER[0], *pages], RUBRIC)
    assert [step.settled for step in ended.steps] == ["rested", "", "deadline"]
    records = [
        GroupRecord(token="", group_id="i000000-g0000", task_id="", kind="", policy_version=0, episodes=(one, one))
        for one in [EpisodeSummary.of(ended)]
    ]
    assert episode_figures(records)["settled"] == {"rested": 2, "deadline": 2}
    old = ended.model_dump(mode="json")
    for step in old["steps"]:
        del step["settled"]
    assert [step.settled for step in Trajectory.model_validate(old).steps] == ["", "", ""]


async def test_a_status_is_no_answer_and_an_answer_is() -> None:
    ended = PageStep(DONE, b"", True, stop=StopReason.TERMINATED, said="success")
    assert (await play([*OVER[:2], ended], RUBRIC)).reward.score == 0.5
    answered = PageStep(DONE, b"", True, stop=StopReason.ANSWER, said="success")
    assert (await play([*OVER[:2], answered], RUBRIC)).reward.score == 1.0


async def test_without_a_rubric_the_page_says_how_it_went() -> None:
    reward = (await play(OVER, None)).reward
    assert [part.name for part in reward.parts] == ["page"] and reward.score == 0 and reward.rubric_hash == ""


async def test_a_failed_browser_abstains_whatever_the_rubric_says() -> None:
    reward = (await play([OVER[0], BrowserError("gone")], RUBRIC)).reward
    assert reward.score is None and reward.abstained == "gone"


async def test_a_timeout_of_something_else_is_not_the_episodes_deadline() -> None:
    with pytest.raises(TimeoutError, match="the model's server"):
        await play([OVER[0], TimeoutError("the model's server")], RUBRIC)


async def test_an_episode_that_is_not_over_in_time_abstains() -> None:
    episode = await play([OVER[0], asyncio.Event()], RUBRIC, deadline=0.05)
    assert (episode.stop_reason, episode.error) == (StopReason.DEADLINE, "not over after 0.05 s")


@pytest.mark.parametrize("outage", [200.0, 10_000.0])
async def test_an_outage_of_the_engine_is_no_part_of_an_episodes_time(
    outage: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The episode goes on afterwards, or abstains for the engine's sake: with the default patience
    and deadline, which are equal, at a turn that begins when most of the episode's time is over."""
    now, sleep = [0.0], asyncio.sleep

    async def jump(seconds: float) -> None:
        now[0] += seconds
        await sleep(0)

    async def generate(request: Any) -> Any:
        if not now[0]:
            await jump(250.0)  # what the episode itself took
        elif now[0] < 250 + outage:
            await jump(2.0)
            raise EngineError("the server is gone")
        return SimpleNamespace(finish_reason="stop")

    async def turn(situation: Any) -> Turn:
        engine: Any = SimpleNamespace(generate=generate)
        request: Any = None
        await generate_patiently(engine, request, ServingConfig().patience, situation.delayed)
        return make_turn(situation, "click [1]")

    monkeypatch.setattr("training.serving.waiting.asyncio.sleep", jump)
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda self: now[0])
    episode = await play(OVER, None, deadline=RolloutConfig().episode_deadline, turn=turn)
    if outage > ServingConfig().patience:
        assert (episode.stop_reason, len(episode.steps)) == (StopReason.ENGINE_ERROR, 1)
        assert "serving.patience" in str(episode.error) and abstention_cause(episode.stop_reason) == "engine"
    else:
        assert (episode.stop_reason, len(episode.steps)) == (StopReason.DONE, 2)
        assert episode.reward.score is not None and now[0] >= 450


async def test_a_wall_is_named_and_nothing_is_made_of_it() -> None:
    wall = DONE.model_copy(update={"title": "Just a moment..."})
    episode = await play([OVER[0], PageStep(wall, b"", False, FACTS)], RUBRIC)
    assert (episode.stop_reason, episode.wall) == (StopReason.BLOCKED, "cloudflare")
    assert episode.reward.score is None and "Cloudflare" in (episode.reward.abstained or "")


async def test_nobody_runs_at_a_wall_again() -> None:
    wall = PageStep(SHOP.model_copy(update={"title": "Just a moment..."}), b"", False, status=503)
    episode = await play([wall], RUBRIC, attempts=3)
    assert (episode.stop_reason, episode.wall, episode.steps) == (StopReason.BLOCKED, "cloudflare", ())


async def test_a_changed_rubric_ends_the_run() -> None:
    with pytest.raises(JudgeError, match="f" * 64):
        await play(OVER, RUBRIC, "f" * 64)
