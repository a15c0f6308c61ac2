"""Advantages and losses of extensions: the documented examples, against sums by hand."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from envs.types import ConfigError, TrainingError
from tests.conftest import make_group
from training.algorithms.losses import named_policy_loss
from training.algorithms.policy_loss import PolicyLoss, policy_loss
from training.config import AlgorithmConfig
from training.records.batches import build_batch

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


@pytest.fixture
def mine(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    module = ModuleType("my_extensions")
    exec(compile(code, str(PAGE), "exec"), vars(module))
    monkeypatch.setitem(sys.modules, "my_extensions", module)
    yield module


def advantages(name: str, *scores: float | None) -> list[float]:
    settings = AlgorithmConfig(advantages=name, step_normalizer="none")
    batch = build_batch(1, [make_group("g", scores).episodes], settings)
    return [row.advantage for row in batch.rows]


def test_advantages_of_an_extension_enter_the_batch(mine: ModuleType) -> None:
    assert advantages("my_extensions:centred", 1.0, 0.5, 0.0) == [0.5, 0.0, -0.5]
    assert advantages("my_extensions:centred", 1.0, None, 0.0) == [0.5, -0.5], "an abstention is in no group"
    assert advantages("my_extensions:centred", 1.0, 1.0) == [], "a group without a difference is dropped"
    assert advantages("", 1.0, 0.0) == pytest.approx([1.0, -1.0], rel=1e-3)


@pytest.mark.parametrize("key", ["advantages", "loss"])
def test_what_cloning_would_not_use_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key}: filtered_bc clones successes"):
        AlgorithmConfig.model_validate({"name": "filtered_bc", key: "my_extensions:centred"})


@pytest.mark.parametrize("given", [[1.0], [1.0, float("nan")], [1.0, 2.0, 3.0]])
def test_advantages_that_are_none_are_refused(mine: Any, given: list[float]) -> None:
    mine.wrong = lambda rewards: given
    with pytest.raises(TrainingError, match=r"my_extensions:wrong gave .*expected 2 finite numbers"):
        advantages("my_extensions:wrong", 1.0, 0.0)
    with pytest.raises(ConfigError, match="no advantage 'grpo2'"):
        advantages("grpo2", 1.0, 0.0)


def test_a_loss_of_an_extension_is_masked_and_divided(mine: Any) -> None:
    logprobs = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]], requires_grad=True)
    sampled, mask = torch.tensor([[-1.0, -2.0], [-3.0, -9.0]]), torch.tensor([[True, True], [True, False]])
    entropy = torch.ones(2, 2)
    loss, metrics = named_policy_loss(
        "my_extensions:reinforce",
        logprobs,
        sampled,
        sampled,
        torch.tensor([2.0, -1.0]),
        mask,
        normaliser=3,
        entropy=entropy,
        entropy_coefficient=0.3,
    )
    assert loss.item() == pytest.approx((2.0 * 1 + 2.0 * 2 - 3) / 3 - 0.3)
    loss.backward()
    assert logprobs.grad is not None
    torch.testing.assert_close(logprobs.grad, torch.tensor([[-2 / 3, -2 / 3], [1 / 3, 0.0]]))
    assert metrics.tokens == 3 and metrics.ratio == pytest.approx(3) and metrics.kl_behaviour == pytest.approx(0)


def test_the_built_in_loss_can_be_written_as_an_extension(mine: Any) -> None:
    def clipped(tokens: Any) -> torch.Tensor:
        ratio = (tokens.logprobs - tokens.proximal).exp()
        bounded = ratio.clamp(0.8, 1.28)
        return torch.maximum(-tokens.advantages * ratio, -tokens.advantages * bounded)

    mine.clipped = clipped
    torch.manual_seed(0)
    old, mask = -torch.rand(4, 5), torch.rand(4, 5) > 0.3
    new, advantage = old + 0.2 * torch.randn(4, 5), torch.randn(4)
    same = (new, old, old, advantage, mask)
    expected, sums = policy_loss(*same, PolicyLoss(trust_region="clip"), normaliser=7.0)
    loss, found = named_policy_loss("my_extensions:clipped", *same, normaliser=7.0)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert found.kl_proximal == pytest.approx(sums.kl_proximal) and found.ratio == pytest.approx(sums.ratio)


def test_a_loss_of_another_shape_is_refused(mine: Any) -> None:
    mine.mean = lambda tokens: tokens.logprobs.mean()
    ones = torch.ones(2, 3)
    with pytest.raises(TrainingError, match=r"my_extensions:mean gave \(\); expected a loss for each token, \(2, 3\)"):
        named_policy_loss("my_extensions:mean", ones, ones, ones, ones[:, 0], ones > 0, normaliser=6)
