"""Points in thousandths of the viewport: what an oracle names is what an action hits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from envs.actions.target import pixels
from envs.bundled.oracles.parts import spot
from envs.types.actions import GRID

sides = st.tuples(st.integers(1, 4000), st.integers(1, 4000))


def seen(viewport: tuple[int, int]) -> Any:
    return SimpleNamespace(viewport=viewport)


@given(sides, st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)))
def test_a_point_comes_back_to_its_pixel(viewport: tuple[int, int], share: tuple[float, float]) -> None:
    pixel = [int(part * side) for part, side in zip(share, viewport, strict=True)]
    at = spot(seen(viewport), *pixel)
    for one, other, whole, side in zip(
        pixel, pixels(at, viewport), pixels((round(at[0]), round(at[1])), viewport), viewport, strict=True
    ):
        assert int(other) == one
        assert abs(whole - other) <= side / GRID / 2 + 1e-9, "a model writes whole thousandths"


@given(sides, st.tuples(st.integers(-500, 5000), st.integers(-500, 5000)))
def test_any_point_lies_in_the_viewport(viewport: tuple[int, int], point: tuple[int, int]) -> None:
    at = spot(seen(viewport), *point)
    assert all(0 <= share <= GRID for share in at)
    assert all(0 <= each <= side - 1 for each, side in zip(pixels(at, viewport), viewport, strict=True))


def test_the_corners_of_a_viewport() -> None:
    assert pixels((0, 0), (1280, 720)) == (0, 0) and pixels((1000, 1000), (1280, 720)) == (1279, 719)
    assert pixels((500, 500), (1280, 720)) == (640, 360) and spot(seen((1000, 500)), 640, 360) == (640.5, 721)
