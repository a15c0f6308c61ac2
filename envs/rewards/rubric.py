"""Grades an episode by a rubric of facts.

The reward is the weighted mean over the available facts ``f`` of the groups ``g``::

    R = G * sum_g W_g (sum_f w_f c_f / sum_f w_f) / sum_g W_g

where G is 0 if a gate or a required fact does not hold, else 1. The parts of the bundle are the
facts, each with the weight ``W_g w_f / sum_f w_f``, so the bundle's weighted mean is R. An episode
passes if R reaches the threshold, every required group is above 0 and every floor is reached.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Mapping
from itertools import chain

from envs.rewards.bundle import failed_requirements, score
from envs.rewards.evidence import GradingEvidence
from envs.rewards.facts import FactJudge, FactResult, check, subscore, unavailable_result
from envs.rewards.page_text import Pages
from envs.types import (
    Cost,
    Fact,
    FactGroup,
    JudgeError,
    JudgeFact,
    PartRole,
    RewardBundle,
    RewardPart,
    Rubric,
    rubric_hash,
)


def grade_by_program(rubric: Rubric, evidence: GradingEvidence, *, expected_hash: str | None = None) -> RewardBundle:
    """Grade by program alone: facts for a judge are not available.

    Raises:
        JudgeError: The rubric's hash is not the expected one.
    """
    known = frozen_hash(rubric, expected_hash)
    return combine(rubric, check_by_program(rubric, evidence), evidence, known)


async def grade(
    rubric: Rubric,
    evidence: GradingEvidence,
    *,
    judge: FactJudge | None = None,
    expected_hash: str | None = None,
) -> RewardBundle:
    """Grade by program, then by the judge about all of its facts at once.

    A question that fails makes its fact not available.

    Raises:
        JudgeError: The rubric's hash is not the expected one.
    """
    known = frozen_hash(rubric, expected_hash)
    results = check_by_program(rubric, evidence)
    if judge is not None:
        results |= await ask_judge(rubric, evidence, judge)
    return combine(rubric, results, evidence, known)


def check_by_program(rubric: Rubric, evidence: GradingEvidence) -> dict[str, FactResult]:
    """Check every fact by program; return the results by id, before ``negate``.

    A pure function that needs CPU time.
    """
    pages = Pages(evidence)
    return {fact.id: check(fact, pages) for fact in rubric.facts()}


async def ask_judge(rubric: Rubric, evidence: GradingEvidence, judge: FactJudge) -> dict[str, FactResult]:
    """Ask the judge about its facts, all at once; return the results by id."""
    async with asyncio.TaskGroup() as tasks:
        asked = {
            fact.id: tasks.create_task(_ask(fact, group, evidence, judge))
            for group, fact in _placed(rubric)
            if isinstance(fact, JudgeFact)
        }
    return {name: task.result() for name, task in asked.items()}


def combine(
    rubric: Rubric, results: Mapping[str, FactResult], evidence: GradingEvidence, known_hash: str = ""
) -> RewardBundle:
    """Make the bundle of a rubric whose facts have been checked.

    Args:
        results: Results by fact id, before ``negate``; a fact without one is not available.
        evidence: Evidence for the floors.
        known_hash: Hash of the rubric; computed when it is not given.
    """
    values = {fact.id: _confidence(fact, results.get(fact.id)) for fact in rubric.facts()}
    required = frozenset(rubric.pass_requirements.required_fact_ids)
    parts = [part for group in rubric.fact_groups for part in _group_parts(group, values, required)]
    for gate in rubric.gates:
        parts.append(_part(f"gate/{gate.id}", gate, values[gate.id], 1.0, PartRole.GATE))
    cause, failed = _other_requirements(rubric, values, evidence)
    if failed_requirements(parts):
        cause = None  # R is 0, whatever the groups and floors are
    bundle_hash = known_hash or rubric_hash(rubric)
    return score(parts, cause, rubric.pass_threshold, failed=failed, rubric_hash=bundle_hash)


def frozen_hash(rubric: Rubric, expected: str | None) -> str:
    """Return the rubric's hash; raise ``JudgeError`` if it is not the expected one."""
    actual = rubric_hash(rubric)
    if expected is not None and actual != expected:
        raise JudgeError(
            f"the rubric has hash {actual}, and {expected} was frozen for this run: it was changed since. "
            "Grade by the rubric that was frozen, or start a new run with this one"
        )
    return actual


def _placed(rubric: Rubric) -> Iterator[tuple[FactGroup | None, Fact]]:
    """Return all facts with their groups; a gate has none."""
    return chain(
        ((group, fact) for group in rubric.fact_groups for fact in group.facts), ((None, gate) for gate in rubric.gates)
    )


async def _ask(fact: JudgeFact, group: FactGroup | None, evidence: GradingEvidence, judge: FactJudge) -> FactResult:
    started = time.perf_counter()
    try:
        return await judge.judge(fact, group, evidence)
    except JudgeError as error:
        return FactResult(value=None, evidence=str(error), cost=Cost(seconds=time.perf_counter() - started))


def _confidence(fact: Fact, result: FactResult | None) -> FactResult:
    """Return the result after ``negate``."""
    if result is None:
        return unavailable_result("it was not checked")
    if fact.negate and result.value is not None:
        return result.model_copy(update={"value": 1.0 - result.value, "evidence": f"not: {result.evidence}"})
    return result


def _group_parts(group: FactGroup, values: Mapping[str, FactResult], required: frozenset[str]) -> Iterator[RewardPart]:
    """Yield the parts of a group's facts, with the weight of each in R."""
    known = math.fsum(fact.weight for fact in group.facts if values[fact.id].value is not None)
    for fact in group.facts:
        # A group without an available fact is left out of R. Its weights then only show what the
        # facts would have weighed.
        share = fact.weight / (known or math.fsum(other.weight for other in group.facts))
        name = f"{group.name}/{fact.id}"
        needed = fact.id in required or values[fact.id].undecided
        yield _part(name, fact, values[fact.id], group.weight * share, PartRole.SCORED, needed)


def _part(
    name: str, fact: Fact, result: FactResult, weight: float, role: PartRole, required: bool = False
) -> RewardPart:
    evidence = f"{fact.description}: {result.evidence}" if fact.description else result.evidence
    return RewardPart(
        name=name,
        value=result.value,
        weight=weight,
        evidence=evidence,
        role=role,
        required=required,
        holds_at=fact.holds_at,
        cost=result.cost,
    )


def _other_requirements(
    rubric: Rubric, values: Mapping[str, FactResult], evidence: GradingEvidence
) -> tuple[str | None, list[str]]:
    """Return the first reason why a requirement is not available, and all that fail."""
    cause: str | None = None
    failed: list[str] = []
    facts = {group.name: group.facts for group in rubric.fact_groups}
    for name in rubric.pass_requirements.required_group_ids:
        known = [value for fact in facts[name] if (value := values[fact.id].value) is not None]
        if not known:
            cause = cause or f"required group {name} is not available: {values[facts[name][0].id].evidence}"
        elif not any(known):
            failed.append(f"required group {name}")
    for key, floor in rubric.pass_requirements.floors.items():
        value = subscore(key, evidence)
        if value is None:
            cause = cause or f"floor {key} is not available: it was not computed"
        elif value < floor:
            failed.append(f"floor {key}: {value:.4g} is below {floor:g}")
    return cause, failed
