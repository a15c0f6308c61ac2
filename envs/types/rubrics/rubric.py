"""Rubrics: groups of facts, pass requirements, and the hash that freezes both."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from graphlib import CycleError, TopologicalSorter
from typing import Any, Self

import orjson
from pydantic import Field, model_validator

from envs.types.record import Record
from envs.types.rubrics.base import Name, Share, Similarity, Weight
from envs.types.rubrics.facts import Fact

PASS_THRESHOLD = 0.85
"""Share of the score that passes, as in W8."""


class FactGroup(Record):
    """Facts that belong together."""

    name: Name
    """Unique in the rubric."""
    description: str = ""
    weight: Weight = 1.0
    facts: tuple[Fact, ...] = Field(min_length=1)
    after: tuple[str, ...] = ()
    """Names of groups that must have been reached first. Grading does not look at it; sub-tasks
    keep to it."""


class PassRequirements(Record):
    """Conditions of a pass beyond the threshold."""

    required_fact_ids: tuple[str, ...] = ()
    """Facts that must hold, or the whole score is 0."""
    required_group_ids: tuple[str, ...] = ()
    """Names of groups whose score must be above 0."""
    floors: dict[Similarity, Share] = Field(default_factory=dict)
    """Least similarities to a reference page (W8: ``domdiff_floors``)."""


class Rubric(Record):
    """The grading of a task's episodes."""

    fact_groups: tuple[FactGroup, ...] = Field(min_length=1)
    gates: tuple[Fact, ...] = ()
    """Facts that must hold, or the whole score is 0; they add nothing to it. WebGym's criterion
    against hallucinations is one."""
    pass_threshold: Share = PASS_THRESHOLD
    pass_requirements: PassRequirements = PassRequirements()

    @property
    def fact_count(self) -> int:
        """The difficulty of its task; gates do not count."""
        return sum(len(group.facts) for group in self.fact_groups)

    def facts(self) -> Iterator[Fact]:
        """The facts of all groups, then the gates."""
        for group in self.fact_groups:
            yield from group.facts
        yield from self.gates

    @model_validator(mode="after")
    def _names_are_clear(self) -> Self:
        ids = {fact.id: fact.after for fact in self.facts()}
        names = {group.name: group.after for group in self.fact_groups}
        # Counted only when something is wrong: sets of 100,000 tasks are read and made.
        if len(ids) < self.fact_count + len(self.gates):
            raise ValueError(_twice("fact id", (fact.id for fact in self.facts())))
        if len(names) < len(self.fact_groups):
            raise ValueError(_twice("group name", (group.name for group in self.fact_groups)))
        scored = ids.keys() - {gate.id for gate in self.gates}
        needs = self.pass_requirements
        for field, named, known in (
            ("required_fact_ids", needs.required_fact_ids, scored),
            ("required_group_ids", needs.required_group_ids, names.keys()),
        ):
            if missing := [name for name in named if name not in known]:
                raise ValueError(f"pass_requirements.{field}: there is no {missing[0]!r} in fact_groups")
        _check_after("group", names, names.keys())
        _check_after("fact", ids, scored)
        return self


def _twice(what: str, used: Iterable[str]) -> str:
    name, count = Counter(used).most_common(1)[0]
    return f"fact_groups: {what} {name!r} is used {count} times"


def rubric_hash(rubric: Rubric) -> str:
    """Return the sha256 of the rubric's canonical JSON.

    Its keys are sorted and defaults left out: neither order nor spelled-out defaults change it.
    """
    canonical: dict[str, Any] = rubric.model_dump(mode="json", exclude_defaults=True)
    # A fact's type has a default too, and is what tells facts apart.
    for group, written in zip(rubric.fact_groups, canonical["fact_groups"], strict=True):
        _put_types(group.facts, written["facts"])
    _put_types(rubric.gates, canonical.get("gates", []))
    return hashlib.sha256(orjson.dumps(canonical, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _put_types(facts: tuple[Fact, ...], written: list[dict[str, Any]]) -> None:
    for fact, fields in zip(facts, written, strict=True):
        fields["type"] = fact.type


def _check_after(what: str, after: Mapping[str, Sequence[str]], known: Set[str]) -> None:
    """Check the ``after`` of groups or facts.

    Args:
        what: ``group`` or ``fact``, for the message.
        after: The names that come before each name.
        known: Names that may be used.

    Raises:
        ValueError: A name is unknown, or the names form a circle.
    """
    if not any(after.values()):
        return
    for name, before in after.items():
        if missing := [name for name in before if name not in known]:
            raise ValueError(f"fact_groups: {what} {name!r} is after {missing[0]!r}, which is no {what} of fact_groups")
    try:
        TopologicalSorter(after).prepare()
    except CycleError as error:
        circle = " after ".join(map(repr, reversed(error.args[1])))
        raise ValueError(f"fact_groups: a {what} comes after itself: {circle}") from error
