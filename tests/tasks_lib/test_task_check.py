"""``--check``: tasks that cannot be solved are found among good ones; what cannot be known is
called neither good nor bad."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from envs.bundled.generate import GeneratorSpec, generate, solution_of
from envs.sites.miniwob import import_tasks
from envs.tasks import TaskIndex, save_tasks
from envs.tasks.decompose import DecompositionRules, decompose
from envs.types import JudgeFact, Rubric, SeedRange, Split, WebTask, rubric_hash
from envs.types.rubrics import AnswerFact, ElementFact, ElementQuery
from tasks_lib.commands.task_check import Fault, SetCheck, check_command, check_set, file_to_check

GENERATED = list(generate(GeneratorSpec(count=60, per_world=1, splits={Split.TRAIN: 1, Split.HELD_OUT: 1})))


def rubric_of(task: WebTask) -> Rubric:
    assert task.rubric is not None
    return task.rubric


ANSWERED = [task for task in GENERATED if isinstance(next(iter(rubric_of(task).facts())), AnswerFact)]
ASKED = ANSWERED[0]
LONG = [task for task in GENERATED if task not in ANSWERED and len(solution_of(task)) > 2]
GOOD = [task for task in GENERATED if task not in (*ANSWERED, *LONG)][:3]


def with_facts(task: WebTask, *facts: Any) -> WebTask:
    """The task with a first group of these facts, frozen anew."""
    rubric = rubric_of(task)
    group = rubric.fact_groups[0].model_copy(update={"facts": facts})
    changed = rubric.model_copy(update={"fact_groups": (group, *rubric.fact_groups[1:])})
    return task.model_copy(
        update={"rubric": changed, "rubric_hash": rubric_hash(changed), "difficulty": changed.fact_count}
    )


def first_fact(task: WebTask) -> Any:
    return rubric_of(task).fact_groups[0].facts[0]


def wrong(task: WebTask) -> WebTask:
    """The task with an answer that its solution does not give, frozen anew."""
    return with_facts(
        task, first_fact(task).model_copy(update={"expected": ("nothing of the kind",), "match": "exact"})
    )


async def checked(*tasks: WebTask, root: Path = Path()) -> SetCheck:
    return await check_set(TaskIndex.build(tasks), root)


async def test_impossible_tasks_are_found_among_good_ones() -> None:
    asked, long = iter(ANSWERED), iter(LONG)
    horizon, world = next(long), next(long)
    other = {"rubric": wrong(ASKED).rubric}
    cases = [
        (wrong(next(asked)), "its solution does not pass: .*answered "),
        (wrong(next(asked)).model_copy(update={"rubric_hash": ""}), "its solution does not pass"),
        (next(asked).model_copy(update=other), "was changed after it was frozen"),
        (horizon.model_copy(update={"horizon": 1}), f"horizon 1 is less than the {len(solution_of(horizon))} steps of its solution"),
        (next(asked).model_copy(update={"path": "/no/such/page"}), "its start page /no/such/page answers 404; correct its path"),
        (next(asked).model_copy(update={"task_id": "own/1", "path": "/nowhere"}), "its start page /nowhere answers 404"),
        (next(asked).model_copy(update={"difficulty": 7}), "difficulty is 7, and the rubric has "),
        (next(asked).model_copy(update={"rubric": None, "rubric_hash": ""}), "it has no rubric and no evaluators"),
        (next(asked).model_copy(update={"site": "a.example", "rubric": None, "rubric_hash": ""}), "it has no rubric"),
        (next(asked).model_copy(update={"seeds": {}}), "seeds: it has none"),
        (next(asked).model_copy(update={"files": "not_there"}), "there are no files in"),
        (world.model_copy(update={"seeds": {Split.TRAIN: SeedRange(start=77, stop=78)}}), "split train, seed 77"),
    ]  # fmt: skip
    bad = {task.task_id: what for task, what in cases}
    assert len(bad) == len(cases)
    found = await checked(*GOOD, *(task for task, _ in cases))
    assert {fault.task_id for fault in found.faults} == set(bad) and len(found.faults) == len(bad)
    for fault in found.faults:
        assert re.search(bad[fault.task_id], str(fault)), str(fault)
    assert found.solved == len(GOOD) and not found.unknown and found.tasks == len(GOOD) + len(cases)


async def test_what_cannot_be_known_is_counted_with_its_reason() -> None:
    site, own, reworded, judged = ANSWERED[:4]
    judge = JudgeFact(id="judged", description="It is polite.")
    found = await checked(
        site.model_copy(update={"site": "a.example"}),
        own.model_copy(update={"task_id": "own/1"}),
        wrong(reworded).model_copy(update={"instruction": "Say: nothing of the kind"}),
        with_facts(judged, first_fact(judged), judge),
    )
    assert found.faults == [] and found.solved == 0
    assert dict(found.unknown) == {"live or own site": 1, "no known solution": 2, "facts for a judge": 1}


SOLVED, FAILED, BROKEN, JUDGED = "solved", "failed", "the browser failed", "facts for a judge"


@pytest.mark.parametrize(
    ("train", "held_out", "outcome"),
    [
        ([SOLVED, SOLVED], [SOLVED, SOLVED], SOLVED),
        ([FAILED, FAILED], [SOLVED, SOLVED], "train"),
        ([SOLVED, SOLVED], [FAILED, FAILED], "held_out"),
        ([FAILED, FAILED], [FAILED, FAILED], "train"),
        ([SOLVED, FAILED], [FAILED], "held_out"),
        ([FAILED], [SOLVED, SOLVED], "train"),
        ([FAILED, SOLVED], [SOLVED, SOLVED], "oracle fails on some seeds"),
        ([FAILED, SOLVED], [SOLVED, FAILED], "oracle fails on some seeds"),
        ([SOLVED, SOLVED], [BROKEN, SOLVED], BROKEN),
        ([FAILED, BROKEN], [SOLVED, SOLVED], "train"),  # of the seeds that were played none is solved
        ([FAILED, SOLVED], [BROKEN, BROKEN], "oracle fails on some seeds"),
        ([FAILED, JUDGED], [SOLVED, SOLVED], "oracle fails on some seeds"),  # the other one may be solved
    ],
)
async def test_a_task_is_faulty_only_if_no_played_seed_of_a_split_is_solved(
    monkeypatch: pytest.MonkeyPatch, train: list[str], held_out: list[str], outcome: str
) -> None:
    """Beside a task that is solved and one that is not, and with the episodes played by a
    stand-in."""
    click = next(task for task in import_tasks() if task.kind == "click-button")
    played = {Split.TRAIN: train, Split.HELD_OUT: held_out}
    ends = {
        (name, split, seed): end
        for name, results in {"this": played, "good": {Split.TRAIN: [SOLVED]}, "bad": {Split.TRAIN: [FAILED]}}.items()
        for split, of_seeds in results.items()
        for seed, end in enumerate(of_seeds)
    }

    async def play(plays: Sequence[Any]) -> list[Any]:
        asked = [ends[each.task.task_id, each.split, each.seed] for each in plays]
        assert len(asked) == len(ends)
        return [
            None if end == SOLVED else Fault(each.task.task_id, "lost", each.split, each.seed) if end == FAILED else end
            for each, end in zip(plays, asked, strict=True)
        ]

    monkeypatch.setattr("tasks_lib.commands.task_check._play_all", play)
    served_nowhere = SimpleNamespace(serves=lambda site: False)  # no task here is of a bundled application
    monkeypatch.setattr("tasks_lib.commands.task_check.checker", lambda: nullcontext(served_nowhere))
    tasks = []
    for name in ("this", "good", "bad"):
        counts = {split: sum(each[:2] == (name, split) for each in ends) for split in played}
        seeds = {split: SeedRange(start=0, stop=count) for split, count in counts.items() if count}
        tasks.append(click.model_copy(update={"task_id": name, "seeds": seeds}))
    found = await checked(*tasks)
    faults = {fault.task_id: (fault.split, fault.seed) for fault in found.faults}
    assert faults.pop("bad") == ("train", 0) and found.tasks == 3
    assert faults == ({"this": (outcome, 0)} if outcome in played else {})
    assert found.solved == 1 + (outcome == SOLVED)
    assert dict(found.unknown) == ({} if outcome in (*played, SOLVED) else {outcome: 1})


async def test_parts_are_solved_by_the_solution_of_the_whole() -> None:
    rules = DecompositionRules()
    parts = [part for task in GENERATED for part in decompose(task, rules, 0).tasks][:8]
    assert parts
    found = await checked(*parts)
    assert found.faults == [] and found.solved + found.unknown["no known solution"] == len(parts) and found.solved


async def test_each_task_is_counted_once_and_large_sets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.commands.task_check.ALL", 10)
    monkeypatch.setattr("tasks_lib.commands.task_check.SAMPLE", 4)
    tasks = [task.model_copy(update={"difficulty": 9}) if n == 5 else task for n, task in enumerate(GENERATED[:20])]
    found = await checked(*tasks)
    assert len(found.faults) == 1, "contradictions are looked for in every task"
    assert found.solved + len(found.faults) + found.unplayed == 20 and found.solved in (3, 4)
    assert f"{found.unplayed} were not played" in list(found.lines("x"))[-1]


def test_in_a_browser_good_and_impossible_tasks_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MiniWoB++'s pages by their oracles, and facts of a bundled application that only a browser
    shows; through the command."""
    pages = {task.kind: task for task in import_tasks()}
    few = {Split.TRAIN: SeedRange(start=200_000, stop=200_002), Split.HELD_OUT: SeedRange(start=3, stop=4)}
    click, login = (pages[kind].model_copy(update={"seeds": few}) for kind in ("click-button", "login-user"))
    no_oracle = next(task for task in import_tasks() if task.kind == "draw-line")
    body = ElementFact(id="seen", element=ElementQuery(text="Sign out of everything"), description="A control")
    tasks = [
        click,
        login.model_copy(update={"task_id": "short", "horizon": 2}),
        click.model_copy(update={"task_id": "gone", "path": "/miniwob/no-such-page.html"}),
        click.model_copy(update={"task_id": "other", "kind": "login-user"}),
        no_oracle.model_copy(update={"seeds": few}),
        with_facts(ASKED, first_fact(ASKED), body),
        *GOOD,
    ]  # fmt: skip
    path = tmp_path / "set" / "some.jsonl"
    path.parent.mkdir()
    save_tasks(path, tasks)
    assert check_command(str(path.parent)) == 1  # a folder
    *faults, summary = capsys.readouterr().out.splitlines()
    assert len(faults) == 4
    told = {line.removeprefix("faulty: ").split(" (split")[0]: line for line in faults}
    assert "(split train, seed 200000): not over after the 2 steps of its horizon" in told["short"]
    assert "its start page /miniwob/no-such-page.html answers 404" in told["gone"]
    assert "its solution does not pass" in told["other"]
    assert "no such element is listed" in told[ASKED.task_id]
    assert summary.endswith(
        ": 4 can be solved, 4 cannot or are faulty, 1 cannot be known (1 no scripted oracle for the kind)"
    )
    save_tasks(path, GOOD)
    assert check_command(str(tmp_path / "set" / "*.jsonl")) == 0  # a glob
    assert capsys.readouterr().out.endswith(": 3 can be solved, 0 cannot or are faulty, 0 cannot be known\n")


def test_files_that_cannot_be_read_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"task_id": "x"}\n')
    assert check_command(str(path)) == 2
    assert "bad.jsonl:1: site: " in capsys.readouterr().err
    assert check_command(str(tmp_path / "none.jsonl")) == 2


def test_check_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert file_to_check(["--check", "a.jsonl"]) == file_to_check(["--check=a.jsonl"]) == "a.jsonl"
    assert file_to_check(["--preset", "bundled-tasks", "--dry-run"]) is None
    with pytest.raises(SystemExit) as ended:
        file_to_check(["--check", "a.jsonl", "--set", "seed=1"])
    assert ended.value.code == 2 and "leave out --set seed=1" in capsys.readouterr().err
