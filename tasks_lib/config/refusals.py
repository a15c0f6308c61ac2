"""Validation error messages for a configuration: one line for each bad key.

A line has the value that the key got, the values that are allowed, and similar names.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from envs.types import MAX_NEAR, near
from tasks_lib.config.shapes import Shape, assignment

OTHER_BLOCK = 0.75
"""Least similarity (difflib's ratio) of a key of another block that is suggested.

There are so many names that some resemble any word a little.
"""
MAX_SHOWN = 80
"""Most characters of a refused value that are shown."""


def explain_all(tree: Shape, problems: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line for each problem, without duplicates.

    A list that is too short only because its items are invalid is no problem.

    Args:
        tree: Shape of the model that was validated.
        problems: ``ValidationError.errors()`` of pydantic.
    """
    inside = {problem["loc"][:depth] for problem in problems for depth in range(len(problem["loc"]))}
    lines = [
        _explain(tree, problem)
        for problem in problems
        if not (problem["type"] == "too_short" and problem["loc"] in inside)
    ]
    return list(dict.fromkeys(lines))


def _explain(tree: Shape, problem: Mapping[str, Any]) -> str:
    """Explain a problem of pydantic in terms of the configuration."""
    place = _KeyPlace.of(tree, problem["loc"])
    match problem["type"]:
        case "extra_forbidden":
            return place.unknown(problem["input"])
        case "missing":
            return f"{place.key}: required, and not given; {place.wanted()}"
        case "union_tag_invalid" | "union_tag_not_found":
            return place.wrong_kind(problem["input"])
        case "value_error":
            return place.own_words(str(problem["ctx"]["error"]), problem["input"])
        case "dict_type" | "model_type" if not place.key:
            return f"a configuration is a block of keys, got {describe_value(problem['input'])}"
    return place.refused(problem["input"], problem["msg"])


def describe_value(value: Any) -> str:
    """Return a value as it was given, cut if it is long."""
    words = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    return words if len(words) <= MAX_SHOWN else f"{words[:MAX_SHOWN]}…"


@dataclass(frozen=True, slots=True)
class _Step:
    """One key on the path to a problem."""

    part: str | int
    owner: Shape
    """Block, list or mapping that has the key."""
    kind: str
    """Kind of the owner, if that is a block of several kinds; else empty."""


@dataclass
class _KeyPlace:
    """Place of a problem in the tree."""

    tree: Shape
    shape: Shape | None
    """Shape of the values that are allowed there; ``None``: none are."""
    kind: str = ""
    """Kind of the shape, if it is a block of several kinds and the value names one."""
    steps: list[_Step] = field(default_factory=list)

    @classmethod
    def of(cls, tree: Shape, location: Sequence[str | int]) -> _KeyPlace:
        place = cls(tree, tree)
        for part in location:
            place._enter(part)
        return place

    def _enter(self, part: str | int) -> None:
        here = self.shape
        if here is not None and here.tag and not self.kind and part in here.kinds:
            self.kind = str(part)
        elif part == "[key]":  # the free name itself, not its value; the step before entered it
            self.shape = self.steps[-1].owner.name
        # Otherwise the part names one of the types that the value does not have.
        elif here is not None and (here.kinds or here.item or here.value):
            block = here.kinds.get(self.kind)
            self.steps.append(_Step(part, here, self.kind))
            self.shape = block.keys.get(str(part)) if block is not None else here.item or here.value
            self.kind = ""

    @property
    def key(self) -> str:
        """Dotted key, without the kinds of blocks, which are no keys."""
        return _dotted(self.steps)

    def unknown(self, given: Any) -> str:
        """Explain an unknown key, with the value that was given for it."""
        *above, last = self.steps
        keys = last.owner.kinds[last.kind].keys
        others = [kind for kind, block in last.owner.kinds.items() if last.part in block.keys]
        joined = self.key.replace(".", "_")  # policy_endpoint for policy.endpoint
        hint = f"it is a key of kind {' and '.join(others)}; " if others else near(joined, self.tree.paths(), cutoff=1)
        hint = hint or near(last.part, keys) or self._elsewhere(str(last.part), given)
        block = _dotted(above) or "the top level"
        return f"{self.key}: no such key; {hint}{block}{last.kind and f' of kind {last.kind}'} has: {', '.join(keys)}"

    def _elsewhere(self, name: str, given: Any) -> str:
        """Suggest keys of other blocks: of this name, inside an unknown block, or mistyped."""
        paths = [(path, path.rpartition(".")[2]) for path in dict.fromkeys(self.tree.paths())]
        places = [path for path, key in paths if key == name]
        if not places and isinstance(given, Mapping):
            places = [path for path, key in paths if key in given]
        elif not places:
            first = {key: path for path, key in reversed(paths)}
            places = [first[key] for key in difflib.get_close_matches(name, first, n=MAX_NEAR, cutoff=OTHER_BLOCK)]
        return f"did you mean {' or '.join(places[:MAX_NEAR])}? " if places else ""

    def wrong_kind(self, given: Any) -> str:
        """Explain a block without a kind, or with an unknown one."""
        if self.shape is None or not isinstance(given, Mapping):
            return self.refused(given, "")
        tag = self.shape.tag
        got = f"there is no {tag} {describe_value(given[tag])}" if tag in given else f"{tag} is required, and not given"
        return f"{self.key}: {got}; {near(given.get(tag), self.shape.kinds)}{self.wanted()}"

    def own_words(self, message: str, given: Any) -> str:
        """Explain an error of our own models, whose message may begin with a key of the block."""
        if not self.steps:
            return message  # it names its keys itself
        if self.shape is None or not self.shape.kinds:
            return f"{self.key}: {message} (got {describe_value(given)})"
        first = message.partition(":")[0].partition(".")[0]
        return f"{self.key}{'.' if first in self.shape.kinds[self.kind].keys else ': '}{message}"

    def refused(self, given: Any, message: str) -> str:
        """Explain a value that is not allowed."""
        if self.shape is None:
            return f"{self.key}: {message} (got {describe_value(given)})"
        return f"{self.key}: got {describe_value(given)}; {near(given, self.shape.schema.get('enum', ()))}{self.wanted(given)}"

    def wanted(self, given: Any = None) -> str:
        """Describe what is allowed, with an example if that is no plain value."""
        shape = self.shape
        if shape is None:
            return "see docs/configuration.md"
        allowed = f"allowed: {shape.allowed()}"
        if shape.blocks:
            return f"{allowed}; {_keys(shape)}; e.g. {self._example(shape.example(self.kind))}"
        if shape.item is not None and isinstance(given, str):
            return f"{allowed}; e.g. {self._example([given])}"
        if shape.schema.get("examples"):
            return f"{allowed}; e.g. {self._example(shape.example())}"
        return allowed

    def _example(self, value: Any) -> str:
        """Return an assignment of ``value`` here that is valid by itself.

        It assigns as much of the tree as must be given together.
        """
        alone = [True]  # the first key, and each whose block requires no other key
        for step in self.steps[1:]:
            block = step.owner.kinds.get(step.kind)
            alone.append(block is not None and not step.owner.tag and block.required <= {step.part})
        top = [*alone, False].index(False)
        for step in reversed(self.steps[top:]):
            if step.owner.kinds:
                value = {**step.owner.example(step.kind), str(step.part): value}
            else:
                value = [value] if step.owner.item is not None else {str(step.part): value}
        return assignment(_dotted(self.steps[:top]), value)


def _dotted(steps: Iterable[_Step]) -> str:
    return ".".join(str(step.part) for step in steps)


def _keys(shape: Shape) -> str:
    """Return a text such as ``keys: width, height, optional scale``, for each kind if several."""
    if "" in shape.blocks:
        return f"keys: {_listed(shape.blocks[''])}"
    tag = shape.tag or (shape.item.tag if shape.item is not None else "")
    return f"by {tag}: {'; '.join(f'{kind} ({_listed(block)})' for kind, block in shape.blocks.items())}"


def _listed(block: Shape) -> str:
    required = [key for key in block.keys if key in block.required]
    optional = [key for key, shape in block.keys.items() if key not in block.required and "const" not in shape.schema]
    if optional:
        optional[0] = f"optional {optional[0]}"
    return ", ".join(required + optional)
