"""Every combination of choices against formulas written down here in numpy and float64, gradients
by differences."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from training.algorithms.advantages import dr_grpo_advantages, named_advantages, rloo_advantages
from training.algorithms.choices import PRESETS, PolicyLoss
from training.algorithms.losses import behaviour_cloning_loss
from training.algorithms.policy_loss import aggregation_weights, policy_loss
from training.config import AlgorithmConfig
from training.records.batches import TrainingBatch, build_batch
from training.records.groups import GroupRecord

Values = NDArray[np.float64]
ROWS, COLUMNS = 5, 7


def surrogate(choices: PolicyLoss, new: Values, proximal: Values, advantage: float, mask: NDArray[np.bool_]) -> Values:
    """Of one row, by the papers: PPO eq. 7, Ye et al. eq. 5, GSPO eq. 7, DPPO's binary total
    variation, REINFORCE."""
    if choices.ratio == "none":
        return -advantage * new
    ratio = np.exp(new - proximal)
    if choices.ratio == "sequence":
        ratio = np.full_like(ratio, np.exp((new - proximal)[mask].mean()))
    if choices.trust_region == "none":
        return -advantage * ratio
    if choices.trust_region == "dppo":
        change = np.exp(new) - np.exp(proximal)
        outside = change > choices.dppo_limit if advantage > 0 else change < -choices.dppo_limit
        return np.where(outside, 0.0, -advantage * ratio)
    bounded = np.clip(ratio, 1 - choices.clip_low, 1 + choices.clip_high)
    loss = np.maximum(-advantage * ratio, -advantage * bounded)
    if choices.trust_region == "dual_clip" and advantage < 0:
        loss = np.minimum(loss, choices.dual_clip * -advantage)
    return loss


def correction(choices: PolicyLoss, weight: Values) -> Values:
    if choices.correction == "none":
        return np.ones_like(weight)
    if choices.correction == "clamp":
        return np.minimum(weight, choices.behaviour_cap)
    low = choices.behaviour_floor if choices.correction == "band" else 0.0
    return np.where((weight >= low) & (weight <= choices.behaviour_cap), weight, 0.0)


class Case:
    """Log-probs of four policies, advantages, and a mask with a token in each row."""

    def __init__(self, seed: int) -> None:
        draws = np.random.default_rng(seed)
        shape = (ROWS, COLUMNS)
        self.proximal: Values = -3 * draws.random(shape)
        self.new: Values = np.minimum(self.proximal + 0.7 * draws.normal(size=shape), -0.01)
        self.old: Values = self.proximal + 0.9 * draws.normal(size=shape)
        self.reference: Values = self.proximal + 0.5 * draws.normal(size=shape)
        self.advantage: Values = draws.normal(size=ROWS)
        self.mask = draws.random(shape) < 0.6
        self.mask[:, 0] = True
        self.weights: Values = draws.random(ROWS) + 0.5

    def expected(self, choices: PolicyLoss, new: Values) -> float:
        total = 0.0
        for row in range(ROWS):
            mask = self.mask[row]
            loss = surrogate(choices, new[row], self.proximal[row], float(self.advantage[row]), mask)
            loss = loss * correction(choices, np.exp(self.proximal - self.old)[row])
            away = self.reference[row] - new[row]
            loss = loss + choices.kl_coefficient * (np.exp(away) - 1 - away)
            total += float(self.weights[row] * loss[mask].sum())
        return total / 3.0

    def slope(self, choices: PolicyLoss) -> Values:
        """Central differences of the expected loss."""
        found = np.zeros_like(self.new)
        for place in itertools.product(range(ROWS), range(COLUMNS)):
            step = np.zeros_like(self.new)
            step[place] = 1e-6
            up, down = self.expected(choices, self.new + step), self.expected(choices, self.new - step)
            found[place] = (up - down) / 2e-6
        return found

    def ours(self, choices: PolicyLoss) -> tuple[float, Values]:
        logprobs = torch.tensor(self.new, requires_grad=True)
        loss, _ = policy_loss(
            logprobs,
            *(torch.tensor(each) for each in (self.proximal, self.old, self.advantage, self.mask)),
            choices,
            normaliser=3.0,
            row_weights=torch.tensor(self.weights),
            reference=torch.tensor(self.reference) if choices.kl_coefficient else None,
        )
        loss.backward()
        assert logprobs.grad is not None
        return float(loss.detach()), logprobs.grad.numpy()


COMBINATIONS = [
    PolicyLoss(ratio=ratio, trust_region=region, correction=how, dual_clip=1.4, behaviour_cap=1.5, kl_coefficient=kl)
    for ratio, region in [
        *itertools.product(("token", "sequence"), ("clip", "dual_clip", "dppo", "none")),
        ("none", "none"),
    ]
    for how in ("mask", "clamp", "band", "none")
    for kl in (0.0, 0.1)
]


@pytest.mark.parametrize(
    "choices", COMBINATIONS, ids=lambda c: f"{c.ratio}-{c.trust_region}-{c.correction}-{c.kl_coefficient}"
)
def test_every_combination_is_its_formula(choices: PolicyLoss) -> None:
    for seed in range(4):
        case = Case(seed)
        loss, slope = case.ours(choices)
        assert loss == pytest.approx(case.expected(choices, case.new), rel=1e-6, abs=1e-6)
        assert slope == pytest.approx(case.slope(choices), rel=1e-4, abs=1e-6)


def test_the_choices_differ_in_the_cases() -> None:
    """A control: no two combinations give the same losses on all cases."""
    losses = {choices: tuple(round(Case(seed).ours(choices)[0], 9) for seed in range(4)) for choices in COMBINATIONS}
    assert len(set(losses.values())) == len(COMBINATIONS)


@pytest.mark.parametrize("how", ["token", "step", "sequence"])
def test_aggregation_is_a_mean_over_what_it_is_named_after(how: str) -> None:
    tokens, episodes = [3, 1, 5, 2], ["a", "a", "b", "a"]
    losses = [torch.rand(count, dtype=torch.float64) for count in tokens]
    weights, normaliser = aggregation_weights(how, tokens, episodes)  # type: ignore[arg-type]
    found = sum(weight * each.sum() for weight, each in zip(weights, losses, strict=True)) / normaliser
    of_episode = [torch.cat([losses[0], losses[1], losses[3]]), losses[2]]
    expected = {
        "token": torch.cat(losses).mean(),
        "step": torch.stack([each.mean() for each in losses]).mean(),
        "sequence": torch.stack([each.mean() for each in of_episode]).mean(),
    }
    assert float(found) == pytest.approx(float(expected[how]), rel=1e-12)
    assert len({round(float(each), 6) for each in expected.values()}) == 3


def test_cloning_is_aggregated_alike() -> None:
    logprobs, mask = -torch.rand(2, 3), torch.tensor([[True, True, True], [True, False, False]])
    weights, normaliser = aggregation_weights("step", [3, 1], ["a", "b"])
    loss, _ = behaviour_cloning_loss(logprobs, logprobs, mask, normaliser=normaliser, row_weights=torch.tensor(weights))
    assert float(loss) == pytest.approx(-float((logprobs[0].mean() + logprobs[1, 0]) / 2))


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    return [
        reward - float(np.mean([other for place, other in enumerate(rewards) if place != index]))
        for index, reward in enumerate(rewards)
    ]


@pytest.mark.parametrize("rewards", [[1.0, 0.0], [1.0, 0.0, 0.0, 1.0, 0.5], [0.2, -0.4, 0.9]])
def test_advantages_are_those_of_the_papers(rewards: list[float]) -> None:
    assert rloo_advantages(rewards) == pytest.approx(leave_one_out(rewards))
    assert dr_grpo_advantages(rewards) == pytest.approx([reward - np.mean(rewards) for reward in rewards])
    size = len(rewards)  # Dr. GRPO's are RLOO's up to n / (n - 1)
    assert named_advantages("rloo", rewards) == pytest.approx(
        [size / (size - 1) * each for each in named_advantages("dr_grpo", rewards)]
    )


def test_raft_trains_on_successes_alone(synthetic_group: Callable[..., GroupRecord]) -> None:
    settings = AlgorithmConfig(preset="raft")
    groups = [
        synthetic_group("g0", [1.0, 0.0, 1.0], steps=2).episodes,
        synthetic_group("g1", [1.0, 1.0], steps=4).episodes,
    ]
    batch = build_batch(1, groups, settings)
    assert [row.advantage for row in batch.rows] == [0.5] * 4 + [0.25] * 8
    assert batch.left_out is not None and {each.reason for each in batch.left_out.values()} == {
        "raft trains on episodes that passed"
    }


def test_presets_are_values_under_the_others() -> None:
    for name, values in PRESETS.items():
        expanded = AlgorithmConfig(preset=name).model_dump()
        assert {key: expanded[key] for key in values} == values
    gspo = AlgorithmConfig(preset="gspo", clip_low=0.01)
    assert (gspo.ratio, gspo.clip_low, gspo.clip_high, gspo.group_size) == ("sequence", 0.01, 4e-4, 8)
    assert AlgorithmConfig.model_validate(gspo.model_dump()) == gspo
    assert PolicyLoss() == PolicyLoss.model_validate(
        AlgorithmConfig().model_dump(include=PolicyLoss.model_fields.keys())
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"preset": "ppo2"}, "Input should be 'grpo', 'dr_grpo'"),
        ({"ratio": "none"}, "trust_region: it bounds an importance ratio"),
        ({"loss": "my:loss", "kl_coefficient": 0.1}, "a loss of your own is the whole loss"),
        ({"name": "filtered_bc", "kl_coefficient": 0.1}, "kl_coefficient: filtered_bc clones successes"),
    ],
)
def test_choices_that_do_not_fit_are_refused(values: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        AlgorithmConfig.model_validate(values)


def steps_of(batch: TrainingBatch) -> list[tuple[str, int]]:
    return [(row.episode_id, row.step) for row in batch.rows]


def test_webgym_trains_on_successes_of_four_iterations(synthetic_group: Callable[..., GroupRecord]) -> None:
    settings = AlgorithmConfig(preset="webgym", replay_steps=0)
    old = [synthetic_group(f"i00000{number}-g0000", [1.0, 0.0], steps=3).episodes for number in range(3)]
    new = synthetic_group("i000003-g0000", [0.0, 1.0], steps=2).episodes
    batch = build_batch(4, [new], settings, earlier=old)
    assert steps_of(batch) == [("i000003-g0000-s01-a0", 0), ("i000003-g0000-s01-a0", 1)]
    assert [row.episode_id for row in batch.replayed] == [f"i00000{n}-g0000-s00-a0" for n in range(3) for _ in range(3)]
    assert {row.advantage for row in (*batch.rows, *batch.replayed)} == {1.0}
    assert batch.left_out is not None and batch.left_out.keys() == {"i000003-g0000-s00-a0"}
    assert len(batch.group_ids) == 1 and batch.episodes == 1, "what is replayed is accounted for in its own batch"


def test_steps_that_changed_nothing_are_left_out(synthetic_group: Callable[..., GroupRecord]) -> None:
    settings = AlgorithmConfig(preset="webgym")
    group = synthetic_group("i000000-g0000", [1.0, 1.0, 0.0], steps=3)
    idle, partly, failed = group.episodes
    episodes = (
        idle.model_copy(update={"unchanged_turns": (0, 1, 2)}),
        partly.model_copy(update={"unchanged_turns": (1,)}),
        failed,
    )
    batch = build_batch(1, [episodes], settings)
    assert steps_of(batch) == [(partly.episode_id, 0), (partly.episode_id, 2)]
    assert batch.left_out is not None and "changed the screenshot" in batch.left_out[idle.episode_id].reason


def test_the_draw_prefers_what_is_recent(synthetic_group: Callable[..., GroupRecord]) -> None:
    settings = AlgorithmConfig(preset="webgym", replay_steps=40)
    old = [synthetic_group(f"i000000-g{number:04d}", [1.0], steps=1).episodes for number in range(60)]
    new = [synthetic_group(f"i000001-g{number:04d}", [1.0], steps=1).episodes for number in range(60)]
    drawn = [build_batch(version, new, settings, earlier=old) for version in range(2, 202)]
    assert all(len(batch.rows) + len(batch.replayed) == 40 for batch in drawn)
    assert all(len({*steps_of(batch)}) == len(batch.rows) for batch in drawn)
    # Of weights i^2 over 1..120 the newer half has 0.875; without replacement it is somewhat less.
    share = np.mean([len(batch.rows) / 40 for batch in drawn])
    assert 0.75 < share < 0.9
    for batch in drawn:
        named = {row.episode_id for row in batch.rows} | (batch.left_out or {}).keys()
        assert named == {episode.episode_id for group in new for episode in group}, "every new episode is accounted for"
    assert drawn[0] == build_batch(2, new, settings, earlier=old)
    others = [build_batch(2, new, settings, earlier=old, seed=seed) for seed in (1, 2)]
    assert len({batch.rows for batch in (drawn[0], *others)}) == 3, "runs of other seeds draw otherwise"


def test_a_lost_episode_is_not_trained_on_again(synthetic_group: Callable[..., GroupRecord]) -> None:
    settings = AlgorithmConfig(preset="webgym")
    old, new = (synthetic_group(f"i00000{number}-g0000", [1.0, 1.0]).episodes for number in range(2))
    lost = {old[0].episode_id: "its screenshot is gone"}
    batch = build_batch(2, [new], settings, lost, [old])
    assert [row.episode_id for row in batch.replayed] == [old[1].episode_id]
    assert batch.damaged_earlier == lost and batch.left_out == {}


def test_only_successes_are_replayed() -> None:
    with pytest.raises(ValidationError, match="replay_iterations: only successes are trained on again"):
        AlgorithmConfig(replay_iterations=2)
