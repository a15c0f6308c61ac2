"""The TRL adapter under TRL's own trainer."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...training.vision_models import make_checkpoint
from .overlay import run_with_overlay
from .reference import digest, reference, without_pictures, without_texts

pytestmark = pytest.mark.frameworks

SHOP = "bundled/shop-open/200000/0"


def test_the_trainer_trains_on_our_episodes(tmp_path: Path) -> None:
    found = run_with_overlay("trl", "trl_training", str(make_checkpoint("qwen2_vl", tmp_path)))
    expected, (first, second) = reference(SHOP), found["rounds"]
    good, *bad = first["rewards"]
    assert good == expected.reward and len(set(bad)) == 1 and bad[0] < good
    assert first["abstained"] == [None] * 3
    gain = (good - bad[0]) / 3
    assert first["advantages"] == pytest.approx([2 * gain, -gain, -gain], abs=1e-4)
    assert f"Task: {expected.steps[0].observation.instruction}" in found["prompt"]
    assert '"name": "click"' in found["prompt"] and '"name": "_act"' not in found["prompt"]

    assert second["rewards"] == [None, *bad] and second["abstained"][0]
    assert second["advantages"] == pytest.approx([0.0] * 3), "the lost one is not in the baseline"
    assert len(found["losses"]) == 2 and all(trained > 0 for trained in first["trained"])
    assert found["snippet"] == ["TrlEnvironment"]


def test_the_trainer_trains_on_our_rollouts(tmp_path: Path) -> None:
    found = run_with_overlay("trl", "trl_rollout_training", str(make_checkpoint("qwen2_vl", tmp_path)))
    expected, (first, second) = reference(SHOP), found["rounds"]
    good, *bad = first["rewards"]
    assert first["prompts"] == 3, "TRL repeats a prompt for each rollout of its group"
    assert good == expected.reward and len(set(bad)) == 1 and bad[0] < good
    assert first["trajectories"][0] == digest(without_texts(without_pictures(expected.trajectory)))
    gain = (good - bad[0]) / 3
    assert first["advantages"] == pytest.approx([2 * gain, -gain, -gain], abs=1e-4)
    assert first["trained"] == first["masks"] and first["masks"][0] == sum(first["sampled"])

    assert second["rewards"] == [None, *bad] and second["trained"][0] == 0
    assert second["advantages"] == pytest.approx([0.0] * 3), "the lost one is not in the baseline"
    assert len(found["losses"]) == 2
    assert found["snippet"] == ["episode_reward"]
    assert found["own"]["completion_ids"] == 2 and "logprobs" not in found["own"]
