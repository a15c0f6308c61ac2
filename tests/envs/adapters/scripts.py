"""The scripts of `reference` as parameters of tests; not there, since it is imported by Pythons of
frameworks, which have no pytest."""

from __future__ import annotations

from typing import Any

import pytest

from envs.sites import build_of, find_recipe

from .reference import RECIPES, SCRIPTS


def every_script() -> list[Any]:
    """All ids as parameters of a test; those on a recipe that is not built here are skipped."""
    parameters: list[Any] = [*SCRIPTS]
    for name in RECIPES:
        site = name.partition("-")[0]
        missing = pytest.mark.skipif(
            not build_of(find_recipe(site)).finished, reason=f"run python -m flows.sites build {site}"
        )
        parameters.append(pytest.param(name, marks=missing))
    return parameters
