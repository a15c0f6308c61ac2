"""Calls meet the steps of their episode, or the join says why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.types import Click, RewardBundle, StopReason, TrainingError, Trajectory
from training.config import AlgorithmConfig
from training.ledger.evidence import blobs_of
from training.ledger.store import write_json
from training.proxy.join import CallUse, join, main
from training.proxy.prefixes import prefix_report
from training.proxy.records import CallStore, RecordedCall
from training.records.batches import build_batch
from training.records.groups import EpisodeSummary
from training.trainer.rows import read_rows

from ...builders import make_observation, make_step, make_trajectory
from .conftest import MakeCall


def episode(*responses: str, score: float | None = 1.0, **fields: Any) -> Trajectory:
    """An episode of `WebEnv`, whose steps hold the texts that it was given."""
    steps = tuple(
        make_step(index, response=response, action=Click(element=1), screenshot="", prompt_ids=(), response_ids=())
        for index, response in enumerate(responses)
    )
    reward = RewardBundle(score=score, passed=score == 1.0, abstained=None if score is not None else "it failed")
    return make_trajectory(steps=steps, reward=reward, stop_reason=StopReason.DONE, **fields)


def decided(calls: list[RecordedCall], trajectory: Trajectory, **options: Any) -> list[tuple[int, ...]]:
    """Prompt ids of the joined steps, each naming its call."""
    joined = join(calls, trajectory, **options)
    assert joined.trajectory.reward == trajectory.reward
    assert [step.index for step in joined.trajectory.steps] == [*range(len(joined.trajectory.steps))]
    return [step.prompt_ids for step in joined.trajectory.steps]


def test_calls_and_steps_of_equal_number_are_matched_in_order(make_call: MakeCall) -> None:
    calls = [make_call(0, text="click [1]"), make_call(1, text="I do: click [2]")]
    assert decided(calls, episode("", "")) == [(0,), (1,)]
    assert decided(calls, episode("click [1]", "click [2]")) == [(0,), (1,)]
    (first, _) = join(calls, episode("", "")).trajectory.steps
    assert (first.response, first.response_ids, first.logprobs, first.policy_version) == ("click [1]", (9,), (-0.5,), 3)
    with pytest.raises(TrainingError, match=r"session s: step 1 was 'click \[7\]', and call 1 said 'I do"):
        join(calls, episode("click [1]", "click [7]"))


def test_two_steps_with_one_prompt_are_no_retry(make_call: MakeCall) -> None:
    """A page that an action left as it was, shown to an agent without history."""
    calls = [make_call(0, (5,)), make_call(1, (5,))]
    assert join(calls, episode("", "")).uses == {0: CallUse.ACTION, 1: CallUse.ACTION}


def test_a_call_that_is_repeated_is_left_out(make_call: MakeCall) -> None:
    calls = [make_call(0, (5,)), make_call(1, (5,)), make_call(2, (6,))]
    joined = join(calls, episode("", ""))
    assert joined.uses == {0: CallUse.RETRY, 1: CallUse.ACTION, 2: CallUse.ACTION}
    assert [step.prompt_ids for step in joined.trajectory.steps] == [(5,), (6,)]
    other_picture = [make_call(0, (5,), images=("a",)), make_call(1, (5,), images=("b",)), make_call(2, (6,))]
    with pytest.raises(TrainingError, match=r"3 calls \(3 without retries\) and 2 steps, and the steps have no text"):
        join(other_picture, episode("", ""))


def test_counts_that_differ_are_refused_with_the_way_out(make_call: MakeCall) -> None:
    calls = [make_call(index) for index in range(3)]
    for texts in ([""] * 2, [""] * 4):
        with pytest.raises(
            TrainingError, match=r"session s: 3 calls .* steps, and the steps have no text.*rollwright-step"
        ):
            join(calls, episode(*texts))
    with pytest.raises(TrainingError, match=r"no call after that of the step before said 'click \[3\]' of step 1"):
        join(calls, episode("click [1]", "click [3]"))
    with pytest.raises(TrainingError, match="no call: is its name right"):
        join([], episode("a"))


def test_calls_without_an_action_follow_the_rule(make_call: MakeCall) -> None:
    """A planner before each action, whose calls the texts tell from the actions'."""
    texts = ["Plan: buy", "click [1]", "Plan: pay", "click [2]", "Done."]
    calls = [make_call(index, text=text) for index, text in enumerate(texts)]
    trajectory = episode("click [1]", "click [2]")
    with pytest.raises(
        TrainingError, match=r"5 calls and 2 steps; the calls 0, 2, 4 decided no step.*extra=drop.*extra=keep"
    ):
        join(calls, trajectory)
    assert decided(calls, trajectory, extra="drop") == [(1,), (3,)]
    assert decided(calls, trajectory, extra="keep") == [(index,) for index in range(5)]
    steps = join(calls, trajectory, extra="keep").trajectory.steps
    assert [step.action.type for step in steps] == ["invalid", "click", "invalid", "click", "invalid"]
    assert [step.form for step in steps] == ["extra", "", "extra", "", "extra"]


def test_an_agent_on_the_page_itself_leaves_calls_alone(make_call: MakeCall) -> None:
    """Over a DevTools address: no steps, or the one that closed the lease."""
    calls = [make_call(0, (5,)), make_call(1, (5,)), make_call(2, (6,))]
    seen = episode().model_copy(update={"final": make_observation("the end")})
    for trajectory in (seen, episode("")):
        with pytest.raises(TrainingError, match=r"extra=all|x-rollwright-step"):
            join(calls, trajectory)
        joined = join(calls, trajectory, extra="all")
        assert joined.uses == {0: CallUse.RETRY, 1: CallUse.EXTRA, 2: CallUse.EXTRA}
        assert decided(calls, trajectory, extra="all") == [(5,), (6,)]
    assert {step.observation.text for step in join(calls, seen, extra="all").trajectory.steps} == {"the end"}


def test_an_argument_of_a_tool_is_matched_as_it_was_given(make_call: MakeCall) -> None:
    call = make_call(0, text=r'<tool_call>{"action": "type [1] \"A\""}</tool_call>')
    arguments = {"name": "act", "arguments": json.dumps({"action": 'type [1] "A"'})}
    calls = [call.model_copy(update={"tool_calls": ({"id": "1", "type": "function", "function": arguments},)})]
    assert decided(calls, episode('type [1] "A"')) == [(0,)]
    with pytest.raises(TrainingError, match="step 0 was"):
        join(calls, episode('type [1] "B"'))


def test_calls_that_name_their_step_are_matched_by_it(make_call: MakeCall) -> None:
    calls = [make_call(0, step=0), make_call(1, step=0), make_call(2), make_call(3, step=1)]
    assert decided(calls, episode("", ""), extra="drop") == [(1,), (3,)]
    with pytest.raises(TrainingError, match="has 3 steps, and the calls name the steps 0, 1: each step needs"):
        join(calls, episode("", "", ""), extra="drop")
    backwards = [make_call(0, step=1), make_call(1, step=0)]
    with pytest.raises(TrainingError, match="not in the calls' order"):
        join(backwards, episode("", ""))


def test_a_failure_leaves_out_the_call_that_it_cut_off(make_call: MakeCall) -> None:
    failed = episode("", score=None, error="Chromium died")
    for calls in ([make_call(0), make_call(1)], [make_call(0, step=0), make_call(1, step=1)]):
        joined = join(calls, failed)
        assert joined.uses == {0: CallUse.ACTION, 1: CallUse.CUT_OFF}
        assert joined.trajectory.reward.score is None and len(joined.trajectory.steps) == 1


def test_calls_that_the_trainer_cannot_take_are_refused(make_call: MakeCall) -> None:
    with pytest.raises(TrainingError, match=r"temperatures \[0.5, 1.0\], and the trainer takes one"):
        join([make_call(0), make_call(1, temperature=0.5)], episode("", ""))
    with pytest.raises(TrainingError, match=r"the calls 1 were greedy"):
        join([make_call(0), make_call(1, greedy=True)], episode("", ""))


def test_pictures_keep_their_order_and_a_prompt_may_have_none(make_call: MakeCall) -> None:
    def shown(*names: str) -> dict[str, Any]:
        return {
            "role": "user",
            "content": [*({"type": "image", "sha256": name} for name in names), {"type": "text", "text": "x"}],
        }

    answer = {"role": "assistant", "content": "ok"}
    histories: list[tuple[dict[str, Any], ...]] = [
        (shown("a"), answer, shown("b")),
        (shown("a", "b"),),
        (shown("a", "b"), answer, shown()),
        (shown("a"), answer, shown("b", "c")),
        (shown(), answer, shown()),
    ]
    for messages in histories:
        names = tuple(
            part["sha256"] for m in messages for part in m["content"] if isinstance(part, dict) and "sha256" in part
        )
        (step,) = join([make_call(0, messages=messages, images=names)], episode("")).trajectory.steps
        assert step.pictures == names and step.prompt == "x"
        assert blobs_of(episode("").model_copy(update={"steps": (step,)})) == [*names]


def test_the_command_stores_what_the_trainer_reads(
    make_call: MakeCall, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = CallStore(tmp_path)
    for sample, score in enumerate((1.0, 0.0)):
        name = f"i000001-g0000-s{sample:02d}-a0"
        store.write(make_call(0, (1, 2), (3,), session=name))
        store.write(make_call(1, (1, 2, 3, 4), (5,), session=name))
        write_json(tmp_path / "episode.json", episode("click [1]", "click [1]", score=score))
        assert main([str(tmp_path), name, str(tmp_path / "episode.json"), "--sample", str(sample)]) == 0
    printed = capsys.readouterr().out
    assert "2 steps of 2 calls (2 action, 0 extra, 0 retry, 0 cut_off); temperature 1" in printed
    assert "growing sequences: 0, 1. Alone: none" in printed
    group = [EpisodeSummary.of(store.run.trajectory(f"i000001-g0000-s{sample:02d}-a0")) for sample in (0, 1)]
    rows = read_rows(store.run, build_batch(1, [group], AlgorithmConfig()))
    assert [([*row.prompt_ids], [*row.response_ids]) for row in rows] == [([1, 2], [3]), ([1, 2, 3, 4], [5])] * 2
    assert rows[0].advantage == rows[1].advantage > 0 > rows[2].advantage
    assert main([str(tmp_path), "nobody", str(tmp_path / "episode.json")]) == 2
    assert main([str(tmp_path), name, str(tmp_path / "missing.json")]) == 2
    assert "error: the session has no call" in (err := capsys.readouterr().err) and "does not exist" in err


def test_sequences_end_where_a_prompt_does_not_go_on(make_call: MakeCall) -> None:
    calls = [
        make_call(0, (1, 2), (3,)),
        make_call(1, (1, 2, 3, 4), (5, 6)),
        make_call(2, (1, 2, 3, 4, 5, 7), (8,)),  # the last token of the response became another
        make_call(3, (1, 9), (8,)),  # the history was rewritten
    ]
    report = prefix_report(calls)
    assert report.sequences == ((0, 1), (2,), (3,))
    assert (report.growing, report.alone) == (((0, 1),), (2, 3))
    assert [(found.call, found.kind, found.position) for found in report.breaks] == [
        (2, "response", 5),
        (3, "prompt", 1),
    ]


def test_a_stripped_thought_and_a_dropped_picture_are_named(make_call: MakeCall) -> None:
    calls = [
        make_call(0, (1,), (7, 8, 3), text="<think>so</think>click [1]", images=("a",)),
        make_call(1, (1, 3, 4), (5,), images=("a",)),
        make_call(2, (1, 3, 4, 5, 6), (5,), images=("b",)),
    ]
    assert [(found.call, found.kind) for found in prefix_report(calls).breaks] == [(1, "thought"), (2, "images")]


def test_conversations_in_turns_are_sequences_of_their_own(make_call: MakeCall) -> None:
    calls = [make_call(0, (1,), (2,)), make_call(1, (8,), (9,)), make_call(2, (1, 2, 3), (4,)), make_call(3, (8, 9, 3))]
    assert prefix_report(calls).sequences == ((0, 2), (1, 3))
