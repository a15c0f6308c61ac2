"""Lazy imports: names that a package loads from its modules on first use."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: gives the names of ``modules``, by module.

    The names also stand under ``TYPE_CHECKING``, for type checkers, which know nothing of this.
    """
    where = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(where[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
