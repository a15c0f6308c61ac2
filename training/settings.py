"""Base of all settings.

Shallow pydantic models with bounds and descriptions: they become the parameter form of a Prefect
deployment.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

logger = logging.getLogger(__name__)


class Settings(BaseModel):
    """Base of all settings: immutable, validated, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    OLD_NAMES: ClassVar[Mapping[str, str]] = {}
    """New names of renamed keys by their old ones, which are read until the next release."""

    @model_validator(mode="before")
    @classmethod
    def _read_old_names(cls, values: Any) -> Any:
        """Read renamed keys. An old name wins over the new one: presets have the new one, so a
        person wrote the old one."""
        if not isinstance(values, Mapping) or not cls.OLD_NAMES.keys() & values.keys():
            return values
        for old in cls.OLD_NAMES.keys() & values.keys():
            warn_of_old_name(cls.__name__, old, cls.OLD_NAMES[old])
        kept = {name: value for name, value in values.items() if name not in cls.OLD_NAMES}
        return kept | {new: values[old] for old, new in cls.OLD_NAMES.items() if old in values}


@functools.cache
def warn_of_old_name(block: str, old: str, new: str) -> None:
    """Tell once a process that a key has another name."""
    logger.warning("%s: the key %s is called %s now; the old name will not be read after this release", block, old, new)
