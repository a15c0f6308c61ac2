"""Expands a sweep into arms: checked, named configurations from base, grid and list.

Pure functions.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from envs.types import ConfigError
from tasks_lib.config import TrainConfig, merge, resolve
from tasks_lib.config.cluster_spec import ambient_settings
from tasks_lib.config.differences import comparable_settings
from training.settings import Settings

MAX_ARMS = 256
"""Maximum number of arms; more are taken for a typing error.

At the quickstart's ten minutes they take two days.
"""
MAX_NAME = 100
"""Maximum characters of an arm's name. File systems allow 255 bytes, Prefect's pages show some
60."""
MAX_WORD = 24
"""Maximum characters of one value in a name."""
SEED = "seed"
"""Key over whose values results are averaged."""
SWEEP_KEYS = ("run_id", "root")
"""Keys that the sweep sets for its arms."""
EVALUATION_GROUP = "evaluation"
"""Group of keys that decide what is measured, and when. The base sets them, for all arms."""
SAFE = re.compile(r"[A-Za-z0-9._-]+")

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a sweep."""

    run_id: str
    values: Values
    """Values that replace those of the base, by dotted key, in order of the names. The seed is
    last."""
    config: TrainConfig

    @property
    def description(self) -> str:
        """The values as text: ``algorithm.group_size=4, seed=1``."""
        return describe_values(self.values)


def describe_values(values: Mapping[str, Any]) -> str:
    """Return values in a line, as they are given to ``--set``."""
    return ", ".join(f"{key}={_plain(value)}" for key, value in values.items()) or "the base as it is"


def make_arms(
    run_id: str, root: str, base: Mapping[str, Any], grid: Mapping[str, Any], listed: Sequence[Mapping[str, Any]]
) -> tuple[Arm, ...]:
    """Return every arm of a sweep, checked as a whole.

    Args:
        run_id: Name of the sweep; the arms' names begin with it.
        root: Folder of all runs.
        base: Values of a training run, nested; may name a preset.
        grid: Lists of values by key (dotted or nested): all combinations.
        listed: Explicit arms, by key (dotted or nested); with a grid, each with each of its
            combinations.

    Returns:
        Arms in the order of the list, then of the grid's keys by name with the seed last; the last
            key's values change fastest.

    Raises:
        ConfigError: an arm is not valid, two are the same, or there are none or too many.
    """
    if forbidden := [key for key in SWEEP_KEYS if key in base]:
        raise ConfigError(f"base.{forbidden[0]}: the sweep gives each arm its own; set {forbidden[0]} of the sweep")
    overrides = _combined(_columns(grid), [_flat(f"arms[{index}]", values) for index, values in enumerate(listed)])
    arms: list[Arm] = []
    known: dict[str, Arm] = {}
    for name, values in zip(_names(run_id, overrides), overrides, strict=True):
        arm = Arm(name, values, _resolve(name, root, base, values))
        if (twin := known.setdefault(_content(arm.config.model_dump(mode="json")), arm)) is not arm:
            raise ConfigError(
                f"two arms come to the same configuration: {twin.run_id} ({twin.description}) and {name} ({arm.description}); leave one out"
            )
        arms.append(arm)
    return tuple(arms)


def with_known_names(arms: Sequence[Arm], begun: Mapping[str, Mapping[str, Any]]) -> tuple[Arm, ...]:
    """Return the arms; those that were begun under another name keep that name.

    A name can change although the arm is the same: ``1`` may be written ``1.0`` by now, a value may
    have moved from the base to the grid, or another arm would share the name.

    Args:
        begun: Configurations by name (`comparable_settings`).
    """
    named = {arm.run_id for arm in arms}
    known = {_content(values): name for name, values in begun.items() if name not in named}
    renamed = []
    for arm in arms:
        content = _content(comparable_settings(arm.config.model_dump(mode="json")))
        name = None if arm.run_id in begun else known.pop(content, None)
        renamed.append(
            replace(arm, run_id=name, config=arm.config.model_copy(update={"run_id": name})) if name else arm
        )
    return tuple(renamed)


def nest_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted keys as a tree: ``{"a.b": 1}`` is ``{"a": {"b": 1}}``. No key may be inside
    another."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def _content(values: Mapping[str, Any]) -> str:
    """Return a configuration without the sweep's keys, as text. It is equal for arms that are the
    same."""
    return _plain({key: value for key, value in values.items() if key not in SWEEP_KEYS})


def _columns(grid: Mapping[str, Any]) -> dict[str, list[Any]]:
    columns = _flat("grid", grid)
    for key, values in columns.items():
        if not isinstance(values, list):
            raise ConfigError(f"grid.{key}: a list of values is needed, such as [{_plain(values)}]; got {values!r}")
        if not values:
            raise ConfigError(f"grid.{key}: the list is empty; give it values, or leave the key out")
    return columns


def _combined(columns: Mapping[str, list[Any]], listed: Sequence[Values]) -> list[Values]:
    if not columns and not listed:
        raise ConfigError(
            """there is nothing to sweep: give grid, as in --set 'grid={"seed": [0, 1, 2]}', or a list of arms"""
        )
    count = math.prod(len(choices) for choices in columns.values()) * max(1, len(listed))
    if count > MAX_ARMS:
        raise ConfigError(
            f"{count} arms are more than the {MAX_ARMS} that a sweep may have; make sweeps of parts of it"
        )
    combinations = []
    for index, explicit in enumerate(listed or [{}]):
        if shared := sorted(columns.keys() & explicit.keys()):
            raise ConfigError(f"arms[{index}].{shared[0]}: grid has this key too; give it in one of them")
        _check_apart([*columns, *explicit])
        for choice in itertools.product(*(columns[key] for key in _ordered(columns))):
            values = {**explicit, **dict(zip(_ordered(columns), choice, strict=True))}
            combinations.append({key: values[key] for key in _ordered(values)})
    return combinations


def _ordered(keys: Mapping[str, Any]) -> list[str]:
    """Sort keys by name, the seed last.

    A Prefect database need not keep the order in which they were given.
    """
    return sorted(keys, key=lambda key: (key == SEED, key))


def _flat(where: str, values: Mapping[str, Any]) -> Values:
    """Return a tree as values by dotted key."""
    flat: Values = {}
    for key, value in _leaves(values, TrainConfig):
        if key in flat:
            raise ConfigError(f"{where}.{key} is given twice")
        if key in SWEEP_KEYS:
            raise ConfigError(f"{where}.{key}: the sweep gives each arm its own; set {key} of the sweep")
        if key.split(".")[0] == EVALUATION_GROUP:
            raise ConfigError(
                f"{where}.{key}: arms that are not measured alike cannot be compared; set base.{key} instead, for all of them"
            )
        if not all(key.split(".")):
            raise ConfigError(f"{where}: {key!r} is no key; expected something like algorithm.group_size")
        flat[key] = value
    _check_apart(list(flat))
    return flat


def _leaves(values: Mapping[str, Any], model: type[Settings], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values down to the keys of ``model``.

    A mapping that is the value of a key is not divided: its own keys may contain dots.
    """
    for name, value in values.items():
        inner = _model_at(model, str(name))
        if inner is not None and isinstance(value, Mapping) and value:
            yield from _leaves(value, inner, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _model_at(model: type[Settings], key: str) -> type[Settings] | None:
    """Return the settings group that a dotted key names. ``None`` for a single or unknown key."""
    for part in key.split("."):
        field = model.model_fields.get(part)
        if field is None or not (isinstance(field.annotation, type) and issubclass(field.annotation, Settings)):
            return None
        model = field.annotation
    return model


def _check_apart(keys: list[str]) -> None:
    for key in keys:
        if inside := [other for other in keys if other.startswith(f"{key}.")]:
            raise ConfigError(f"{inside[0]} is inside {key}; an arm may give one of them, not both")


def _resolve(name: str, root: str, base: Mapping[str, Any], values: Values) -> TrainConfig:
    try:
        merged = merge(
            merge(merge(ambient_settings(TrainConfig), dict(base)), nest_keys(values)), {"run_id": name, "root": root}
        )
        config: TrainConfig = resolve(TrainConfig, merged)
    except ConfigError as error:
        lines = str(error).removeprefix("the configuration is not valid:\n").splitlines()
        raise ConfigError(
            f"arm {name} ({describe_values(values)}): {'; '.join(line.strip() for line in lines)}"
        ) from None
    return config


# -- names


def _names(sweep: str, arms: Sequence[Values]) -> list[str]:
    """Return names in the order of the arms.

    Each follows from the arm's own values, so that it stays the same when arms are added. Names
    that several arms would share get a hash of the values.
    """
    names = [_name(sweep, values) for values in arms]
    counts = Counter(names)
    return [
        f"{name[:MAX_NAME]}-{_hash(values)}" if counts[name] > 1 else name
        for name, values in zip(names, arms, strict=True)
    ]


def _name(sweep: str, values: Values) -> str:
    """Return ``<sweep>-group_size4-seed1``."""
    name = "-".join([sweep, *(f"{_shortest(key, values)}{_word(value)}" for key, value in values.items())])
    if not values:
        name = f"{sweep}-base"
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]}-{_hash(values)}"


def _shortest(key: str, keys: Mapping[str, Any]) -> str:
    """Return the fewest last parts of a key that distinguish it from the arm's other keys."""
    parts = key.split(".")
    endings = [".".join(parts[start:]) for start in range(len(parts) - 1, -1, -1)]
    others = [other for other in keys if other != key]
    ending = next((part for part in endings if not any(f".{other}".endswith(f".{part}") for other in others)), key)
    return ending if SAFE.fullmatch(ending) else f"{_slug(ending)}-{_hash(ending)}"


def _word(value: Any) -> str:
    """Return a value in the form that a folder's name may contain."""
    plain = _plain(value)
    if len(plain) <= MAX_WORD and SAFE.fullmatch(plain):
        return plain
    return f"{_slug(plain)}-{_hash(value)}".lstrip("-")


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")[: MAX_WORD - 9].strip("-")


def _hash(value: Any) -> str:
    return hashlib.sha256(_plain(value).encode()).hexdigest()[:8]


def _plain(value: Any) -> str:
    """Return a value in the form that ``--set`` reads."""
    if isinstance(value, str):
        return value
    return json.dumps(value, default=str, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
