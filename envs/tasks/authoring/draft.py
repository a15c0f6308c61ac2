"""Schema of a rubric as the model drafts it: groups of facts in words."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pydantic import Field, ValidationError

from envs.rewards.formats import from_webgym, with_reference
from envs.rewards.judge.verdict import MalformedReply, read_object
from envs.tasks.rows import field_name
from envs.types import Record, Rubric
from envs.types.rubrics import Name

MAX_NAMED = 5
"""Problems of a reply that are sent to the model at once."""


class RubricDraftFact(Record):
    """One fact in words."""

    text: Name
    """Statement that must be true at the end, as one sentence."""
    asked: Name
    """The words of the instruction that ask for it."""


class DraftGroup(Record):
    """Facts that belong together."""

    description: Name
    facts: tuple[RubricDraftFact, ...] = Field(min_length=1)


class RubricDraft(Record):
    """A rubric before it is checked."""

    fact_groups: tuple[DraftGroup, ...] = Field(min_length=1)

    def facts(self) -> Iterator[tuple[str, RubricDraftFact]]:
        """Yield all facts, with their place in the reply."""
        for row, group in enumerate(self.fact_groups):
            for column, fact in enumerate(group.facts):
                yield f"fact_groups.{row}.facts.{column}", fact

    def only(self, places: frozenset[str]) -> RubricDraft:
        """Return the draft with only the facts at these places."""
        groups = []
        for row, group in enumerate(self.fact_groups):
            kept = tuple(
                fact for column, fact in enumerate(group.facts) if f"fact_groups.{row}.facts.{column}" in places
            )
            if kept:
                groups.append(group.model_copy(update={"facts": kept}))
        return RubricDraft(fact_groups=tuple(groups))


def read_draft(reply: str) -> RubricDraft:
    """Parse a draft from the reply of a model.

    Raises:
        MalformedReply: the reply is no JSON object of the schema; the message says where.
    """
    data = read_object(reply)
    try:
        return RubricDraft.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as error:
        problems = [f"{field_name(one['loc'])}: {one['msg']}" for one in error.errors()]
        raise MalformedReply("; ".join(problems[:MAX_NAMED])) from error


def to_rubric(draft: RubricDraft, reference: str | None) -> Rubric:
    """Convert a draft to a rubric.

    The judge checks each fact, WebGym's gate against hallucinations is added, and everything must
    hold.

    Args:
        reference: The right answer; it becomes a fact of its own, in a group of its own.
    """
    rubric = from_webgym(
        [
            {"id": number, "description": group.description, "facts": [fact.text for fact in group.facts]}
            for number, group in enumerate(draft.fact_groups, start=1)
        ]
    )
    return with_reference(rubric, reference)
