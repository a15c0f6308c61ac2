"""An engine that fails for the moment is asked again; one that fails for longer is given up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from envs.types import EngineError, PolicyError
from training.policy.rendered import RenderedPrompt
from training.serving.engine import Generation, GenerationRequest, VersionSpan
from training.serving.waiting import FIRST_PAUSE, LONGEST_PAUSE, generate_patiently

REQUEST = GenerationRequest(RenderedPrompt((1,), (1,), ()), (), "e0/0", "e0", seed=0, max_new_tokens=1, temperature=1.0)
TURN = Generation((1,), (0.0,), (VersionSpan(0, 0, 1),), "stop")


class FailingEngine:
    """Fails the first ``failures`` times."""

    def __init__(self, failures: float, fail: Callable[[], Generation]) -> None:
        self.asked = 0
        self._failures, self._fail = failures, fail

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked += 1
        return self._fail() if self.asked <= self._failures else TURN


def dead() -> Generation:
    raise EngineError("the server is gone")


def wrong() -> Generation:
    raise PolicyError("no such policy")


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses, which take no time: the loop's clock jumps."""
    taken: list[float] = []
    sleep, now = asyncio.sleep, [0.0]

    async def jump(seconds: float) -> None:
        taken.append(seconds)
        now[0] += seconds
        await sleep(0)

    monkeypatch.setattr("training.serving.waiting.asyncio.sleep", jump)
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda self: now[0])
    return taken


@pytest.mark.parametrize("fail", [dead, lambda: Generation((), (), (), "aborted")], ids=["dead", "aborted"])
async def test_a_turn_is_asked_for_again_until_it_is_there(fail: Any, pauses: list[float]) -> None:
    engine = FailingEngine(4, fail)
    assert await generate_patiently(engine, REQUEST, 60.0) == TURN
    assert engine.asked == 5
    for number, pause in enumerate(pauses):
        assert FIRST_PAUSE * 2**number / 2 <= pause <= FIRST_PAUSE * 2**number, "each is longer"


async def test_an_engine_that_stays_dead_is_given_up_in_time(pauses: list[float]) -> None:
    engine = FailingEngine(float("inf"), dead)
    with pytest.raises(
        EngineError, match=r"failed \d+ times in 60 s \(serving.patience\), at last: the server is gone"
    ):
        await generate_patiently(engine, REQUEST, 60.0)
    assert sum(pauses) == pytest.approx(60.0) and max(pauses) <= LONGEST_PAUSE
    assert engine.asked == len(pauses) + 1 > 10


async def test_what_asking_again_does_not_mend_is_raised_at_once(pauses: list[float]) -> None:
    engine = FailingEngine(1, wrong)
    with pytest.raises(PolicyError):
        await generate_patiently(engine, REQUEST, 60.0)
    assert engine.asked == 1 and not pauses
