"""How configurations are read: paths, presets, assignments, and errors that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from envs.types import ConfigError
from training.config import Settings

PROJECT = Path(__file__).resolve().parents[2]
"""The checkout: where ``datasets/`` and ``deployments/`` lie."""
PRESETS = PROJECT / "deployments" / "presets"


def resolve_path(path: str) -> Path:
    """A path from the configuration: absolute, or relative to the project."""
    given = Path(path).expanduser()
    return given if given.is_absolute() else PROJECT / given


def load_preset(name: str) -> dict[str, Any]:
    """The values of a preset file; ``ConfigError`` lists the presets there are."""
    path = PRESETS / f"{name}.yaml"
    if not path.exists():
        known = ", ".join(sorted(found.stem for found in PRESETS.glob("*.yaml")))
        raise ConfigError(f"there is no preset {name!r}; the presets are: {known}")
    values = yaml.safe_load(path.read_text()) or {}
    return {"preset": name, **values}


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """``["a.b=1", "c=x"]`` as a nested mapping; values are read as YAML."""
    tree: dict[str, Any] = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator or not key:
            raise ConfigError(f"--set {assignment!r} is not of the form key.sub=value")
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"--set {assignment!r}: another --set gives {parent} a value of its own")
        try:
            node[leaf] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {assignment!r}: the value is no YAML: {' '.join(str(error).split())}") from None
    return tree


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """``over`` laid over ``base``, mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return merged


def resolve(model: type[Settings], values: dict[str, Any]) -> Any:
    """Validate ``values``; ``ConfigError`` has one line for each bad key, with its allowed range or the known names."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = [_explain(model, problem["loc"], problem["msg"], problem.get("input")) for problem in error.errors()]
        raise ConfigError("the configuration is not valid:\n" + "\n".join(f"  {line}" for line in lines)) from None


def _explain(model: type[Settings], location: tuple[int | str, ...], message: str, value: Any) -> str:
    if not location:  # several keys together
        return message.removeprefix("Value error, ")
    key = ".".join(str(part) for part in location)
    owner: Any = model
    for part in location[:-1]:
        owner = owner.model_fields[part].annotation if isinstance(part, str) and part in owner.model_fields else None
        if owner is None or not hasattr(owner, "model_fields"):
            return f"{key}: {message} (got {value!r})"
    name = str(location[-1])
    if name not in owner.model_fields:
        return f"{key}: no such key; {'.'.join(map(str, location[:-1])) or 'the top level'} has: {', '.join(owner.model_fields)}"
    return f"{key}: {message} (got {value!r}; {_allowed(owner, name)})"


def _allowed(owner: type[Settings], name: str) -> str:
    schema = owner.model_json_schema()["properties"][name]
    words = {
        "minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<", "enum": "one of", "pattern": "matching",
    }  # fmt: skip
    parts = [f"{word} {schema[key]}" for key, word in words.items() if key in schema]
    kind = schema.get("type", "value")
    return f"allowed: {kind} {' and '.join(parts)}".rstrip()
