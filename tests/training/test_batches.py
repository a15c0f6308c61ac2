from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.types import StopReason
from training.algorithms.advantages import StepNormalizer
from training.config import AlgorithmConfig
from training.records.batches import TrainingBatch, build_batch
from training.records.groups import EpisodeSummary, StepShape
from training.records.states import EpisodeState


def episode(name: str, score: float | None, steps: int = 1) -> EpisodeSummary:
    return EpisodeSummary(
        episode_id=name,
        seed=0,
        sample=0,
        score=score,
        passed=bool(score and score >= 0.5),
        steps=steps,
        response_tokens=steps,
        stop_reason=StopReason.DONE,
        abstained="crash" if score is None else None,
        shapes=tuple(StepShape(3, 1, step) for step in range(steps)),
        sha256="",
    )


GROUPS = [
    [episode("a0", 1.0, 2), episode("a1", 0.0, 1), episode("a2", None, 3)],
    [episode("b0", 1.0), episode("b1", 1.0)],
    [episode("c0", 0.0), episode("c1", None)],
]


def test_grpo_batch() -> None:
    batch = build_batch(3, GROUPS, AlgorithmConfig(std_epsilon=1e-9))
    assert batch.model_dump(exclude={"rows", "left_out"}) == {
        "version": 3,
        "policy_version_before": 2,
        "algorithm": "grpo",
        "zero_variance_groups": 2,
        "episodes": 2,
        "abstained_episodes": 2,
        "replayed": (),
        "damaged_earlier": {},
        "group_ids": ("a0", "b0", "c0"),
        "versions": ((2, 2), (2, 2), (2, 2)),
    }
    assert [(row.episode_id, row.step) for row in batch.rows] == [("a0", 0), ("a0", 1), ("a1", 0)]
    assert [row.advantage for row in batch.rows] == pytest.approx([0.1, 0.1, -0.1])


@pytest.mark.parametrize("normaliser", ["constant", "trajectory", "none"])
def test_every_episode_with_a_reward_gives_rows_or_says_why_not(normaliser: StepNormalizer) -> None:
    """Also one that was over before its first step, and one whose screenshots are lost: the others
    keep their advantages."""
    groups = [*GROUPS, [episode("d0", 1.0, 0), episode("d1", 0.0, 2), episode("d2", 0.0, 1)]]
    settings = AlgorithmConfig(step_normalizer=normaliser)
    batch = build_batch(1, groups, settings, {"d2": "blob 0 is missing", "b0": "blob 1 is missing", "a2": "no matter"})
    states = {name: str(each.state) for name, each in (batch.left_out or {}).items()}
    same = "zero_variance"
    assert states == {"b0": same, "b1": same, "c0": same, "d0": "failed_filter", "d2": "damaged"}
    assert {row.episode_id for row in batch.rows} == {"a0", "a1", "d1"} and batch.episodes == 3
    whole = build_batch(1, groups, settings)
    assert batch.rows == tuple(row for row in whole.rows if row.episode_id != "d2")
    assert batch.left_out is not None and batch.left_out["d2"].reason == "blob 0 is missing"


CUT = [episode("a0", 1.0, 2), episode("a1", 1.0, 4).model_copy(update={"cut_turns": (1, 3)}), episode("a2", 0.0)]
ALL_CUT = [episode("b0", 1.0), episode("b1", 0.0, 1).model_copy(update={"cut_turns": (0,)})]


def advantages(batch: TrainingBatch) -> dict[tuple[str, int], float]:
    return {(row.episode_id, row.step): row.advantage for row in batch.rows}


def test_cut_turns_are_trained_unless_excluded() -> None:
    plain = [[item.model_copy(update={"cut_turns": ()}) for item in group] for group in (CUT, ALL_CUT)]
    assert build_batch(1, [CUT, ALL_CUT], AlgorithmConfig()) == build_batch(1, plain, AlgorithmConfig())


@pytest.mark.parametrize("name", ["grpo", "filtered_bc"])
def test_masked_turns_give_no_rows_and_change_no_advantage(name: Literal["grpo", "filtered_bc"]) -> None:
    kept = build_batch(1, [CUT, ALL_CUT], AlgorithmConfig(name=name))
    masked = build_batch(1, [CUT, ALL_CUT], AlgorithmConfig(name=name, length_cut="mask"))
    gone = {("a1", 1), ("a1", 3), ("b1", 0)}
    assert advantages(masked) == {row: value for row, value in advantages(kept).items() if row not in gone}
    assert ("a1", 0) in advantages(masked)
    if name == "grpo":
        assert masked.left_out is not None and "cut at their length limit" in masked.left_out["b1"].reason
        assert masked.episodes == kept.episodes - 1


def test_a_penalty_lowers_the_score_by_the_share_of_cut_turns() -> None:
    settings = AlgorithmConfig(length_cut="penalise", length_penalty=0.4)
    scores = [episode("a0", 1.0, 2), episode("a1", 0.8, 4), episode("a2", 0.0)]
    assert advantages(build_batch(1, [CUT], settings)) == pytest.approx(advantages(build_batch(1, [scores], settings)))
    equal = [episode("c0", 1.0), episode("c1", 1.0).model_copy(update={"cut_turns": (0,)})]
    batch = build_batch(1, [equal], settings)
    assert batch.zero_variance_groups == 0 and [row.advantage > 0 for row in batch.rows] == [True, False]
    assert build_batch(1, [equal], AlgorithmConfig()).rows == ()


def test_trajectory_normaliser_divides_by_the_episodes_steps() -> None:
    batch = build_batch(1, GROUPS[:1], AlgorithmConfig(step_normalizer="trajectory", std_epsilon=1e-9))
    assert [row.advantage for row in batch.rows] == pytest.approx([0.5, 0.5, -1.0])


def test_filtered_bc_takes_every_step_of_successes_only() -> None:
    batch = build_batch(1, GROUPS, AlgorithmConfig(name="filtered_bc"))
    assert [(row.episode_id, row.step, row.advantage) for row in batch.rows] == [
        ("a0", 0, 1),
        ("a0", 1, 1),
        ("b0", 0, 1),
        ("b1", 0, 1),
    ]
    assert (batch.algorithm, batch.episodes, batch.zero_variance_groups) == ("filtered_bc", 3, 2)


@pytest.mark.parametrize("groups", [[], [[]], [[episode("a", None)]]])
def test_nothing_to_learn_gives_no_rows(groups: list[list[EpisodeSummary]]) -> None:
    assert build_batch(1, groups, AlgorithmConfig()).rows == ()


@given(st.lists(st.lists(st.tuples(st.sampled_from([None, 0.0, 0.5, 1.0]), st.integers(0, 4)), max_size=6), max_size=5))
def test_same_groups_give_the_same_bytes_and_abstentions_no_rows(shape: list[list[tuple[float | None, int]]]) -> None:
    groups = [
        [episode(f"{g}-{e}", score, steps) for e, (score, steps) in enumerate(group)] for g, group in enumerate(shape)
    ]
    batch = build_batch(1, groups, AlgorithmConfig())
    assert build_batch(1, groups, AlgorithmConfig()).model_dump_json() == batch.model_dump_json()
    assert TrainingBatch.model_validate_json(batch.model_dump_json()) == batch
    scored = {item.episode_id for group in groups for item in group if item.score is not None}
    assert {row.episode_id for row in batch.rows} <= scored
    for group in groups:
        if len({item.score for item in group if item.score is not None}) < 2:
            assert not {item.episode_id for item in group} & {row.episode_id for row in batch.rows}


def test_a_late_sibling_is_down_weighted_and_stays_in_the_baseline() -> None:
    """Staleness is counted from an episode's oldest token; the others' advantages are those with
    its score."""
    fresh, late = episode("a0", 1.0, 2), episode("a1", 0.0, 2)
    fresh, late = (
        fresh.model_copy(update={"versions": ((4, 5),)}),
        late.model_copy(update={"versions": ((2, 3), (4, 4))}),
    )

    def made(**settings: float) -> TrainingBatch:
        algorithm = AlgorithmConfig(std_epsilon=1e-9, **settings)  # type: ignore[arg-type]
        return build_batch(6, [[fresh, late]], algorithm)

    both = made()
    assert both.group_ids == ("a0",)
    assert both.versions == ((4, 5), (4, 5), (2, 3), (4, 4))
    left = made(stale_limit=2)
    assert left.rows == both.rows[:2] and left.left_out is not None
    assert left.left_out["a1"].state is EpisodeState.STALE and "3 versions old" in left.left_out["a1"].reason
    assert made(stale_limit=3).rows == both.rows
    weighed = made(stale_decay=0.5)
    assert [row.advantage for row in weighed.rows] == pytest.approx(
        [row.advantage * factor for row, factor in zip(both.rows, (0.5, 0.5, 0.125, 0.125), strict=True)]
    )
