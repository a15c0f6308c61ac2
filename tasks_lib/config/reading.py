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
from training.ledger.aliases import follow_alias
from training.settings import Settings

PROJECT = Path(__file__).resolve().parents[2]
"""Folder of the checkout, which contains ``datasets/`` and ``deployments/``."""
PRESETS = PROJECT / "deployments" / "presets"

RUN_NAME = r"^([A-Za-z0-9_-][A-Za-z0-9._-]*)?$"
"""Pattern for the name of a folder in ``root``; an empty name is made from other values."""


def resolve_path(path: str) -> Path:
    """Return a path of the configuration, which is absolute or relative to the project."""
    expanded = Path(path).expanduser()
    return expanded if expanded.is_absolute() else PROJECT / expanded


def resolve_checkpoint(checkpoint: str) -> Path:
    """Return the folder of a checkpoint: a path, or the version that an alias of a run names.

    An alias is given as ``runs/x@best``. One that does not exist stays in the path, which the check
    of the checkpoint refuses.
    """
    return follow_alias(resolve_path(checkpoint))


def load_preset(name: str, keys: Collection[str] = ()) -> dict[str, Any]:
    """Read the values of a preset file.

    Args:
        name: Name of the file, without its suffix.
        keys: Keys of the configuration that uses the preset.

    Raises:
        ConfigError: there is no such preset (names those that fit ``keys``), or the file is not
            valid.
    """
    path = PRESETS / f"{name}.yaml"
    if not path.exists():
        known = presets_of(keys) if "preset" in keys else sorted(preset.stem for preset in PRESETS.glob("*.yaml"))
        raise ConfigError(f"there is no preset {name!r}; {near(name, known)}the presets are: {', '.join(known)}")
    try:
        values = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} is no preset: a block of keys is expected, got {describe_value(values)}")
    return {"preset": name, **values}


def presets_of(keys: Collection[str]) -> list[str]:
    """Return the names of the presets that have no other keys than these."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml") if load_preset(path.stem).keys() <= {*keys, "preset"})


def parse_assignments(assignments: list[str], model: type[Settings] | None = None) -> dict[str, Any]:
    """Parse assignments such as ``["a.b=1", "c=x"]`` to a nested mapping.

    Args:
        assignments: Texts of the form ``key.sub=value``.
        model: Model whose keys say how values are read (`read_value`); ``None``: as YAML.

    Raises:
        ConfigError: an assignment has another form, or its value cannot be read.
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
    """Return ``base`` with the values of ``over``, merged mapping by mapping."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return merged


def resolve(model: type[Settings], values: dict[str, Any], what: str = "the configuration") -> Any:
    """Validate ``values`` and return the model.

    Raises:
        ConfigError: ``what`` is not valid; has one line for each bad key, with the allowed values.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = explain_all(Shape.of_model(model), error.errors())
        raise ConfigError(f"{what} is not valid:\n" + "\n".join(f"  {line}" for line in lines)) from None
