"""Sets of tasks: distinct, deterministic, split by world, and what a spec may not ask for."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.bundled.generate import TEMPLATES, WORLDS, GeneratorSpec, World, generate, generate_world, solution_of, worlds
from envs.bundled.generate.generate import draft_of
from envs.ends import Bucket, bucket_of
from envs.tasks import save_tasks
from envs.tasks.files import load_tasks
from envs.tasks.rows import CHECKS
from envs.types import Split, TaskError, WebTask, rubric_hash

COUNT = 3_000


@pytest.fixture(scope="module")
def tasks() -> list[WebTask]:
    return list(generate(GeneratorSpec(count=COUNT)))


def goal(task: WebTask) -> tuple[str, str, str]:
    return task.site, task.instruction or "", task.rubric_hash


def test_as_many_as_asked_for_and_no_two_alike(tasks: list[WebTask]) -> None:
    assert len(tasks) == COUNT
    assert len({task.task_id for task in tasks}) == COUNT
    assert len({goal(task) for task in tasks}) == COUNT


def test_every_template_and_bucket_is_there(tasks: list[WebTask]) -> None:
    assert {task.kind for task in tasks} == set(TEMPLATES)
    assert {task.site for task in tasks} == {template.site for template in TEMPLATES.values()}
    for site in {task.site for task in tasks}:
        assert {bucket_of(task.difficulty) for task in tasks if task.site == site} == set(Bucket)


def test_rows_are_valid_and_frozen(tasks: list[WebTask]) -> None:
    for task in tasks:
        assert [*(problem for check in CHECKS for problem in check(task))] == []
        assert task.rubric is not None and task.rubric_hash == rubric_hash(task.rubric)
        assert task.difficulty == task.rubric.fact_count
        assert task.rubric.gates, "what else was changed is graded too"
        assert task.horizon >= len(solution_of(task)) + 4


def test_the_difficulty_of_a_template_is_that_of_its_tasks(tasks: list[WebTask]) -> None:
    found = defaultdict(set)
    for task in tasks:
        found[task.kind].add(bucket_of(task.difficulty))
    assert found == {kind: {bucket_of(template.difficulty)} for kind, template in TEMPLATES.items()}


def test_a_world_belongs_to_one_split(tasks: list[WebTask]) -> None:
    seen = defaultdict(set)
    for task in tasks:
        ((split, seeds),) = task.seeds.items()
        assert len(seeds) == 1
        assert WORLDS[split].start <= seeds.start < WORLDS[split].stop
        assert task.task_id.split("/")[1] == str(seeds.start)
        seen[seeds.start].add(split)
    assert all(len(splits) == 1 for splits in seen.values())
    assert {split for splits in seen.values() for split in splits} == {Split.TRAIN, Split.HELD_OUT}


def test_a_set_of_some_thousands_has_every_split() -> None:
    drawn = islice(worlds(GeneratorSpec()), 60)  # about 5,000 tasks
    assert {world.split for world in drawn} == {Split.TRAIN, Split.HELD_OUT, Split.VALIDATION}


def test_the_same_spec_gives_the_same_tasks_on_any_number_of_processes(tasks: list[WebTask]) -> None:
    assert list(generate(GeneratorSpec(count=COUNT), processes=2)) == tasks
    assert list(generate(GeneratorSpec(count=100))) == tasks[:100], "a smaller set is the beginning of a larger one"


def test_another_seed_gives_other_worlds() -> None:
    one = {task.task_id for task in generate(GeneratorSpec(count=300, seed=1))}
    other = {task.task_id for task in generate(GeneratorSpec(count=300, seed=2))}
    assert not one & other


def test_rows_survive_a_file(tasks: list[WebTask], tmp_path) -> None:
    path = tmp_path / "generated.jsonl"
    save_tasks(path, tasks[:200])
    assert load_tasks(path) == tasks[:200]


def test_the_choice_is_kept() -> None:
    spec = GeneratorSpec(count=200, sites=("shop",), buckets=(Bucket.MANY,), splits={Split.DEMO: 1})
    chosen = list(generate(spec))
    assert {task.site for task in chosen} == {"shop"}
    assert all(task.difficulty >= 7 for task in chosen)
    assert {*(split for task in chosen for split in task.seeds)} == {Split.DEMO}
    assert {task.kind for task in generate(GeneratorSpec(count=20, kinds=("shop-open",)))} == {"shop-open"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sites": ("nowhere",)}, "sites: there is no 'nowhere'; there are .*shop"),
        ({"kinds": ("shop-fly",)}, "kinds: there is no 'shop-fly'"),
        ({"sites": ("shp", "shop")}, "sites: there is no 'shp'; did you mean shop\\? there are "),
        (
            {"kinds": ("shop-opne", "tracker_ask", "Tracker-Ask", "shop-open")},
            "kinds: there is no 'shop-opne'; did you mean shop-open.*\\? there is no 'tracker_ask'; did you mean tracker-ask.*\\? "
            "there is no 'Tracker-Ask'; did you mean tracker-ask.*\\? there are shop-open",
        ),
        ({"kinds": ("shop-open",), "buckets": (Bucket.MANY,)}, "no template"),
        ({"splits": {Split.TRAIN: 0.0}}, "no split has a share above 0"),
        ({"splits": {}}, "no split has a share above 0"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        list(generate(GeneratorSpec(count=10, **changes)))


def test_a_set_that_cannot_be_that_large_says_how_large_it_is() -> None:
    # The search is for one word out of the names of things, of which there are not so many.
    spec = GeneratorSpec(count=5_000, kinds=("shop-search",))
    with pytest.raises(TaskError, match=r"there are \d+ different tasks .* 5000 are wanted"):
        list(generate(spec))


def test_worlds_are_shared_out_as_asked() -> None:
    spec = GeneratorSpec(sites=("shop",), splits={Split.TRAIN: 3, Split.HELD_OUT: 1})
    drawn = list(islice(worlds(spec), 400))
    counts = {split: sum(world.split is split for world in drawn) for split in Split}
    assert counts == {Split.TRAIN: 300, Split.HELD_OUT: 100, Split.VALIDATION: 0, Split.DEMO: 0}
    assert len({world.seed for world in drawn}) == 400


def test_a_world_of_a_set_can_be_made_alone(tasks: list[WebTask]) -> None:
    spec = GeneratorSpec(count=COUNT)
    first = next(worlds(spec))
    alone = generate_world(spec, first)
    assert set(
        task.task_id for task in tasks if task.task_id.split("/")[1] == str(first.seed) and task.site == first.site
    ) <= {task.task_id for task in alone}


@settings(max_examples=60, deadline=None)
@given(kind=st.sampled_from(sorted(TEMPLATES)), seed=st.integers(0, 2**31), number=st.integers(0, 1000))
def test_a_draft_depends_on_its_id_alone(kind: str, seed: int, number: int) -> None:
    draft = draft_of(kind, seed, number)
    assert draft == draft_of(kind, seed, number)
    if draft is not None:
        assert len(set(draft.wordings)) == len(draft.wordings) >= 2
        assert draft.plan


def test_a_task_that_is_none_of_ours_has_no_solution(tasks: list[WebTask]) -> None:
    with pytest.raises(TaskError, match="no id of a generated task"):
        solution_of(tasks[0].model_copy(update={"task_id": "miniwob/click-test"}))
    with pytest.raises(TaskError, match="another version of its template"):
        solution_of(tasks[0].model_copy(update={"rubric_hash": "0" * 64}))


def test_one_world_gives_several_sites_nothing_of_each_other() -> None:
    spec = GeneratorSpec()
    for site in {template.site for template in TEMPLATES.values()}:
        assert {task.site for task in generate_world(spec, World(site, 5, Split.HELD_OUT))} == {site}
