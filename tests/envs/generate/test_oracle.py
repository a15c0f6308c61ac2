"""The oracle of generated tasks: it solves every template in the browser, through the loop, from
what a policy sees."""

from __future__ import annotations

import re

import pytest

from envs.bundled.generate import TEMPLATES, GeneratorSpec, World, generate, generate_world, solution_of
from envs.bundled.generate.moves import Fill, Follow, Plan, Push, Say
from envs.bundled.oracles import follow, is_generated, oracle_of
from envs.bundled.sites.directory import directory_world
from envs.bundled.sites.site import VIEWPORT
from envs.types import (
    Action,
    Answer,
    Check,
    Click,
    Element,
    Invalid,
    Observation,
    Scroll,
    Select,
    Split,
    StopReason,
    TaskError,
    Terminate,
    Trajectory,
    Type,
    WebTask,
)
from tests.envs.test_oracles import said_by

from .making import by_kind
from .playing import described, play_all

HEIGHT = VIEWPORT[1]
COUNTED = ("directory-count", "tracker-count")
"""Kinds whose answer is not written on a page: it is a number of lines."""


def first_of_each() -> list[WebTask]:
    return [tasks[0] for tasks in by_kind().values()]


def gone_wrong(plan: Plan) -> Plan:
    """Another answer, or without the last move."""
    last = plan[-1]
    if not isinstance(last, Say):
        return plan[:-1]
    number = re.fullmatch(r"\d+(\.\d+)?", last.text)
    return (*plan[:-1], Say(f"{float(last.text) + 1:g}" if number else f"{last.text} or so"))


def failed(tasks: list[WebTask], ended: list[Trajectory]) -> list[str]:
    return [
        described(task, each)
        for task, each in zip(tasks, ended, strict=True)
        if not (each.reward.score == 1.0 and each.reward.passed and each.error is None)
    ]


@pytest.fixture(scope="module")
async def shown(anyio_backend: str) -> list[tuple[WebTask, Trajectory]]:
    """A task of every template, played by its oracle."""
    tasks = first_of_each()
    assert {task.kind for task in tasks} == set(TEMPLATES)
    return list(zip(tasks, await play_all([(task, oracle_of(task)) for task in tasks]), strict=True))


def test_every_template_is_solved_in_the_browser(shown: list[tuple[WebTask, Trajectory]]) -> None:
    assert failed([task for task, _ in shown], [ended for _, ended in shown]) == []
    for task, ended in shown:
        asks = isinstance(solution_of(task)[-1], Say)
        assert ended.stop_reason is (StopReason.ANSWER if asks else StopReason.TERMINATED)
        assert all(step.error is None for step in ended.steps)
        assert Trajectory.model_validate_json(ended.model_dump_json()) == ended


def test_what_is_acted_on_is_in_the_prompt(shown: list[tuple[WebTask, Trajectory]]) -> None:
    for task, ended in shown:
        moves = [move for move in solution_of(task) if not isinstance(move, Say)]
        steps = [step for step in ended.steps if getattr(step.action, "element", None) is not None]
        assert len(steps) == len(moves)
        for step, move in zip(steps, moves, strict=True):
            number = step.action.element  # type: ignore[union-attr]
            assert re.search(rf'\[{number}\] (\w+ )?"{re.escape(move.label)}"', step.prompt), (step.prompt, move)
            assert step.observation.elements[number - 1].in_viewport


def test_what_is_answered_was_to_be_read(shown: list[tuple[WebTask, Trajectory]]) -> None:
    for task, ended in shown:
        if ended.answer and ended.stop_reason is StopReason.ANSWER and task.kind not in COUNTED:
            seen = "\n".join(step.prompt for step in ended.steps)
            number = re.fullmatch(r"\d+\.\d", ended.answer)
            assert (
                f"{float(ended.answer):.2f}" if number and "price" in (task.instruction or "") else ended.answer
            ) in seen


@pytest.mark.long
async def test_a_wrong_answer_or_a_step_less_is_not_rewarded_in_full() -> None:
    tasks = first_of_each()
    for task, ended in zip(
        tasks, await play_all([(task, follow(gone_wrong(solution_of(task)))) for task in tasks]), strict=True
    ):
        assert ended.error is None and ended.reward.score is not None, described(task, ended)
        assert ended.reward.score < 1.0 and not ended.reward.passed, described(task, ended)


def in_turn(action: Action, seen: Observation) -> Action:
    """Elements of even numbers by their mark, the others by coordinates."""
    number = getattr(action, "element", None) or 0
    return said_by("coordinates" if number % 2 else "mark", action, seen)


@pytest.mark.long
async def test_they_are_solved_by_marks_and_coordinates() -> None:
    tasks = [tasks[1] for tasks in by_kind().values()]
    ended = await play_all([(task, oracle_of(task)) for task in tasks], in_turn)
    assert failed(tasks, ended) == []
    named = [step.action for each in ended for step in each.steps if not isinstance(step.action, Answer | Terminate)]
    assert all(getattr(action, "element", None) is None for action in named)
    for kind in (Click, Type, Select, Check):
        ways = {action.mark is None for action in named if isinstance(action, kind)}
        assert ways == {True, False}, f"{kind.__name__} was said in one way only"


async def test_pages_longer_than_the_window_are_scrolled() -> None:
    """The office where 20 people of this world work: its list is read to the end, and its last line
    is clicked."""
    spec = GeneratorSpec(kinds=("directory-count", "directory-open"), per_world=400)
    made = generate_world(spec, World("directory", 100_245, Split.DEMO))
    office = "Island Pier"
    names = sorted(person.name for person in directory_world(100_245).people if person.office == office)
    assert len(names) == 20
    count = next(task for task in made if task.kind == "directory-count" and office in (task.instruction or ""))
    last = next(task for task in made if task.kind == "directory-open" and names[-1] in (task.instruction or ""))
    way = follow((Follow(office), Follow(names[-1])))
    counted, opened = await play_all([(count, oracle_of(count)), (last, way)])
    (pointed,) = await play_all([(last, way)], in_turn)
    for task, ended in ((count, counted), (last, opened), (last, pointed)):
        assert ended.reward.score == 1.0, described(task, ended)
        assert [step.action.type for step in ended.steps[:2]] == ["click", "scroll"]
    before, after = (step.prompt for step in counted.steps[1:3])
    assert f'"{names[-1]}" offscreen' in before and re.search(rf'"{names[-1]}" [A-Z]\w+ [A-Z]', after), (
        "with department and role"
    )


# -- without a browser


def page(
    *elements: Element, error: str | None = None, text: str | None = None, scroll: float = 0, size: float = 700
) -> Observation:
    lines = "\n".join(f'[{each.index}] {each.tag} "{each.text}"' for each in elements)
    return Observation(
        instruction="Do it.",
        elements=elements,
        url="http://127.0.0.1:1/",
        viewport=VIEWPORT,
        error=error,
        text=lines if text is None else text,
        scroll=(0, scroll),
        page_size=(VIEWPORT[0], size),
    )


def element(index: int, tag: str, text: str, y: float = 100) -> Element:
    return Element(index=index, tag=tag, text=text, box=(10, y, 80, 20), in_viewport=0 <= y <= HEIGHT - 20)


PLAN = (Fill("Name", "Ann"), Follow("Next"), Push("Save"))
FORM = page(element(1, "input", "Name"), element(2, "link", "Next"), element(3, "button", "Save"))


def test_moves_are_made_in_turn_and_then_it_is_over() -> None:
    oracle, history = follow(PLAN), list[Action]()
    for wanted in (Type(element=1, text="Ann"), Click(element=2), Click(element=3), Terminate()):
        assert oracle(FORM, history) == wanted
        history.append(wanted)


def test_what_is_out_of_view_is_scrolled_to() -> None:
    oracle = follow((Push("Save"),))
    below = page(element(1, "button", "Save", y=2 * HEIGHT - 10), size=3000)
    assert oracle(below, ()) == Scroll(direction="down", amount=1.5)
    above = page(element(1, "button", "Save", y=-HEIGHT / 2 - 10), size=3000, scroll=900)
    scrolls = [Scroll()]
    assert oracle(above, scrolls) == Scroll(direction="up", amount=1.0)
    assert oracle(page(element(1, "button", "Save")), scrolls) == Click(element=1)
    given_up = oracle(below, [Scroll()] * 4)
    assert isinstance(given_up, Invalid) and "scrolled 4 times" in given_up.reason
    assert isinstance(oracle(below, [*[Scroll()] * 3, Click(element=1), Scroll()]), Terminate), (
        "moves are counted, not turns"
    )


def test_a_page_is_read_to_its_end_before_it_is_answered() -> None:
    oracle = follow((Say("12"),))
    assert oracle(page(size=HEIGHT + 1), ()) == Answer(text="12")
    assert oracle(page(size=2 * HEIGHT), ()) == Scroll(amount=0.75)
    assert oracle(page(size=2 * HEIGHT, scroll=HEIGHT - 100), [Scroll()]) == Scroll(amount=0.75)
    assert oracle(page(size=2 * HEIGHT, scroll=HEIGHT), [Scroll()] * 2) == Answer(text="12")


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        (
            page(element(1, "link", "Name")),
            "lists no input or textarea or ",
        ),
        (page(element(1, "input", "Name"), text="A page without it"), "leaves out element 1, 'Name'"),
        (page(element(1, "input", "Name"), error="stale_element: gone"), "had no effect: stale_element: gone"),
    ],
)
def test_it_says_why_it_is_at_a_loss(seen: Observation, reason: str) -> None:
    told = follow(PLAN)(seen, ())
    assert isinstance(told, Invalid) and reason in told.reason


def test_tasks_without_a_plan_are_refused() -> None:
    (task,) = generate(GeneratorSpec(count=1, splits={Split.DEMO: 1}))
    assert is_generated(task) and task.seeds.keys() == {Split.DEMO}
    oracle_of(task)
    part = task.model_copy(update={"task_id": f"{task.task_id}~0123456789ab"})
    with pytest.raises(TaskError, match="is no id of a generated task"):
        oracle_of(part)
    with pytest.raises(TaskError, match="made by another version"):
        oracle_of(task.model_copy(update={"rubric_hash": "0" * 64}))
    elsewhere = task.model_copy(update={"site": "miniwob"})
    assert not is_generated(elsewhere)
    with pytest.raises(TaskError, match=f"no oracle for '{task.kind}'"):
        oracle_of(elsewhere)
