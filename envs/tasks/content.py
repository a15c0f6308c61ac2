"""Content hash of a task: equal for tasks that differ only in name."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from envs.types import Fact, Rubric, WebTask
from envs.types.webarena import evaluators_hash


def content_key(task: WebTask) -> str:
    """Return a sha256 over the task's start, instruction and grading.

    Seeds do not count: a task used for training and for evaluation is one task. Neither do ids,
    names, descriptions, the order of facts and groups, the white space of the instruction, and the
    horizon. Tasks without an instruction (the page gives it) differ by their kind.
    """
    instruction = " ".join(task.instruction.split()) if task.instruction is not None else None
    content = {
        "site": task.site,
        "path": task.path,
        "kind": task.kind if instruction is None else None,
        "instruction": instruction,
        "reference": task.reference,
        "rubric": _rubric(task.rubric) if task.rubric is not None else None,
    }
    for name, value in (("files", task.files), ("date", task.date), ("script", task.script)):
        if value:
            content[name] = value
    if task.evaluators is not None:
        content["evaluators"] = evaluators_hash(task.evaluators)
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _rubric(rubric: Rubric) -> dict[str, Any]:
    needs = rubric.pass_requirements
    required = frozenset(needs.required_fact_ids)
    groups = [
        [group.weight, group.name in needs.required_group_ids, sorted(_fact(fact, required) for fact in group.facts)]
        for group in rubric.fact_groups
    ]
    return {
        "groups": sorted(groups, key=orjson.dumps),
        "gates": sorted(_fact(gate, required) for gate in rubric.gates),
        "threshold": rubric.pass_threshold,
        "floors": needs.floors,
    }


def _fact(fact: Fact, required: frozenset[str]) -> str:
    """Serialize a fact without its names.

    The description of a judge's fact is what the judge checks, so it counts; for any other type it
    is a remark.
    """
    fields = fact.model_dump(mode="json", exclude_defaults=True, exclude={"id", "after", "description"})
    judged = fact.description if fact.type == "judge" else None
    return orjson.dumps([fact.type, fields, judged, fact.id in required], option=orjson.OPT_SORT_KEYS).decode()
