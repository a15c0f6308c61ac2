"""Reads a value of the command line: as text where its key takes text, else as YAML."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, NamedTuple

import yaml

from envs.types import ConfigError
from tasks_lib.config.shapes import Shape


class Flag(NamedTuple):
    """A plain option of the command, for a key that is given often; without dashes, its first
    word."""

    key: str
    kind: Literal["value", "list", "switch"]
    metavar: str
    help: str


class _Loader(yaml.SafeLoader):
    """YAML loader with the core schema of version 1.2.

    PyYAML reads version 1.1, in which ``0123`` is 83, ``1:30`` is 90, ``1e3`` a text and
    ``2024-05-17`` a date.
    """

    yaml_implicit_resolvers: ClassVar[dict[Any, Any]] = {}  # type: ignore[misc]


_RESOLVED = {
    "null": r"~|null|Null|NULL|",
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:[0-9][0-9_]*)?\.?[0-9]+(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*\.|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
}
for _name, _pattern in _RESOLVED.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(rf"(?:{_pattern})\Z"), None)


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(node.value).replace("_", "")
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _real(loader: _Loader, node: yaml.ScalarNode) -> float:
    return float(str(node.value).replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_constructor("tag:yaml.org,2002:float", _real)

_QUOTED = re.compile(r"""\s*(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*')\s*""", re.DOTALL)


def read_value(text: str, shape: Shape | None) -> Any:
    """Read the text after ``key=`` as a value of the key.

    Where the key takes text, the value is the text as written, or the text inside its quotes; an
    empty text and ``null`` are null where the key may be null. Other values are YAML, in which the
    texts of lists and blocks are read in the same way.

    Args:
        text: Text to read.
        shape: Shape of the key; ``None``: there is no such key.

    Raises:
        yaml.YAMLError: the text is no YAML.
        ConfigError: the value contains itself.
    """
    if _is_text(shape) and not _QUOTED.fullmatch(text):
        return _as_written(text, shape)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return None if node is None else _built(loader, node, shape)
    except RecursionError:
        raise ConfigError(f"{text[:60]!r} has itself in it") from None
    finally:
        loader.dispose()


def _is_text(shape: Shape | None) -> bool:
    return shape is not None and shape.schema.get("type") == "string"


def _as_written(text: str, shape: Shape | None) -> str | None:
    return None if shape is not None and shape.nullable and text in ("", "~", "null") else text


def _built(loader: _Loader, node: yaml.Node, shape: Shape | None) -> Any:
    match node:
        case yaml.SequenceNode():
            return [_built(loader, item, None if shape is None else shape.item) for item in node.value]
        case yaml.MappingNode():
            keys = [(loader.construct_object(key, deep=True), value) for key, value in node.value]
            return {key: _built(loader, value, child(shape, str(key))) for key, value in keys}
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    if plain and _is_text(shape):
        return _as_written(str(node.value), shape)
    value = loader.construct_object(node, deep=True)
    numeric = shape is not None and shape.schema.get("type") in ("integer", "number")
    # Pydantic would take a bool for 0 or 1.
    return node.value if numeric and isinstance(value, bool) else value


def child(shape: Shape | None, key: str) -> Shape | None:
    """Return the shape of a key of a block or mapping; ``None`` if it has no such key.

    Of a block of several kinds, the first kind that has the key counts.
    """
    if shape is None:
        return None
    shapes = (block.keys[key] for block in shape.kinds.values() if key in block.keys)
    return next(shapes, shape.value)
