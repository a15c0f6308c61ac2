from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from training.trainer.plan import plan_minibatches

shapes = st.tuples(
    st.lists(st.integers(1, 300), max_size=80),
    st.integers(1, 40),
    st.integers(1, 16),
    st.integers(1, 4),
    st.integers(0, 9),
)


@given(shapes)
def test_every_row_counts_once_and_processes_have_equal_work(shape: tuple[list[int], int, int, int, int]) -> None:
    lengths, minibatch_rows, micro_rows, processes, seed = shape
    plan = plan_minibatches(lengths, minibatch_rows, micro_rows, processes, seed, 1)
    counted = sorted(slot.row for minibatch in plan for micro in minibatch for slot in micro if slot.counts)
    assert counted == list(range(len(lengths)))
    for minibatch in plan:
        assert len(minibatch) % processes == 0
        assert all(1 <= len(micro) <= micro_rows for micro in minibatch)
    sizes = [sum(slot.counts for micro in minibatch for slot in micro) for minibatch in plan]
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_rows_of_similar_length_share_a_micro_batch() -> None:
    lengths = [10, 200] * 8
    (minibatch,) = plan_minibatches(lengths, 16, 8, 1, 0, 1)
    assert [{lengths[slot.row] for slot in micro} for micro in minibatch] == [{10}, {200}]


def test_the_shuffle_is_a_function_of_seed_and_version() -> None:
    def plan(seed: int, version: int) -> object:
        return plan_minibatches([1] * 50, 10, 5, 1, seed, version)

    assert plan(0, 1) == plan(0, 1)
    assert plan(0, 1) != plan(0, 2) != plan(1, 2)


@given(shapes, st.integers(1, 900))
def test_micro_batches_keep_to_their_budget_of_tokens(shape: tuple[list[int], int, int, int, int], budget: int) -> None:
    lengths, minibatch_rows, micro_rows, processes, seed = shape
    plan = plan_minibatches(lengths, minibatch_rows, micro_rows, processes, seed, 1, budget)
    counted = sorted(slot.row for minibatch in plan for micro in minibatch for slot in micro if slot.counts)
    assert counted == list(range(len(lengths)))
    for minibatch in plan:
        assert len(minibatch) % processes == 0
        for micro in minibatch:
            tokens = sum(lengths[slot.row] for slot in micro)
            assert len(micro) <= micro_rows and (tokens <= budget or len(micro) == 1)


def test_processes_get_about_the_same_tokens_at_the_same_time() -> None:
    lengths = [30 + 7 * number % 500 for number in range(400)]
    (minibatch,) = plan_minibatches(lengths, 400, 64, 4, 0, 1, 4096)
    tokens = [sum(lengths[slot.row] for slot in micro) for micro in minibatch]
    for start in range(0, len(minibatch) - 4, 4):
        assert min(tokens[start : start + 4]) >= 0.75 * max(tokens[start : start + 4])


@given(shapes, st.integers(1, 5), st.integers(0, 900))
def test_rows_of_one_sequence_stay_together_and_count_once(
    shape: tuple[list[int], int, int, int, int], steps: int, budget: int
) -> None:
    added, minibatch_rows, micro_rows, processes, seed = shape
    names = [row // steps for row in range(len(added))]
    lengths = [sum(added[row // steps * steps : row + 1]) for row in range(len(added))]
    plan = plan_minibatches(lengths, minibatch_rows, micro_rows, processes, seed, 1, budget, names)
    slots = [[slot for slot in micro if slot.counts] for minibatch in plan for micro in minibatch]
    assert sorted(slot.row for micro in slots for slot in micro) == list(range(len(lengths)))
    places = [{names[slot.row] for slot in micro} for micro in slots]
    assert sum(map(len, places)) == len({*names}), "a sequence is in two micro-batches"
    for micro, held in zip(slots, places, strict=True):
        tokens = sum(max(lengths[slot.row] for slot in micro if names[slot.row] == name) for name in held)
        assert len(held) <= micro_rows and (not budget or tokens <= budget or len(held) == 1)
    assert all(minibatch and len(minibatch) % processes == 0 for minibatch in plan)
    if steps == 1:
        assert plan == plan_minibatches(lengths, minibatch_rows, micro_rows, processes, seed, 1, budget)
