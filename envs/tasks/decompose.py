"""Decomposes a task into sub-tasks graded by subsets of its rubric.

Sub-tasks of a task: the same start and site, part of what it asks for, graded by a true subset of its rubric.

A sub-task is made from some of the task's fact groups. Which ones is what WebGym says of its own, as far as that is known, and the order in
which groups and facts depend on each other (``after`` in the rubric):

- the task has at least two fact groups and one large one (three facts or more);
- the groups are a proper, not empty subset of the task's;
- with a group come all groups that it, or a fact of it, is after;
- a group with a DOM similarity is in none: the page that it compares with is that of the whole task.

Its rubric has the kept groups as they are, and of the gates and requirements those that speak of nothing left out. Everything here is
a pure function of the task, the rules and a seed.
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
"""Groups up to which all subsets are looked at (4,096); of more, subsets are drawn."""

DRAWS = 64
"""Random orders of the groups that are tried for each sub-task wanted, when subsets are drawn."""

Names = tuple[str, ...]
"""Groups of a rubric, in its order."""


class DecompositionRules(Record):
    """Which tasks have sub-tasks, and how many."""

    min_groups: int = Field(2, ge=2, le=1000, description="Fewest fact groups of a task (WebGym).")
    large_group: int = Field(3, ge=1, le=1000, description="Fewest facts of its largest group (WebGym).")
    min_facts: int = Field(1, ge=1, le=1000, description="Fewest facts of a sub-task.")
    most: int = Field(4, ge=1, le=4096, description="Most sub-tasks of a task.")


@dataclass(frozen=True, slots=True)
class Parts:
    """The sub-tasks of a task, and why there are not more."""

    tasks: tuple[WebTask, ...] = ()
    skipped: str | None = None
    """Why the task has none; ``None`` if it may have some."""
    rejected: tuple[tuple[str, str], ...] = ()
    """Sub-tasks that were given up: id and reason."""


def decompose(task: WebTask, rules: DecompositionRules | None = None, seed: int = 0) -> Parts:
    """Sub-tasks with instructions made from the words of their groups (`part_instruction`)."""
    rules = rules or DecompositionRules()
    if (reason := not_decomposed(task, rules)) is not None:
        return Parts(skipped=reason)
    made: list[WebTask] = []
    rejected: list[tuple[str, str]] = []
    for rubric in sub_rubrics(task, rules, seed):
        try:
            made.append(sub_task(task, rubric, part_instruction(task, rubric)))
        except ValueError as error:
            rejected.append((part_id(task, rubric), str(error)))
    return Parts(tuple(made), None, tuple(rejected))


def sub_rubrics(task: WebTask, rules: DecompositionRules, seed: int = 0) -> list[Rubric]:
    """Rubrics of the sub-tasks of a task that has some (`not_decomposed`)."""
    assert task.rubric is not None
    chosen = chosen_subsets(task.rubric, rules, Random(f"{seed} {task.task_id}"))
    return [sub_rubric(task.rubric, names) for names in chosen]


def not_decomposed(task: WebTask, rules: DecompositionRules) -> str | None:
    """Why a task has no sub-tasks; ``None`` if it may have some."""
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
    """At most ``rules.most`` of the proper subsets that hold with each group all that it is after: first one of every number of facts, few
    ones first, then a second one of each. Which ones of equal size is drawn."""
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
    """For each group, the groups that must be kept with it: all that it comes after, directly or not, and itself."""
    home = {fact.id: group.name for group in rubric.fact_groups for fact in group.facts}
    before = {
        group.name: {*group.after, *(home[each] for fact in group.facts for each in fact.after)}
        for group in rubric.fact_groups
    }
    return {name: frozenset(_reached(name, before)) for name in before}


def sub_rubric(rubric: Rubric, names: Iterable[str]) -> Rubric:
    """The rubric of some of the groups.

    Groups and facts are the same, word for word.

    A gate stays unless it is ``after`` a fact that is left out; required facts and groups stay where they are kept; a floor stays if a
    kept fact is about the same similarity. The threshold stays.
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
            required_fact_ids=tuple(each for each in needs.required_fact_ids if each in facts),
            required_group_ids=tuple(each for each in needs.required_group_ids if each in kept),
            floors={key: floor for key, floor in needs.floors.items() if key in similarities},
        ),
    )


def part_id(task: WebTask, rubric: Rubric) -> str:
    """Id of a sub-task: the task's, and a digest of the groups.

    The same whatever else is made.
    """
    return f"{task.task_id}~{rubric_hash(rubric)[:12]}"


def sub_task(task: WebTask, rubric: Rubric, instruction: str) -> WebTask:
    """The task of a sub-rubric.

    Site, start, seeds and kind are the task's, so a part of a held-out task is held out.

    The horizon is what its facts are given (`max_steps`) or its share of the task's own, whichever is more, and never above the task's.
    The page that the whole task is compared with is none of a part's.

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
    """The task's instruction, and which part of it is to be done, in the words of the kept groups.

    Raises:
        ValueError: a group has no words.
    """
    parts = "\n".join(f"- {group_words(group)}" for group in rubric.fact_groups)
    return f"{task.instruction}\n\nOnly this part of it has to be done:\n{parts}"


def group_words(group: FactGroup) -> str:
    """What a group asks for: its description, or those of its facts.

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
    """Proper, not empty subsets that are closed under `prerequisites`: all of them, or of many groups some."""
    names = [group.name for group in rubric.fact_groups]
    needed = prerequisites(rubric)
    if len(names) <= MAX_LISTED:
        for size in range(1, len(names)):
            for subset in combinations(names, size):
                if all(needed[name] <= frozenset(subset) for name in subset):
                    yield subset
        return
    found: set[Names] = set()
    for _ in range(DRAWS * most):
        kept: frozenset[str] = frozenset()
        for name in random.sample(names, len(names)):
            kept |= needed[name]
            if len(kept) == len(names):
                break
            subset = tuple(each for each in names if each in kept)
            if subset not in found:
                found.add(subset)
                yield subset


def _reached(name: str, before: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = [name]
    while waiting:
        each = waiting.pop()
        if each not in reached:
            reached.add(each)
            waiting += before[each]
    return reached


def _find_leaked_answer(rubric: Rubric, instruction: str, parent: str) -> str | None:
    """An expected answer that the instruction says and the task's own does not."""
    for fact in rubric.facts():
        if isinstance(fact, AnswerFact) and fact.match != "regex" and not fact.negate:
            for answer in fact.expected:
                if contains_words(instruction, answer) and not contains_words(parent, answer):
                    return answer
    return None


def contains_words(text: str, words: str) -> bool:
    """Whether the words stand in the text as words, whatever their case and the white space between them."""
    wanted: Sequence[str] = [re.escape(word) for word in words.split()]
    return re.search(r"(?<!\w)" + r"\s+".join(wanted) + r"(?!\w)", text, re.IGNORECASE) is not None
