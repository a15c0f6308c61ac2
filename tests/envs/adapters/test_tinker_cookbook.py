"""The Tinker adapter under tinker_cookbook's own rollouts, renderers and data processing."""

from __future__ import annotations

from pathlib import Path

import pytest

from ...training.vision_models import make_checkpoint
from .overlay import run_with_overlay
from .reference import SCRIPTS, digest, reference

pytestmark = pytest.mark.frameworks


def test_the_cookbook_plays_and_trains_on_our_episodes(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("qwen3_vl", tmp_path)
    found = run_with_overlay("tinker", "tests.envs.adapters.cookbook_rollouts", str(checkpoint))
    for task in SCRIPTS:
        expected, group = reference(task), found[task]
        assert group["rewards"] == [expected.reward] * 2
        assert group["trajectories"] == [digest(expected.trajectory)] * 2
        assert group["turns"] == [len(expected.texts)] * 2
        assert group["stops"] == ["completed"] * 2
    for name in (*SCRIPTS, "thinking", "images"):
        group = found[name]
        assert set(group["data"]) == {1}, "a trajectory is one datum"
        assert group["trained"] == group["sampled"], "all sampled tokens are trained on, and no others"

    killed = found["killed"]
    good, bad, lost = killed["rewards"]
    assert good > bad and lost == pytest.approx((good + bad) / 2)
    assert killed["advantages"] == pytest.approx([(good - bad) / 2, (bad - good) / 2, 0.0])
    assert killed["stops"] == ["completed", "completed", "browser_error"]
    assert killed["trained"] == [*killed["sampled"][:2], 0.0] and killed["sampled"][2] > 0
    assert killed["abstained"][:2] == [None, None] and killed["abstained"][2]

    data = found["data set"]
    assert data["bases"] and data["held out"] == 1
    assert data["tags"] == ["rollwright", "miniwob", "miniwob/enter-text"]
    assert set(data["stops"]) <= {"completed", "max_turns", "repetition"}
