"""A real vLLM server that is killed or stopped is started again, whole, and serves the current
policy."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import psutil
import pytest

from envs.types import EngineError
from training.policy.renderer import Renderer
from training.serving.engine import Generation, GenerationRequest
from training.serving.vllm.engine import VllmEngine
from training.serving.vllm.probe import Probe, probe_picture
from training.serving.vllm.process import group_members
from training.serving.vllm.supervisor import Replica, Supervisor

from .conftest import Policy, Served
from .judging import ask
from .test_supervisor import down, until

pytestmark = [pytest.mark.vllm, pytest.mark.chaos, pytest.mark.slow]

RESTART_SECONDS = 400


def member(group: int, name: str) -> int:
    """The process of a server whose command line has ``name``."""
    return next(pid for pid in group_members(group) if name in " ".join(psutil.Process(pid).cmdline()))


async def asked_until_answered(engine: VllmEngine, request: GenerationRequest) -> tuple[Generation, int]:
    """The turn, and how often the engine failed before."""
    failures = 0
    end = time.monotonic() + RESTART_SECONDS
    while True:
        try:
            return await engine.generate(request), failures
        except EngineError as error:
            if time.monotonic() > end:
                raise
            if not failures:
                print(f"first failure: {error}")
            failures += 1
            await asyncio.sleep(0.5)


@pytest.mark.timeout(1800)
async def test_a_server_that_fails_comes_back_with_the_current_policy(
    served: Served, renderer: Renderer, policy: Policy
) -> None:
    replica = Replica(served.client(renderer), served.process)
    supervisor = Supervisor([replica], served.root, probe=Probe(renderer), answer_seconds=20.0)
    engine = VllmEngine([replica.client])
    await supervisor.start(1, policy(1))
    await supervisor.publish(2, policy(2))
    await engine.publish(2, policy(2))
    request = ask(renderer, probe_picture(0), tokens=1000)
    expected = await engine.generate(request)
    for name, number in (("api_server", signal.SIGKILL), ("Worker", signal.SIGKILL), ("api_server", signal.SIGSTOP)):
        group = served.process.pid
        assert group is not None
        turn = asyncio.create_task(asked_until_answered(engine, request))
        await asyncio.sleep(1.0)
        begun = time.monotonic()
        os.kill(member(group, name), number)
        await until(lambda group=group: served.process.pid != group, RESTART_SECONDS)
        noticed = time.monotonic() - begun
        found, failures = await turn
        print(
            f"{number.name} of {name}: given up after {noticed:.1f} s, answered after {time.monotonic() - begun:.0f} s, {failures} failures"
        )
        assert failures > 0 or number == signal.SIGSTOP  # a stopped one goes on when it is told to end, and answers
        assert {span.version for span in found.version_spans} == {2}
        assert found.token_ids == expected.token_ids
        await until(lambda: not down(supervisor), RESTART_SECONDS)
        assert await replica.client.weight_version() == 2
        assert group_members(group) == []
    group = served.process.pid
    assert group is not None
    await supervisor.close()
    assert group_members(group) == []
