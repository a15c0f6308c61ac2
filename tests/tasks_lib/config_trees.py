"""The models of all configurations, and every place in them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
from collections.abc import Iterator

from tasks_lib.config import PROJECT
from tasks_lib.config.shapes import Shape
from training.settings import Settings


def sections() -> dict[str, type[Settings]]:
    """All models of configurations: those of docs/configuration.md."""
    loader = importlib.machinery.SourceFileLoader("config_docs", str(PROJECT / "scripts" / "config_docs"))
    spec = importlib.util.spec_from_loader("config_docs", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    found: dict[str, type[Settings]] = module.SECTIONS
    return found


MODELS = sections()
TREES = {name: Shape.of_model(model) for name, model in MODELS.items()}
Path = tuple[str | int, ...]


def walk(shape: Shape, path: Path = (), kinds: Path = ()) -> Iterator[tuple[Path, Path, Shape]]:
    """Every place below the top: its keys, the kinds of the blocks on the way, and what it
    holds."""
    if path:
        yield path, kinds, shape
    if shape.item is not None:
        yield from walk(shape.item, (*path, 0), (*kinds, ""))
    for kind, block in shape.kinds.items():
        for key, inner in block.keys.items():
            yield from walk(inner, (*path, key), (*kinds, kind))
