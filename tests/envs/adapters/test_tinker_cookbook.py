"""The Tinker adapter under tinker_cookbook's own rollouts, renderers and data processing."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.adapters.tinker_types import STOP_WORDS

from ...training.vision_models import make_checkpoint
from .overlay import run_with_overlay
from .reference import SCRIPTS, digest, reference

pytestmark = pytest.mark.frameworks


def test_the_cookbook_plays_and_trains_on_our_episodes(tmp_path: Path) -> None:
    checkpoint = make_checkpoint("qwen3_vl", tmp_path)
    found = run_with_overlay("tinker", "cookbook_rollouts", str(checkpoint))
    for task in SCRIPTS:
        expected, group = reference(task), found[task]
        assert group["rewards"] == [expected.reward] * 2
        assert group["trajectories"] == [digest(expected.trajectory)] * 2
        assert group["turns"] == [len(expected.texts)] * 2
        assert group["stops"] == [STOP_WORDS[expected.trajectory.stop_reason]] * 2
    for name in (*SCRIPTS, "text", "thinking"):
        group = found[name]
        assert set(group["data"]) == {1}, "a trajectory is one datum"
        assert group["trained"] == group["sampled"], "all sampled tokens are trained on, and no others"

    killed = found["killed"]  # the members come in any order
    (lost,) = [member for member, reason in enumerate(killed["abstained"]) if reason]
    good, bad = sorted((member for member in range(3) if member != lost), key=lambda at: -killed["rewards"][at])
    reward = killed["rewards"]
    assert reward[good] > reward[bad] and reward[lost] == pytest.approx((reward[good] + reward[bad]) / 2)
    gain = (reward[good] - reward[bad]) / 2
    assert [killed["advantages"][at] for at in (good, bad, lost)] == pytest.approx([gain, -gain, 0.0])
    assert [killed["stops"][at] for at in (good, bad, lost)] == ["completed", "completed", "browser_error"]
    assert [killed["trained"][at] for at in (good, bad)] == [killed["sampled"][at] for at in (good, bad)]
    assert killed["trained"][lost] == 0.0 and killed["sampled"][lost] > 0

    data = found["data set"]
    assert data["bases"] and data["held out"] == 1
    assert data["tags"] == ["rollwright", "miniwob", "miniwob/enter-text"]
    assert set(data["stops"]) <= {"completed", "max_turns", "repetition"}
    assert len(found["snippet"]) == 2
