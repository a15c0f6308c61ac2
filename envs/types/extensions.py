"""Finds extensions of users by entry point or as ``module:function``.

Both ways work in every process of a run: a worker imports the name where it uses it. There is no
function that registers one, since a call in one process would not reach the workers.
"""

from __future__ import annotations

import importlib
import re
import socket
from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar, cast

from envs.types.errors import ConfigError
from envs.types.near import near

T = TypeVar("T")

_REFERENCE = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<attribute>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")


def is_reference(name: str) -> bool:
    """True if a name has the form ``module:function``; ``host:8080`` has not."""
    return _REFERENCE.fullmatch(name) is not None


class Extensions(Mapping[str, T], Generic[T]):
    """Things of one kind by name: those of the project, then installed entry points.

    `find` also takes ``module:function``.
    """

    def __init__(self, kind: str, group: str, own: Mapping[str, T]) -> None:
        """
        Args:
            kind: Word for one of them in errors: ``reward``, ``site``.
            group: Group of entry points, such as ``rollwright.rewards``. The project's own names
                win.
        """
        self.kind = kind
        self.group = group
        self._own = own

    @property
    def own(self) -> tuple[str, ...]:
        """Names of the project's own."""
        return tuple(self._own)

    def __iter__(self) -> Iterator[str]:
        installed = {point.name for point in entry_points(group=self.group)} - self._own.keys()
        return iter([*self._own, *sorted(installed)])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._own or any(point.name == name for point in entry_points(group=self.group))

    def __getitem__(self, name: str) -> T:
        if name in self._own:
            return self._own[name]
        for point in entry_points(group=self.group):
            if point.name == name:
                return self._loaded(name, f"{point.module}:{point.attr}")
        raise KeyError(name)

    def find(self, name: str) -> T:
        """Return the extension of this name.

        Raises:
            ConfigError: There is none (the message suggests similar names), or it cannot be
                imported here.
        """
        if name in self:
            return self[name]
        if is_reference(name):
            return self._loaded(name, name)
        known = f"there are {', '.join(self)}" if len(self) else "none is installed"
        raise ConfigError(
            f"no {self.kind} {name!r}; {near(name, self)}{known}. For one of your own write module:function, or "
            f"install a package with an entry point of the group {self.group}"
        )

    def _loaded(self, name: str, reference: str) -> T:
        module, _, attribute = reference.partition(":")
        try:
            extension: Any = importlib.import_module(module)
        except Exception as error:
            raise ConfigError(
                f"{self.kind} {name!r}: {module} cannot be imported on {socket.gethostname()}: {type(error).__name__}: {error}. "
                f"Install it there, or put its folder on PYTHONPATH of this process and of every worker"
            ) from error
        for part in attribute.split("."):
            if not hasattr(extension, part):
                public = [key for key in getattr(extension, "__dict__", ()) if not key.startswith("_")]
                raise ConfigError(
                    f"{self.kind} {name!r}: {module} has no {attribute}; {near(part, public)}write module:function"
                )
            extension = getattr(extension, part)
        return cast(T, extension)
