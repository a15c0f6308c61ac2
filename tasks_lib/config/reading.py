"""Reads configurations: paths, presets, assignments, and errors that name the key."""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from envs.types import ConfigError, near
from tasks_lib.config.refusals import describe_value, explain_all
from tasks_lib.config.shapes import Shape
from tasks_lib.config.values import child, read_value
from training.config import Settings

PROJECT = Path(__file__).resolve().parents[2]
"""The checkout: where ``datasets/`` and ``deployments/`` lie."""
PRESETS = PROJECT / "deployments" / "presets"

RUN_NAME = r"^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$"
"""Of a folder below ``root``; empty: made up from other values."""


def resolve_path(path: str) -> Path:
    """A path from the configuration: absolute, or relative to the project."""
    given = Path(path).expanduser()
    return given if given.is_absolute() else PROJECT / given


def load_preset(name: str, keys: Collection[str] = ()) -> dict[str, Any]:
    """The values of a preset file.

    Args:
        name: Of the file, without its ending.
        keys: Of the configuration that it is for.

    Raises:
        ConfigError: there is no such preset, with those that fit ``keys``; or what is wrong with the file.
    """
    path = PRESETS / f"{name}.yaml"
    if not path.exists():
        known = presets_of(keys) if "preset" in keys else sorted(found.stem for found in PRESETS.glob("*.yaml"))
        raise ConfigError(f"there is no preset {name!r}; {near(name, known)}the presets are: {', '.join(known)}")
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no preset: a block of keys is expected, got {describe_value(values)}")
    return {"preset": name, **values}


def presets_of(keys: Collection[str]) -> list[str]:
    """Names of the presets that have no other keys than these."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if load_preset(path.stem).keys() <= {*keys, "preset"})


def parse_assignments(assignments: list[str], model: type[Settings] | None = None) -> dict[str, Any]:
    """``["a.b=1", "c=x"]`` as a nested mapping; values are read as `read_value` does.

    Args:
        model: Whose keys take which values; ``None``: they are YAML.
    """
    tree_shape = None if model is None else Shape.of_model(model)
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
            node[leaf] = read_value(value, functools.reduce(child, [*parents, leaf], tree_shape))
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


def resolve(model: type[Settings], values: dict[str, Any], what: str = "the configuration") -> Any:
    """Validate ``values``; ``ConfigError`` has one line for each bad key of ``what``, with its allowed range or the known names."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = explain_all(Shape.of_model(model), error.errors())
        raise ConfigError(f"{what} is not valid:\n" + "\n".join(f"  {line}" for line in lines)) from None
