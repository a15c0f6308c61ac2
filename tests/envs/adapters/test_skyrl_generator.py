"""Our environment under SkyRL's own generator: what its trainer would get is the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from envs import StepRenderer

from .overlay import run_with_overlay
from .reference import SCRIPTS, reference

pytestmark = pytest.mark.frameworks

READER = Path(__file__).parents[3] / "datasets/policies/reader"
END = "<|im_end|>"


@pytest.fixture(scope="module")
def out() -> dict[str, Any]:
    played: dict[str, Any] = run_with_overlay("skyrl", "skyrl_generator", str(READER))
    return played


def test_the_generator_s_rows_are_the_reference(out: dict[str, Any]) -> None:
    """Rewards at the last token, the sampled tokens alone trained on, pages between them."""
    for name in ("whole", "again"):
        played = out[name]
        tasks = played["asked_in_order"]
        assert len(tasks) == 4 and set(played["stop_reasons"]) == {"stop"}
        for task, row in zip(tasks, played["rows"], strict=True):
            expected, texts = reference(task), SCRIPTS[task][1]
            assert row["trained"] == "".join(f"{text}{END}" for text in texts)
            assert (row["rewards"][-1], sum(row["rewards"])) == (expected.reward, expected.reward)
            pages = [StepRenderer().text(step) for step in expected.steps[1:-1]]
            assert pages and all(page in row["response"] for page in pages)
            assert StepRenderer().text(expected.steps[0]) in played["first"][f"{task}_0"]
        metrics = played["rollout_metrics"]
        assert (metrics["environment/success"], metrics["environment/graded"]) == (1.0, 4)


def test_the_generator_s_single_steps_are_the_reference(out: dict[str, Any]) -> None:
    played = out["steps"]
    texts = [text for session in played["asked_in_order"] for text in SCRIPTS[session][1]]
    assert [row["trained"] for row in played["rows"]] == [f"{text}{END}" for text in texts]
    for row, last in zip(played["rows"], played["is_last_step"], strict=True):
        assert sum(row["rewards"]) == (1.0 if last else 0.0)
    assert played["is_last_step"].count(True) == 4


def test_a_lost_browser_is_played_again(out: dict[str, Any]) -> None:
    (lost,) = out["lost"]
    again = out["again"]["finished"]
    assert sum(session.startswith(lost) for session in again) == 3 and len(again) == 5
    assert out["whole"]["finished"] == sorted(set(again))
