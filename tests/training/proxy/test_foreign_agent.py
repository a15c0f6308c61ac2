"""A foreign agent plays MiniWoB through the proxy, and the trainer trains on what was recorded.

The agent is the example of docs/recording-proxy.md, with OpenAI's own client.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from envs import StepRenderer, SyncEnvHost
from envs.types import Trajectory
from training.config import AlgorithmConfig
from training.ledger.store import write_json
from training.policy.renderer import Renderer
from training.proxy.join import CallUse, JoinedEpisode, join
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary
from training.serving.local import LocalEngine
from training.trainer.policy_trainer import PolicyTrainer
from training.trainer.rows import TrainingRow, read_batch_file, read_rows
from training.trainer.setup import build_trainer
from training.trainer.update import Stopwatch, run_update

from ..trainer.conftest import make_spec
from ..vision_models import picture
from .conftest import READER, RunningProxy, run_proxy

PAGE = Path(__file__).resolve().parents[3] / "docs/recording-proxy.md"
TASK, SEED = "miniwob/enter-text", 11
TEMPERATURE = 1.4


@pytest.fixture(scope="module")
def host() -> Iterator[SyncEnvHost]:
    with SyncEnvHost(max_sessions=1, screenshots=True) as host:
        yield host


@pytest.fixture(scope="module")
def proxy(engine: LocalEngine, renderer: Renderer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningProxy]:
    """All its calls are sampled at one temperature, so high that some episodes fail."""
    with run_proxy(tmp_path_factory.mktemp("foreign"), engine, renderer, temperature=TEMPERATURE) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def agent(host: SyncEnvHost) -> dict[str, Any]:
    """The names of the page's Python block, with environments on the shared browser."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {}
    exec(block, names)
    names["open_env_sync"] = host.open
    return names


def session_of(sample: int) -> str:
    return f"i000001-g0000-s{sample:02d}-a0"


@pytest.fixture(scope="module")
def episodes(agent: dict[str, Any], proxy: RunningProxy) -> list[Trajectory]:
    """A group of episodes of one task and seed."""
    return [agent["play"](TASK, SEED, session_of(sample), proxy.address) for sample in range(4)]


@pytest.fixture(scope="module")
def joined(episodes: list[Trajectory], proxy: RunningProxy) -> list[JoinedEpisode]:
    made = [join(proxy.calls(session_of(n)), episode, sample=n) for n, episode in enumerate(episodes)]
    for one in made:
        proxy.store.run.put_trajectory(one.trajectory)
    return made


@pytest.fixture(scope="module")
def trainer(proxy: RunningProxy, renderer: Renderer, joined: list[JoinedEpisode]) -> PolicyTrainer:
    (temperature,) = {one.temperature for one in joined}
    assert temperature == TEMPERATURE
    proxy.store.run.publish_policy(0, READER, {})
    return build_trainer(proxy.store.run, make_spec(temperature=temperature, banned_ids=tuple(renderer.banned_ids)), 0)


def largest_gap(trainer: PolicyTrainer, rows: list[TrainingRow]) -> float:
    """The largest difference between a recorded log-prob and the trainer's."""
    micro = trainer.data_collator.micro_batch(rows, [True] * len(rows))
    found, _ = trainer.score(micro)
    return float((found - micro.behaviour)[micro.mask].abs().max())


def test_an_update_is_trained_from_the_episodes_of_a_foreign_agent(
    episodes: list[Trajectory], joined: list[JoinedEpisode], proxy: RunningProxy, trainer: PolicyTrainer
) -> None:
    store = proxy.store.run
    for episode, one in zip(episodes, joined, strict=True):
        assert set(one.uses.values()) == {CallUse.ACTION} and len(one.uses) == len(episode.steps)
        assert one.trajectory.reward == episode.reward
        # What the policy saw is what the browser showed.
        assert [step.screenshot for step in one.trajectory.steps] == [step.screenshot for step in episode.steps]
        assert [step.response for step in one.trajectory.steps] == [step.response for step in episode.steps]
    group = [EpisodeSummary.of(store.trajectory(session_of(sample))) for sample in range(len(joined))]
    assert len({summary.score for summary in group}) > 1, "the group needs episodes of both kinds; take another seed"
    write_json(store.batch_path(1), build_batch(1, [group], AlgorithmConfig(group_size=len(group))))
    batch, _ = read_batch_file(store, 1)
    rows = read_rows(store, batch, trainer.spec.banned_ids)
    assert len(rows) == sum(len(episode.steps) for episode in episodes)

    assert largest_gap(trainer, rows) < 1e-4
    for shifted in (
        replace(rows[0], prompt_ids=(*rows[0].prompt_ids[1:], rows[0].prompt_ids[0])),
        replace(rows[0], response_ids=(*rows[0].response_ids[1:], rows[0].response_ids[0])),
        replace(rows[0], screenshots=(picture((160, 210)),)),
    ):
        assert largest_gap(trainer, [shifted, *rows[1:]]) > 1e-3

    before = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    metrics = run_update(trainer, batch, rows, Stopwatch())
    after = torch.cat([parameter.detach().flatten() for parameter in trainer.model.parameters()])
    assert metrics["rows"] == len(rows) and metrics["grad_norm"] > 0 and not torch.equal(before, after)
    assert metrics["kl_behaviour"] == pytest.approx(0, abs=1e-4) and metrics["ratio"] == pytest.approx(1, abs=1e-4)


def test_growing_conversations_are_trained_on_too(
    host: SyncEnvHost, proxy: RunningProxy, trainer: PolicyTrainer
) -> None:
    """Words alone in one episode, pictures of all pages in the other; each prompt begins with the
    call before it, and the trainer's log-probs are those of the calls."""
    rows = []
    for shows_screenshot in (False, True):
        session = f"grown-{shows_screenshot}"
        renderer = StepRenderer(screenshot=shows_screenshot, prompt="plain")
        client = proxy.client(session)
        with host.open("miniwob/click-button-sequence", seed=3, horizon=3) as env:
            step, messages = env.reset(), list[Any]()
            for action in ("click [99]", "click [98]", "click [2]"):
                messages.append(renderer.user_message(step))
                answer = client.chat.completions.create(model="policy", messages=messages, temperature=1, max_tokens=12)
                messages.append(answer.choices[0].message.model_dump())
                step = env.step({"type": "click", "element": int(action[7:-1])})
            assert step.done and env.trajectory is not None
            one = join(proxy.calls(session), env.trajectory)
        assert one.prefixes.growing == ((0, 1, 2),) and one.prefixes.breaks == ()
        counts = [len(row.pictures) for row in one.trajectory.steps]
        assert counts == ([1, 2, 3] if shows_screenshot else [0, 0, 0])
        rows.append([*_rows(proxy, one)])
    fresh = build_trainer(proxy.store.run, trainer.spec, 0)
    for row in rows:
        assert largest_gap(fresh, row) < 1e-4
    assert largest_gap(fresh, [*rows[0], *rows[1]]) < 1e-4


def _rows(proxy: RunningProxy, one: JoinedEpisode) -> Iterator[TrainingRow]:
    for step in one.trajectory.steps:
        yield TrainingRow(
            prompt_ids=step.prompt_ids,
            response_ids=step.response_ids,
            behaviour=step.logprobs,
            screenshots=tuple(proxy.store.run.blob(name) for name in step.pictures),
            advantage=1.0,
        )
