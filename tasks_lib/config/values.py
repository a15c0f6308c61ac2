"""Reads a value of the command line: a text where its key takes one, else YAML."""

from __future__ import annotations

import re
from typing import Any, ClassVar

import yaml

from envs.types import ConfigError
from tasks_lib.config.shapes import Shape


class _Loader(yaml.SafeLoader):
    """YAML of version 1.2's core schema: PyYAML reads 1.1, in which ``0123`` is 83, ``1:30`` is 90, ``1e3`` a text and ``2024-05-17`` a date."""

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
    """What a text after ``key=`` means.

    Where the key takes a text it is that, as written, or what its quotes enclose; nothing and ``null`` are null where the key takes
    that. Elsewhere it is YAML, in which the texts of lists and blocks are read in the same way.

    Args:
        shape: Of the key; ``None``: there is no such key.

    Raises:
        yaml.YAMLError: it is none.
        ConfigError: it holds itself.
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
            return [_built(loader, each, None if shape is None else shape.item) for each in node.value]
        case yaml.MappingNode():
            keys = [(loader.construct_object(key, deep=True), value) for key, value in node.value]
            return {key: _built(loader, value, child(shape, str(key))) for key, value in keys}
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    if plain and _is_text(shape):
        return _as_written(str(node.value), shape)
    value = loader.construct_object(node, deep=True)
    numeric = shape is not None and shape.schema.get("type") in ("integer", "number")
    return node.value if numeric and isinstance(value, bool) else value  # which pydantic would take for 0 or 1


def child(shape: Shape | None, key: str) -> Shape | None:
    """What a key of a block or mapping holds; of a block of several kinds, that of the first that has it."""
    if shape is None:
        return None
    found = (block.keys[key] for block in shape.kinds.values() if key in block.keys)
    return next(found, shape.value)
