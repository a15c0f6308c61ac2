"""Decomposes a task into sub-tasks graded by subsets of its rubric.

A sub-task has the task's start and site, asks for a part of what the task asks for, and is graded
by a proper subset of the task's fact groups. The rules follow WebGym's, as far as they are known,
and the order in which groups and facts depend on each other (``after`` in the rubric):

- the task has at least two fact groups and one large one (three facts or more);
- the groups are a proper, non-empty subset of the task's;
- a group brings along all groups that it, or one of its facts, comes after;
- a group with a DOM similarity is in no sub-task: it compares with the page of the whole task.

The sub-task's rubric has the kept groups unchanged, and those gates and requirements that refer
only to kept parts. Everything here is a pure function of the task, the rules and a seed.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from pydantic import Field

from envs.ends import max_steps
from envs.types import FactGroup, PassRequirements, Record, Rubric, WebTask, rubric_hash
from envs.types.rubrics import AnswerFact, SubscoreFact

MAX_LISTED = 12
"""Groups up to which all subsets are listed (4,096); of more groups, subsets are drawn."""

DRAWS = 64
"""Random orders of the groups tried for each wanted sub-task, when subsets are drawn."""

Names = tuple[str, ...]
"""Names of some groups of a rubric, in its order."""


class DecompositionRules(Record):
    """Rules for which tasks get sub-tasks, and for their number."""

    min_groups: int = Field(2, ge=2, le=1000, description="Fewest fact groups of a task (WebGym).")
    large_group: int = Field(3, ge=1, le=1000, description="Fewest facts of its largest group (WebGym).")
    min_facts: int = Field(1, ge=1, le=1000, description="Fewest facts of a sub-task.")
    most: int = Field(4, ge=1, le=4096, description="Most sub-tasks of a task.")


@dataclass(frozen=True, slots=True)
class Parts:
    """The sub-tasks of a task, and the reasons for missing ones."""

    tasks: tuple[WebTask, ...]
    rejected: tuple[tuple[str, str], ...]
    """Sub-tasks that were given up: id and reason."""


def decompose(task: WebTask, rules: DecompositionRules, seed: int = 0) -> Parts:
    """Make sub-tasks with instructions made from the words of their groups (`part_instruction`).

    Call it only if `not_decomposed` is ``None``.
    """
    made: list[WebTask] = []
    rejected: list[tuple[str, str]] = []
    for rubric in sub_rubrics(task, rules, seed):
        try:
            made.append(sub_task(task, rubric, part_instruction(task, rubric)))
        except ValueError as error:
            rejected.append((part_id(task, rubric), str(error)))
    return Parts(tuple(made), tuple(rejected))


def sub_rubrics(task: WebTask, rules: DecompositionRules, seed: int = 0) -> list[Rubric]:
    """Return the rubrics of a task's sub-tasks. Call it only if `not_decomposed` is ``None``."""
    assert task.rubric is not None
    chosen = chosen_subsets(task.rubric, rules, Random(f"{seed} {task.task_id}"))
    return [sub_rubric(task.rubric, names) for names in chosen]


def not_decomposed(task: WebTask, rules: DecompositionRules) -> str | None:
    """Return the reason why a task has no sub-tasks; ``None`` if it may."""
    if task.instruction is None:
        return "instruction: only the page gives it"
    if task.rubric is None:
        return "rubric: there is none"
    groups = task.rubric.fact_groups
    if len(groups) < rules.min_groups:
        return f"rubric.fact_groups: {len(groups)} of at least {rules.min_groups}"
    largest = max(len(group.facts) for group in groups)
    if largest < rules.large_group:
        return f"rubric.fact_groups: the largest has {largest} facts, of at least {rules.large_group}"
    return None


def chosen_subsets(rubric: Rubric, rules: DecompositionRules, random: Random) -> list[Names]:
    """Choose at most ``rules.most`` proper subsets of the groups.

    A subset holds, with each group, all groups that it comes after. The choice takes one subset of
    every number of facts, small numbers first, then a second one of each. Among subsets of equal
    size the choice is random.
    """
    sizes = {group.name: len(group.facts) for group in rubric.fact_groups}
    of_the_whole = {group.name for group in rubric.fact_groups if any(isinstance(f, SubscoreFact) for f in group.facts)}
    by_size: defaultdict[int, list[Names]] = defaultdict(list)
    for names in _subsets(rubric, random, rules.most):
        if of_the_whole.isdisjoint(names) and (facts := sum(sizes[name] for name in names)) >= rules.min_facts:
            by_size[facts].append(names)
    for subsets in by_size.values():
        random.shuffle(subsets)
    chosen: list[Names] = []
    while by_size and len(chosen) < rules.most:
        for size in sorted(by_size)[: rules.most - len(chosen)]:
            chosen.append(by_size[size].pop())
            if not by_size[size]:
                del by_size[size]
    return chosen


def prerequisites(rubric: Rubric) -> dict[str, frozenset[str]]:
    """Return, for each group, itself and all groups it depends on, directly or not."""
    home = {fact.id: group.name for group in rubric.fact_groups for fact in group.facts}
    before = {
        group.name: {*group.after, *(home[fact_id] for fact in group.facts for fact_id in fact.after)}
        for group in rubric.fact_groups
    }
    return {name: frozenset(_reached(name, before)) for name in before}


def sub_rubric(rubric: Rubric, names: Iterable[str]) -> Rubric:
    """Return the rubric of some of the groups.

    Groups and facts stay the same, word for word. A gate stays unless it is ``after`` a fact that
    is left out. Required facts and groups stay where they are kept. A floor stays if a kept fact is
    about the same similarity. The threshold stays.
    """
    kept = frozenset(names)
    groups = tuple(group for group in rubric.fact_groups if group.name in kept)
    facts = {fact.id for group in groups for fact in group.facts}
    similarities = {fact.key for group in groups for fact in group.facts if isinstance(fact, SubscoreFact)}
    needs = rubric.pass_requirements
    return Rubric(
        fact_groups=groups,
        gates=tuple(gate for gate in rubric.gates if facts.issuperset(gate.after)),
        pass_threshold=rubric.pass_threshold,
        pass_requirements=PassRequirements(
            required_fact_ids=tuple(name for name in needs.required_fact_ids if name in facts),
            required_group_ids=tuple(name for name in needs.required_group_ids if name in kept),
            floors={key: floor for key, floor in needs.floors.items() if key in similarities},
        ),
    )


def part_id(task: WebTask, rubric: Rubric) -> str:
    """Return the id of a sub-task: the task's id, and a digest of the rubric.

    It does not depend on what other sub-tasks are made.
    """
    return f"{task.task_id}~{rubric_hash(rubric)[:12]}"


def sub_task(task: WebTask, rubric: Rubric, instruction: str) -> WebTask:
    """Return the task of a sub-rubric.

    Site, start, seeds and kind are the task's, so a part of a held-out task is held out. The
    horizon is the larger of two numbers: what its facts are given (`max_steps`), and its share of
    the task's own horizon. It is never above the task's. A part has no reference page: the task's
    page shows the whole task.

    Raises:
        ValueError: the instruction gives away an answer.
    """
    assert task.rubric is not None
    if (answer := _find_leaked_answer(rubric, instruction, task.instruction or "")) is not None:
        raise ValueError(f"instruction: gives away the answer {answer!r}")
    share = -(-task.horizon * rubric.fact_count // task.rubric.fact_count)
    return task.model_copy(
        update={
            "task_id": part_id(task, rubric),
            "instruction": instruction,
            "difficulty": rubric.fact_count,
            "horizon": min(task.horizon, max(max_steps(rubric.fact_count), share)),
            "rubric": rubric,
            "rubric_hash": rubric_hash(rubric),
            "reference": "",
        }
    )


def part_instruction(task: WebTask, rubric: Rubric) -> str:
    """Return the task's instruction and the part to be done, in the groups' words.

    Raises:
        ValueError: a group has no words.
    """
    parts = "\n".join(f"- {group_words(group)}" for group in rubric.fact_groups)
    return f"{task.instruction}\n\nOnly this part of it has to be done:\n{parts}"


def group_words(group: FactGroup) -> str:
    """Return a group's description, or those of its facts joined.

    Raises:
        ValueError: it has no description, and one of its facts has none.
    """
    if group.description.strip():
        return " ".join(group.description.split())
    words = [" ".join(fact.description.split()) for fact in group.facts]
    if not all(words):
        raise ValueError(f"instruction: neither group {group.name!r} nor all of its facts have a description")
    return "; ".join(words)


def _subsets(rubric: Rubric, random: Random, most: int) -> Iterator[Names]:
    """Yield proper, non-empty subsets closed under `prerequisites`: all, or of many groups some."""
    names = [group.name for group in rubric.fact_groups]
    needed = prerequisites(rubric)
    if len(names) <= MAX_LISTED:
        for size in range(1, len(names)):
            for subset in combinations(names, size):
                if all(needed[name] <= frozenset(subset) for name in subset):
                    yield subset
        return
    seen: set[Names] = set()
    for _ in range(DRAWS * most):
        kept: frozenset[str] = frozenset()
        for name in random.sample(names, len(names)):
            kept |= needed[name]
            if len(kept) == len(names):
                break
            subset = tuple(name for name in names if name in kept)
            if subset not in seen:
                seen.add(subset)
                yield subset


def _reached(name: str, before: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting += before[current]
    return reached


def _find_leaked_answer(rubric: Rubric, instruction: str, parent: str) -> str | None:
    """Return an expected answer that the instruction contains and the parent's does not."""
    for fact in rubric.facts():
        if isinstance(fact, AnswerFact) and fact.match != "regex" and not fact.negate:
            for answer in fact.expected:
                if contains_words(instruction, answer) and not contains_words(parent, answer):
                    return answer
    return None


def contains_words(text: str, words: str) -> bool:
    """Return True if the text has these whole words, ignoring case and white space."""
    wanted: Sequence[str] = [re.escape(word) for word in words.split()]
    return re.search(r"(?<!\w)" + r"\s+".join(wanted) + r"(?!\w)", text, re.IGNORECASE) is not None
