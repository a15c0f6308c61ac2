"""``--check``: tasks that cannot be solved are found among good ones; what cannot be known is called neither good nor bad."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from envs.sites.miniwob import import_tasks
from envs.tasks import TaskIndex, save_tasks
from envs.tasks.decompose import DecompositionRules, decompose
from envs.tasks.generate import GeneratorSpec, generate, solution_of
from envs.types import JudgeFact, Rubric, SeedRange, Split, WebTask, rubric_hash
from envs.types.rubrics import AnswerFact, ElementFact, ElementQuery
from tasks_lib.task_check import SetCheck, check_command, check_set, file_to_check

GENERATED = list(generate(GeneratorSpec(count=60, per_world=1, splits={Split.TRAIN: 1, Split.HELD_OUT: 1})))


def rubric_of(task: WebTask) -> Rubric:
    assert task.rubric is not None
    return task.rubric


ASKED = next(task for task in GENERATED if isinstance(next(iter(rubric_of(task).facts())), AnswerFact))
LONG = next(task for task in GENERATED if len(solution_of(task)) > 2)


GOOD = [task for task in GENERATED if task not in (ASKED, LONG)][:3]


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


WRONG_VALUE = with_facts(
    ASKED, first_fact(ASKED).model_copy(update={"expected": ("nothing of the kind",), "match": "exact"})
)


def checked(*tasks: WebTask, root: Path = Path()) -> SetCheck:
    return asyncio.run(check_set(TaskIndex.build(tasks), root))


@pytest.mark.parametrize(
    ("bad", "what"),
    [
        (WRONG_VALUE, "its solution does not pass: .*answered "),
        (WRONG_VALUE.model_copy(update={"rubric_hash": ""}), "its solution does not pass"),
        (ASKED.model_copy(update={"rubric": WRONG_VALUE.rubric}), "was changed after it was frozen"),
        (LONG.model_copy(update={"horizon": 1}), f"horizon 1 is less than the {len(solution_of(LONG))} steps of its solution"),
        (ASKED.model_copy(update={"path": "/no/such/page"}), "its start page /no/such/page answers 404; correct path"),
        (ASKED.model_copy(update={"task_id": "own/1", "path": "/nowhere"}), "its start page /nowhere answers 404"),
        (ASKED.model_copy(update={"difficulty": 7}), "difficulty is 7, and the rubric has "),
        (ASKED.model_copy(update={"rubric": None, "rubric_hash": ""}), "it has no rubric and no evaluators"),
        (ASKED.model_copy(update={"site": "a.example", "rubric": None, "rubric_hash": ""}), "it has no rubric"),
        (ASKED.model_copy(update={"seeds": {}}), "seeds: it has none"),
        (ASKED.model_copy(update={"files": "not_there"}), "there are no files in"),
        (LONG.model_copy(update={"seeds": {Split.TRAIN: SeedRange(start=77, stop=78)}}), "split train, seed 77"),
    ],
)  # fmt: skip
def test_an_impossible_task_is_found_among_good_ones(bad: WebTask, what: str) -> None:
    found = checked(*GOOD, bad)
    (fault,) = found.faults
    assert fault.task_id == bad.task_id
    assert re.search(what, str(fault)), str(fault)
    assert found.solved == len(GOOD) and not found.unknown and found.tasks == len(GOOD) + 1


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (ASKED.model_copy(update={"site": "a.example"}), "live site"),
        (ASKED.model_copy(update={"task_id": "own/1"}), "no known solution"),
        (WRONG_VALUE.model_copy(update={"instruction": "Say: nothing of the kind"}), "no known solution"),
        (
            with_facts(ASKED, first_fact(ASKED), JudgeFact(id="judged", description="It is polite.")),
            "facts for a judge",
        ),
    ],
)
def test_what_cannot_be_known_is_counted_with_its_reason(task: WebTask, reason: str) -> None:
    found = checked(task)
    assert found.faults == [] and found.solved == 0 and dict(found.unknown) == {reason: 1}


def test_parts_are_solved_by_the_solution_of_the_whole() -> None:
    rules = DecompositionRules()
    parts = [part for task in GENERATED for part in decompose(task, rules, 0).tasks][:8]
    assert parts
    found = checked(*parts)
    assert found.faults == [] and found.solved + found.unknown["no known solution"] == len(parts) and found.solved


def test_each_task_is_counted_once_and_large_sets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks_lib.task_check.ALL", 10)
    monkeypatch.setattr("tasks_lib.task_check.SAMPLE", 4)
    tasks = [task.model_copy(update={"difficulty": 9}) if n == 5 else task for n, task in enumerate(GENERATED[:20])]
    found = checked(*tasks)
    assert len(found.faults) == 1, "contradictions are looked for in every task"
    assert found.solved + len(found.faults) + found.unplayed == 20 and found.solved in (3, 4)
    assert f"{found.unplayed} were not played" in list(found.lines("x"))[-1]


def test_in_a_browser_good_and_impossible_tasks_are_told_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MiniWoB++'s pages by their oracles, and facts of a bundled application that only a browser shows; through the command."""
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
