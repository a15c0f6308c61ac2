"""A rubric's facts and their values in one episode. Pure functions."""

from __future__ import annotations

from typing import Any

import orjson

from envs.types import Fact, FactBase, RewardPart, Rubric, Trajectory

PROGRAM = "program"

DECIDED: dict[str, tuple[str, str]] = {
    "url": (PROGRAM, "address of the last page"),
    "text": (PROGRAM, "text of the last page"),
    "answer": (PROGRAM, "the answer"),
    "element": (PROGRAM, "elements of the last page"),
    "element_state": (PROGRAM, "elements of the last page"),
    "dom_element_present": (PROGRAM, "nodes of the last page"),
    "dom_element_attribute_equals": (PROGRAM, "nodes of the last page"),
    "dom_element_style_property": (PROGRAM, "nodes and styles of the last page"),
    "js": (PROGRAM, "JavaScript on the last page"),
    "page_fact": (PROGRAM, "what the page declared"),
    "download": (PROGRAM, "downloads"),
    "signal_threshold": (PROGRAM, "signals of the browser"),
    "domdiff_subscore": (PROGRAM, "likeness to the reference"),
    "server_sql": ("server", "rows of its database"),
    "server_http": ("server", "its JSON"),
    "judge": ("judge", "the screenshots and the answer"),
}
"""Decider and evidence of a fact, by the fact's type."""


def rubric_facts(rubric: Rubric, trajectory: Trajectory) -> dict[str, Any]:
    """Return the facts as ``rows``, with the groups' weights and the requirements for passing.

    A row has group, fact, question, weight in its group (a gate has none), value, True if it holds,
    decided by, decided on. A fact whose part is not in the bundle has no value and no verdict.
    """
    parts = {part.name: part for part in trajectory.reward.parts}
    needs = rubric.pass_requirements
    rows = [
        _row(group.name, fact, fact.weight, parts.get(f"{group.name}/{fact.id}"), fact.id in needs.required_fact_ids)
        for group in rubric.fact_groups
        for fact in group.facts
    ]
    rows += [_row("(gate)", gate, None, parts.get(f"gate/{gate.id}")) for gate in rubric.gates]
    return {
        "rows": rows,
        "groups": [
            [group.name, group.weight, group.name in needs.required_group_ids, group.description]
            for group in rubric.fact_groups
        ],
        "threshold": rubric.pass_threshold,
        "floors": [[name, floor] for name, floor in needs.floors.items()],
    }


def _row(group: str, fact: Fact, weight: float | None, part: RewardPart | None, required: bool = False) -> list[Any]:
    by, on = DECIDED[fact.type]
    if getattr(fact, "when", "end") == "ever":
        on = on.replace("the last page", "any page")
    return [
        group,
        f"{fact.id} (required)" if required else fact.id,
        f"{fact.type}: {_asked(fact)}",
        weight,
        part.value if part is not None else None,
        part.holds if part is not None else None,
        by,
        on,
    ]


def _asked(fact: Fact) -> str:
    """Return the fact's own fields that differ from their defaults, after its description."""
    own = fact.model_dump(mode="json", exclude_defaults=True, exclude={*FactBase.model_fields} - {"negate", "holds_at"})
    words = [fact.description] if fact.description else []
    return " ".join([*words, *([orjson.dumps(own).decode()] if own else [])])
