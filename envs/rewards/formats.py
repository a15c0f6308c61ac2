"""Reads rubric files in three forms: ours, W8's ``rubric.json``, WebGym's ``evaluator_reference``.

W8's form differs from ours in the name of the floors and in the DOM similarity that satisfies a
fact (anything above 0). A rubric is read as W8's if all its facts have W8's types and nothing in it
is ours alone. A WebGym list has facts in words: each becomes a fact for the judge, and WebGym's
criterion against hallucinations becomes a gate. Since its reward is binary, only R = 1 passes.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from pydantic import ValidationError

from envs.types import FactGroup, JudgeFact, Rubric, TaskError

W8_TYPES = (
    "domdiff_subscore",
    "dom_element_present",
    "dom_element_attribute_equals",
    "dom_element_style_property",
    "signal_threshold",
)
"""Types of W8's facts."""
OURS = {"negate", "holds_at", "after"}
"""Fields that W8's facts do not have."""

W8_SATISFIED = 1e-9
"""Minimum similarity that satisfies a fact in W8, where any value above 0 does."""

REFERENCE = "reference"
"""Name of the group that asks for a task's reference answer."""

ANSWERS = ("definite_answer", "reference_answer")
"""Columns of the right answer: WebGym's own, and that of the loader in AReaL's fork."""

GROUNDED = JudgeFact(
    id="grounded",
    description="Everything that the answer and the actions claim is shown by the pages; nothing is made up.",
    criterion="grounded",
)
"""WebGym's criterion B."""


def load_rubric(path: Path) -> Rubric:
    """Read a rubric in any of the three forms.

    Raises:
        TaskError: The file cannot be read, or its rubric is invalid. The message lists every
            problem with its field and reason.
    """
    try:
        data = orjson.loads(path.read_bytes().removeprefix(BOM_UTF8))
    except (OSError, orjson.JSONDecodeError) as error:
        raise TaskError(f"{path}: cannot be read as JSON: {error}") from error
    return read_rubric(data, str(path))


def read_rubric(data: object, where: str = "rubric") -> Rubric:
    """Read a rubric from parsed JSON, in any of the three forms.

    Args:
        where: Name of the source, for error messages.

    Raises:
        TaskError: The rubric is invalid. The message lists every problem.
    """
    if isinstance(data, list) or (isinstance(data, dict) and "evaluator_reference" in data):
        return from_webgym(data, where)
    if isinstance(data, dict) and _is_w8(data):
        return from_w8(data, where)
    return _read(data, where)


def from_w8(data: Mapping[str, Any], where: str = "rubric") -> Rubric:
    """Read W8's form of a rubric; other fields (a title, notes) are dropped.

    Raises:
        TaskError: The rubric is invalid.
    """
    groups = data.get("fact_groups")
    ours: dict[str, Any] = {name: data[name] for name in ("pass_threshold",) if name in data}
    ours["fact_groups"] = [_w8_group(group) for group in groups] if isinstance(groups, list) else groups
    needs = data.get("pass_requirements")
    if isinstance(needs, dict):
        ours["pass_requirements"] = {
            "floors" if key == "domdiff_floors" else key: value for key, value in needs.items()
        }
    elif needs is not None:
        ours["pass_requirements"] = needs
    return _read(ours, where)


def from_webgym(data: Mapping[str, Any] | Sequence[Any], where: str = "rubric") -> Rubric:
    """Read WebGym's list of groups ``[{id, description, facts: [text, …]}]``.

    Args:
        data: The list, or a task that has it in ``evaluator_reference``.

    Raises:
        TaskError: The list is invalid.
    """
    try:
        groups = decode_groups(data["evaluator_reference"] if isinstance(data, Mapping) else data)
    except ValueError as error:
        raise TaskError(f"{where}: evaluator_reference: {error}") from None
    problems = [*_webgym_problems(groups)]
    if problems:
        raise TaskError("\n".join(f"{where}: {problem}" for problem in problems))
    ours = {
        "fact_groups": [
            {
                "name": str(group["id"]),
                "description": group.get("description") or "",
                "facts": [
                    {"type": "judge", "id": f"{group['id']}.{number}", "description": text}
                    for number, text in enumerate(group["facts"], start=1)
                ],
            }
            for group in groups
        ],
        "gates": [GROUNDED.model_dump()],
        "pass_threshold": 1.0,
    }
    return _read(ours, where)


def decode_groups(value: Any) -> Any:
    """Decode WebGym's groups; the list or a group may be JSON in a text.

    Raises:
        ValueError: A text begins like such JSON but is not, so it is no fact in words either.
    """
    if isinstance(value, list):
        return [_decoded(group) for group in value]
    groups = _decoded(value)
    return [groups] if isinstance(groups, dict) else decode_groups(groups) if isinstance(groups, list) else value


def _decoded(value: Any) -> Any:
    """Decode a JSON object or list in a text; return everything else as it is."""
    text = value.strip() if isinstance(value, str) else ""
    if not text.startswith(("[", "{")):
        return value
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if _LIKE_JSON.match(text):
            raise ValueError(f"begins as JSON and is none ({error}): {text[:60]!r}") from None
        return value


_LIKE_JSON = re.compile(r"""\[?\s*\{\s*["']|\[\s*["'].*\]\Z""", re.DOTALL)
"""Texts that must be JSON; not, for example, the fact ``[Menu] is shown``."""


def webgym_rubric(row: Mapping[str, Any]) -> Rubric | None:
    """Make the rubric of a row of WebGym; ``None`` without facts and right answer.

    It has the row's facts, and one more that compares the answer with the row's right answer. As in
    WebGym's own reader, ``evaluator_reference`` may be one text, a list of texts, or groups; if a
    group has no ``facts``, its description is the fact. Groups without distinct ids are numbered.

    Raises:
        TaskError: The row is invalid.
    """
    groups, answer = row.get("evaluator_reference"), webgym_reference_answer(row)
    if groups:
        return with_reference(from_webgym(_numbered([groups] if isinstance(groups, str) else groups)), answer)
    return Rubric(fact_groups=(_reference(answer),), gates=(GROUNDED,), pass_threshold=1.0) if answer else None


def webgym_reference_answer(row: Mapping[str, Any]) -> str:
    """Return the right answer of a row of WebGym (`ANSWERS`); empty without one.

    Raises:
        TaskError: It is neither a text nor a number, or the two columns differ.
    """
    values = {
        name: row[name] for name in ANSWERS if row.get(name) not in (None, [], {}) and row[name] == row[name]
    }  # no NaN
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise TaskError(
                f"row: {name}: {value!r} is neither a text nor a number, so no answer can be compared with it"
            )
    answers = {name: text for name, value in values.items() if (text := str(value).strip())}
    if len(set(answers.values())) > 1:
        raise TaskError(
            f"row: {ANSWERS[0]}: {answers[ANSWERS[0]]!r}, and {ANSWERS[1]} is {answers[ANSWERS[1]]!r}; keep one"
        )
    return next(iter(answers.values()), "")


def asks_only_reference(rubric: Rubric) -> bool:
    """True if a rubric only compares the answer with a reference answer."""
    return [group.name for group in rubric.fact_groups] == [REFERENCE]


def with_reference(rubric: Rubric, reference: str | None) -> Rubric:
    """Return the rubric with one more group: the answer agrees with the reference answer.

    The description of the group does not contain the reference answer.
    """
    if reference is None or not reference.strip():
        return rubric
    return Rubric.model_validate({**dict(rubric), "fact_groups": (*rubric.fact_groups, _reference(reference.strip()))})


def _reference(answer: str) -> FactGroup:
    fact = JudgeFact(
        id=f"{REFERENCE}.1", description=f"The answer says the same in substance as this reference answer: {answer}"
    )
    return FactGroup(name=REFERENCE, description="Give the answer that is asked for", facts=(fact,))


def _numbered(groups: list[Any]) -> list[Any]:
    """Give the groups distinct ids.

    A text becomes a group of one fact, and so does a group with a description but no facts.
    """
    result = list[Any]()
    ids = [group.get("id") for group in groups if isinstance(group, dict)]
    renumber = len(set(map(str, ids))) < len(ids) or None in ids or len(ids) < len(groups)
    for number, group in enumerate(groups, start=1):
        if isinstance(group, dict) and group.get("facts") is None and isinstance(group.get("description"), str):
            group = {**group, "description": "", "facts": [group["description"]]}
        if isinstance(group, str):
            result.append({"id": number, "description": "", "facts": [group]})
        elif isinstance(group, dict) and renumber:
            result.append({**group, "id": number})
        else:
            result.append(group)
    return result


def rubric_of_instruction(instruction: str) -> Rubric:
    """Make a rubric by which a judge decides if an instruction was carried out.

    Raises:
        TaskError: The instruction makes no valid fact.
    """
    fact = {"type": "judge", "id": "done", "description": f"The task was done: {instruction}"}
    return _read(
        {"fact_groups": [{"name": "task", "facts": [fact]}], "gates": [GROUNDED.model_dump()], "pass_threshold": 1.0},
        "instruction",
    )


def _webgym_problems(groups: object) -> Iterator[str]:
    if not isinstance(groups, list) or not groups:
        yield "evaluator_reference: expected a list of groups"
        return
    for number, group in enumerate(groups):
        where = f"evaluator_reference.{number}"
        if not isinstance(group, dict):
            yield f"{where}: is a {type(group).__name__}; expected an object with id, description and facts"
            continue
        if not isinstance(group.get("id"), str | int) or isinstance(group["id"], bool):
            yield f"{where}.id: expected a text or a number"
        if not isinstance(group.get("description", ""), str | None):
            yield f"{where}.description: expected a text"
        facts = group.get("facts")
        if not isinstance(facts, list) or not facts:
            yield f"{where}.facts: expected a list of texts"
            continue
        for place, fact in enumerate(facts):
            if not isinstance(fact, str) or not fact.strip():
                yield f"{where}.facts.{place}: expected a text, not {fact!r}"


def to_w8(rubric: Rubric) -> dict[str, Any]:
    """Convert a rubric to W8's form.

    Raises:
        TaskError: The rubric has a gate, a fact of another type or a negated one, which W8's form
            cannot express.
    """
    w8 = rubric.model_dump(mode="json", exclude_defaults=True)
    if "gates" in w8:
        raise TaskError(f"gates: W8's form has none; gate {rubric.gates[0].id!r} cannot be written")
    for group, dumped in zip(rubric.fact_groups, w8["fact_groups"], strict=True):
        for fact, fields in zip(group.facts, dumped["facts"], strict=True):
            if fields.get("holds_at") == W8_SATISFIED:
                del fields["holds_at"]
            if fact.type not in W8_TYPES or OURS & fields.keys():
                raise TaskError(f"fact {fact.id!r}: W8's form has no place for it (type {fact.type})")
            fields["type"] = fact.type
    needs = w8.get("pass_requirements", {})
    if "floors" in needs:
        needs["domdiff_floors"] = needs.pop("floors")
    return w8


def _is_w8(data: Mapping[str, Any]) -> bool:
    needs = data.get("pass_requirements")
    if isinstance(needs, dict) and "domdiff_floors" in needs:
        return True
    groups = data.get("fact_groups")
    if "gates" in data or not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups):
        return False
    facts = [fact for group in groups for fact in group.get("facts") or () if isinstance(fact, dict)]
    return bool(facts) and all(fact.get("type") in W8_TYPES and not OURS & fact.keys() for fact in facts)


def _w8_group(group: object) -> object:
    if not isinstance(group, dict):
        return group
    facts = group.get("facts")
    return group | {"facts": [_w8_fact(fact) for fact in facts] if isinstance(facts, list) else facts}


def _w8_fact(fact: object) -> object:
    if not isinstance(fact, dict):
        return fact
    defaults: dict[str, dict[str, Any]] = {
        "signal_threshold": {"threshold": 0.0},
        "domdiff_subscore": {"holds_at": W8_SATISFIED},
    }
    kind = fact.get("type")
    return (defaults.get(kind, {}) if isinstance(kind, str) else {}) | fact


def _read(data: object, where: str) -> Rubric:
    try:
        return Rubric.model_validate_json(orjson.dumps(data), strict=True)
    except ValidationError as error:
        problems = [f"{where}: {_field(problem['loc'])}: {problem['msg']}" for problem in error.errors()]
        raise TaskError("\n".join(problems)) from error
    except TypeError as error:  # raised by orjson for values that JSON does not have
        raise TaskError(f"{where}: {error}") from error


def _field(location: tuple[int | str, ...]) -> str:
    return ".".join(str(part) for part in location if part != "[key]") or "rubric"
