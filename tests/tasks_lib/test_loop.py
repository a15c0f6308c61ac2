"""What the loop says when an iteration has nothing to learn from."""

from __future__ import annotations

from envs.types import StopReason
from tasks_lib.loop import nothing_to_learn
from training.groups import EpisodeSummary, GroupRecord


def record(*causes: str | None) -> GroupRecord:
    """A group whose episodes abstained with these causes; ``None``: it failed."""
    episodes = tuple(
        EpisodeSummary(
            episode_id=f"i000004-g0000-s{sample:02d}-a0",
            seed=1,
            sample=sample,
            score=None if cause else 0.0,
            passed=False,
            steps=1,
            response_tokens=1,
            stop_reason=StopReason.HORIZON,
            abstained=cause,
        )
        for sample, cause in enumerate(causes)
    )
    return GroupRecord(group_id="i000004-g0000", task_id="t", kind="k", policy_version=4, episodes=episodes)


def test_failures_ask_for_another_policy() -> None:
    said = nothing_to_learn(4, [record(None, None), record(None)])
    assert said.startswith("iteration 4: all 3 episodes failed") and "docs/warm-start.md" in said


def test_abstentions_are_counted_with_their_commonest_cause_and_say_nothing_of_the_policy() -> None:
    said = nothing_to_learn(4, [record("no judge", "crash"), record("no judge")])
    assert said.startswith("iteration 4: 3 of 3 episodes abstained (commonest cause, 2 times: no judge)")
    assert "failed" not in said and "warm-start" not in said


def test_both_are_told_apart() -> None:
    said = nothing_to_learn(4, [record("no judge", None), record(None)])
    assert "1 of 3 episodes abstained (commonest cause, 1 times: no judge)" in said
    assert "the other 2 failed" in said and "docs/warm-start.md" in said
