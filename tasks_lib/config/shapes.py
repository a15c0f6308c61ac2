"""Structure of a configuration's keys, read from its models' JSON schema.

A key holds a plain value, a block of keys, a block of several kinds, or a list of blocks.

Messages and docs/configuration.md are made from it, so that a new key or block needs no texts
there.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import yaml
from pydantic import BaseModel

Schema = Mapping[str, Any]

WORDS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
"""Words for the bounds of numbers, by their name in the schema."""


@dataclass(frozen=True)
class Shape:
    """Shape of the values of one key."""

    schema: Schema
    """JSON schema of the key, with its description, default and examples.

    References are resolved, and ``null`` is removed.
    """
    defs: Schema
    nullable: bool = False
    model: str = ""
    """Name of the model, if this is a block of one kind; else empty."""

    @classmethod
    @cache
    def of_model(cls, model: type[BaseModel]) -> Shape:
        """Return the whole tree of a model."""
        schema = model.model_json_schema()
        return cls._of(schema, schema.get("$defs", {}))

    @classmethod
    def _of(cls, schema: Schema, defs: Schema) -> Shape:
        nullable, model = False, ""
        while True:
            if "$ref" in schema:
                model = schema["$ref"].rpartition("/")[2]
                schema = {**defs[model], **{key: value for key, value in schema.items() if key != "$ref"}}
                continue
            choices = [choice for choice in schema.get("anyOf", ()) if choice.get("type") != "null"]
            if len(choices) != 1:
                return cls(schema, defs, nullable, model)
            nullable = nullable or len(schema["anyOf"]) > 1
            schema = {**choices[0], **{key: value for key, value in schema.items() if key != "anyOf"}}

    @property
    def description(self) -> str:
        return str(self.schema.get("description", ""))

    @property
    def short(self) -> str:
        """Description of the plain value that may stand for a block; empty: none may.

        It comes from ``json_schema_extra`` of the model.
        """
        return str(self.schema.get("short", ""))

    @cached_property
    def tag(self) -> str:
        """Key that names the kind of a block; empty if there is one kind."""
        return str(self.schema.get("discriminator", {}).get("propertyName", ""))

    @cached_property
    def kinds(self) -> dict[str, Shape]:
        """Shapes of the block by kind, with an empty name if there is one kind.

        Empty if this is no block.
        """
        if self.tag:
            kinds = {
                kind: self._of({"$ref": ref}, self.defs)
                for kind, ref in self.schema["discriminator"]["mapping"].items()
            }
            order = [choice.get("$ref") for choice in self.schema["oneOf"]]
            return dict(sorted(kinds.items(), key=lambda item: order.index(f"#/$defs/{item[1].model}")))
        return {"": self} if "properties" in self.schema else {}

    @cached_property
    def keys(self) -> dict[str, Shape]:
        """Shapes of a block of one kind, by key."""
        return {key: self._of(schema, self.defs) for key, schema in self.schema.get("properties", {}).items()}

    @property
    def required(self) -> frozenset[str]:
        return frozenset(self.schema.get("required", ()))

    @cached_property
    def item(self) -> Shape | None:
        """Shape of the items of a list; ``None`` if this is no list."""
        item = self.schema.get("items") or next(iter(self.schema.get("prefixItems", ())), None)
        return self._of(item, self.defs) if isinstance(item, Mapping) else None

    @cached_property
    def value(self) -> Shape | None:
        """Shape of the values of a mapping with free keys; ``None`` if this is none."""
        schema = self.schema.get("additionalProperties")
        return self._of(schema, self.defs) if isinstance(schema, Mapping) else None

    @cached_property
    def name(self) -> Shape | None:
        """Shape of the keys of a mapping with free keys; ``None`` if any key is allowed."""
        names = self.schema.get("propertyNames")
        return self._of(names, self.defs) if isinstance(names, Mapping) else None

    @property
    def blocks(self) -> dict[str, Shape]:
        """Shapes by kind of this block, or of the blocks in this list."""
        return self.kinds or (self.item.kinds if self.item is not None else {})

    def allowed(self) -> str:
        """Describe the type with its bounds, values or pattern: ``integer >= 1 and <= 64``."""
        return self._type() + (" or null" if self.nullable else "")

    def _type(self) -> str:
        schema = self.schema
        if "enum" in schema:
            return f"one of {', '.join(map(str, schema['enum']))}"
        if "const" in schema:
            return str(schema["const"])
        if "anyOf" in schema:
            return " or ".join(self._of(choice, self.defs).allowed() for choice in schema["anyOf"])
        if self.kinds:
            return "a block of keys" + (f", {self.short}" if self.short else "")
        if schema.get("type") == "array":
            return self._list()
        if self.value is not None:
            return f"a mapping of names{f' ({self.name.allowed()})' if self.name is not None else ''} to values, each {self.value.allowed()}"
        bounds = [f"{word} {schema[key]}" for key, word in WORDS.items() if key in schema]
        if "pattern" in schema:
            bounds.append(f"matching {schema['pattern']}")
        if schema.get("minLength"):
            bounds.append("that is not empty")
        names = {"boolean": "true or false", "object": "a mapping of keys to values"}
        kind = str(schema.get("type", "value"))
        return f"{names.get(kind, kind)} {' and '.join(bounds)}".rstrip()

    def _list(self) -> str:
        least, most = self.schema.get("minItems"), self.schema.get("maxItems")
        at_least = f" of {least}" if least and least == most else f", at least {least} item" if least else ""
        if self.item is not None and self.item.kinds:
            return f"a list of blocks{at_least}"
        return f"a list{at_least}{f', each {self.item.allowed()}' if self.item is not None else ''}"

    def example(self, kind: str = "") -> Any:
        """Return a valid value: an example of the model, or one made of the required keys.

        Args:
            kind: Kind of the value, for a block of several kinds.
        """
        schema = self.schema
        if schema.get("examples") and not kind:
            return schema["examples"][0]
        if self.kinds:
            return self._example_block(kind)
        if schema.get("default") is not None:
            return schema["default"]
        for word in ("const", "enum"):
            if word in schema:
                return schema[word] if word == "const" else schema[word][0]
        match schema.get("type"):
            case "array":
                return [self.item.example() if self.item is not None else 1]
            case "object":
                return {}
            case "integer" | "number":
                return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
            case "boolean":
                return True
        return "…"

    def _example_block(self, kind: str) -> dict[str, Any]:
        kind = kind or next(iter(self.kinds))
        block = self.kinds[kind]
        needed = {key: shape.example() for key, shape in block.keys.items() if key in block.required}
        if kind:
            return {self.tag: kind, **needed}
        defaults = {
            key: shape.schema.get("default") for key, shape in block.keys.items() if "const" not in shape.schema
        }
        shown = [
            (key, value) for key, value in defaults.items() if isinstance(value, str | int | float) and value != ""
        ]
        return needed or dict(shown[:1])  # else the first key with a default that is worth showing

    def paths(self, prefix: str = "") -> Iterator[str]:
        """Yield every dotted key below this one, except inside lists."""
        for block in self.kinds.values():
            for key, shape in block.keys.items():
                yield f"{prefix}{key}"
                yield from shape.paths(f"{prefix}{key}.")


def assignment(key: str, value: Any) -> str:
    """Return ``--set key=value`` as it is typed in a shell."""
    if isinstance(value, dict) and len(value) == 1 and not isinstance(next(iter(value.values())), dict | list):
        (inner, value), *_ = value.items()
        key = f"{key}.{inner}"
    return f"--set {shlex.quote(f'{key}={write_value(value)}')}"


def write_value(value: Any) -> str:
    """Write a value as YAML: as JSON, but a text without quotes if YAML reads the same text."""
    try:
        plain = isinstance(value, str) and yaml.safe_load(value) == value
    except yaml.YAMLError:
        plain = False
    return value if plain else json.dumps(value, ensure_ascii=False)
