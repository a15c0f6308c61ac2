"""Design2Code's parts: published colour pairs, SSIM by its formula, and one part per mutation."""

from __future__ import annotations

import importlib
import math
from difflib import SequenceMatcher

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from envs.rewards.design2code import (
    DesignScore,
    Image,
    PageBlocks,
    TextBlock,
    ciede2000,
    design_score,
    difference,
    lab,
    match_blocks,
    ssim,
)
from envs.rewards.design2code.matching import common_subsequence, letter_bits
from envs.types import JudgeError

PARTS = ("block_match", "text", "position", "colour")


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [  # from the table of test data in Sharma, Wu and Dalal 2005
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 3.1571, -77.2803), (50, 0, -82.7485), 2.8615),
        ((50, 2.8361, -74.0200), (50, 0, -82.7485), 3.4412),
        ((50, -1.3802, -84.2814), (50, 0, -82.7485), 1.0000),
        ((50, 0, 0), (50, -1, 2), 2.3669),
        ((50, 2.4900, -0.0010), (50, -2.4900, 0.0009), 7.1792),
        ((50, 2.4900, -0.0010), (50, -2.4900, 0.0011), 7.2195),
        ((50, 2.5, 0), (50, 0, -2.5), 4.3065),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((50, 2.5, 0), (61, -5, 29), 22.8977),
        ((50, 2.5, 0), (56, -27, -3), 31.9030),
        ((60.2574, -34.0099, 36.2677), (60.4626, -34.1751, 39.4387), 1.2644),
        ((2.0776, 0.0795, -1.1350), (0.9033, -0.0636, -0.5514), 0.9082),
    ],
)
def test_published_colour_differences(
    first: tuple[float, float, float], second: tuple[float, float, float], expected: float
) -> None:
    assert ciede2000(first, second) == pytest.approx(expected, abs=1e-4)
    assert ciede2000(second, first) == pytest.approx(expected, abs=1e-4)


def test_known_colours() -> None:
    assert lab((255, 255, 255)) == pytest.approx((100, 0, 0), abs=0.02) and lab((0, 0, 0)) == pytest.approx((0, 0, 0))
    assert lab((255, 0, 0)) == pytest.approx((53.24, 80.09, 67.20), abs=0.02)
    assert difference((0, 0, 0), (255, 255, 255)) == pytest.approx(100, abs=0.01)


def noise(height: int = 40, width: int = 50, seed: int = 0) -> Image:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def test_ssim_of_flat_images_by_hand() -> None:
    """No variance: only the luminance term (2xy + c1) / (x^2 + y^2 + c1) is left."""
    dark, light = (np.full((20, 30), value, dtype=np.uint8) for value in (100, 150))
    c1 = (0.01 * 255) ** 2
    assert ssim(dark, light) == pytest.approx((2 * 100 * 150 + c1) / (100**2 + 150**2 + c1))


def test_ssim_of_one_window_by_hand() -> None:
    x, y = noise(11, 11)[..., 0], noise(11, 11, 1)[..., 0]
    bell = np.exp(-(np.arange(-5, 6) ** 2) / (2 * 1.5**2))
    weights = np.outer(bell, bell) / np.outer(bell, bell).sum()
    a, b = x.astype(float), y.astype(float)
    mx, my = (weights * a).sum(), (weights * b).sum()
    vx, vy, cov = (
        (weights * (a - mx) ** 2).sum(),
        (weights * (b - my) ** 2).sum(),
        (weights * (a - mx) * (b - my)).sum(),
    )
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    expected = (2 * mx * my + c1) * (2 * cov + c2) / ((mx**2 + my**2 + c1) * (vx + vy + c2))
    assert ssim(x, y) == pytest.approx(expected)


def test_ssim_is_one_only_for_equals_and_symmetric() -> None:
    one, other = noise(), noise(seed=1)
    assert ssim(one, one) == pytest.approx(1) and ssim(one, other) == pytest.approx(ssim(other, one))
    assert ssim(one, other) < 0.2
    assert ssim(one, one[:30]) < 1  # a missing part is different


@pytest.mark.parametrize(
    "image", [np.zeros((5, 90), np.uint8), np.zeros((20, 20, 4), np.uint8), np.zeros((20, 20)), np.zeros(9, np.uint8)]
)
def test_what_is_no_screenshot_is_refused(image: Image) -> None:
    with pytest.raises(JudgeError, match="screenshot of"):
        ssim(image, image)


def page(count: int = 6, width: float = 1280, height: float = 720) -> PageBlocks:
    """Lines of different words."""
    words = ("Welcome home", "Latest news", "Sign in here", "Contact people", "About privacy", "Free delivery")
    blocks = [
        TextBlock(text=f"{words[at % 6]} {at}", left=100, top=10 + 100 * at, width=200, height=40, colour=(20, 40, 60))
        for at in range(count)
    ]
    return PageBlocks(width=width, height=height, blocks=tuple(blocks))


def mutated(**change: object) -> PageBlocks:
    whole = page()
    return whole.model_copy(update={"blocks": (whole.blocks[0].model_copy(update=change), *whole.blocks[1:])})


def drawn(of: PageBlocks) -> Image:
    """Blocks as filled rectangles: a stand-in for rendering."""
    image = np.full((int(of.height), int(of.width), 3), 255, dtype=np.uint8)
    for block in of.blocks:
        top, left = int(block.top), int(block.left)
        image[top : top + int(block.height), left : left + int(block.width)] = block.colour
    return image


def values(score: DesignScore) -> dict[str, float]:
    return {name: getattr(score, name) for name in PARTS}


@pytest.mark.parametrize("count", [0, 1, 6])
def test_identity_is_one(count: int) -> None:
    one = page(count)
    score = design_score(one, one, (drawn(one), drawn(one)))
    assert score.final == pytest.approx(1) and score.visual_name == "ssim"
    assert (score.matched, score.missing, score.extra) == (count, 0, 0)


@pytest.mark.parametrize(
    ("change", "part", "value"),
    [
        ({"text": "Welcome hone 0"}, "text", (5 + 26 / 28) / 6),
        ({"left": 228.0}, "position", (5 + 0.9) / 6),
        ({"top": 82.0, "left": 228.0}, "position", (5 + 0.9) / 6),
        ({"colour": (20, 40, 61)}, "colour", None),
        ({"width": 328.0}, "position", (5 + 0.95) / 6),
    ],
)
def test_a_mutation_lowers_its_own_part(change: dict[str, object], part: str, value: float | None) -> None:
    found = values(design_score(page(), mutated(**change)))
    assert 0.5 < found.pop(part) < 1 and set(found.values()) == {1.0}
    if value is not None:
        assert getattr(design_score(page(), mutated(**change)), part) == pytest.approx(value)


def test_a_resized_block_shows_in_the_picture_too() -> None:
    wide = mutated(left=90.0, width=220.0)  # the same centre
    score = design_score(page(), wide, (drawn(page()), drawn(wide)))
    assert values(score) == dict.fromkeys(PARTS, 1.0) and score.visual is not None and score.visual < 1
    assert score.final is not None and score.final == pytest.approx((4 + score.visual) / 5)


def test_colour_by_hand() -> None:
    score = design_score(page(1), page(1).model_copy(update={"blocks": (mutated(colour=(255, 255, 255)).blocks[0],)}))
    assert score.colour == pytest.approx(1 - difference((20, 40, 60), (255, 255, 255)) / 100)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_missing_or_extra_block_lowers_the_match_by_its_area(swapped: bool) -> None:
    short = page().model_copy(update={"blocks": page().blocks[1:]})
    score = design_score(short, page()) if swapped else design_score(page(), short)
    assert score.block_match == pytest.approx(10 / 11) and (score.missing, score.extra) == (1 - swapped, int(swapped))
    assert score.text == score.position == score.colour == 1


def test_neighbours_that_are_one_block_in_the_other_page_are_merged() -> None:
    whole = page()
    first = whole.blocks[2]
    halves = (
        first.model_copy(update={"text": "Sign in", "width": 100.0}),
        first.model_copy(update={"text": "here 2", "left": 200.0, "width": 100.0}),
    )
    split = whole.model_copy(update={"blocks": (*whole.blocks[:2], *halves, *whole.blocks[3:])})
    for score in (design_score(whole, split), design_score(split, whole)):
        assert score.final == pytest.approx(1) and score.matched == 6


def test_of_equal_texts_the_neighbours_decide() -> None:
    def listing(*texts: str) -> list[TextBlock]:
        return [
            TextBlock(text=text, left=0, top=30.0 * at, width=90, height=20, colour=(0, 0, 0))
            for at, text in enumerate(texts)
        ]

    reference = listing("Buy", "apples", "Buy", "wine")
    for built, top in ((listing("wine list", "Buy", "wine"), 60), (listing("Buy", "apples"), 0)):
        found = match_blocks(reference, built)
        assert [pair.reference.top for pair in found.pairs if pair.built.text == "Buy"] == [top]


def test_places_are_shares_of_each_page() -> None:
    blocks = [
        block.model_copy(update={name: 2 * getattr(block, name) for name in ("left", "top", "width", "height")})
        for block in page().blocks
    ]
    assert design_score(page(), PageBlocks(width=2560, height=1440, blocks=tuple(blocks))).position == pytest.approx(1)


def test_nothing_in_common_leaves_the_picture() -> None:
    other = PageBlocks(width=1280, height=720, blocks=(page().blocks[0].model_copy(update={"text": "xyzzy"}),))
    score = design_score(page(), other, (drawn(page()), drawn(page())))
    assert values(score) == dict.fromkeys(PARTS, 0.0) and score.final == pytest.approx(0.2)
    empty = PageBlocks(width=10, height=10)
    assert design_score(empty, empty).final is None and design_score(empty, empty).part().value is None
    assert design_score(empty, page()).final == 0


def test_clip_is_named_so_only_when_it_is_given() -> None:
    pictures = (drawn(page()), drawn(page()))
    with_clip = design_score(page(), page(), pictures, clip=lambda _a, _b: 0.5)
    assert (
        with_clip.visual_name == "clip"
        and with_clip.final == pytest.approx(0.9)
        and "clip 0.500" in with_clip.part().evidence
    )
    without = design_score(page(), page(), pictures).part().evidence
    assert "ssim 1.000" in without and "clip" not in without
    with pytest.raises(JudgeError, match="without screenshots"):
        design_score(page(), page(), clip=lambda _a, _b: 0.5)
    for wrong in (math.nan, 7.0):
        with pytest.raises(JudgeError, match="expected a cosine"):
            design_score(page(), page(), pictures, clip=lambda _a, _b, given=wrong: given)


def test_bad_blocks_are_refused() -> None:
    good = page().blocks[0].model_dump()
    for field, wrong in (("width", 0), ("height", -1), ("text", ""), ("colour", (0, 0, 256)), ("left", "far")):
        with pytest.raises(ValidationError, match=field):
            TextBlock.model_validate(good | {field: wrong})


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_longest_common_subsequence_bounds_the_ratio(first: str, second: str) -> None:
    rows = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            rows[i + 1][j + 1] = rows[i][j] + 1 if a == b else max(rows[i][j + 1], rows[i + 1][j])
    length = common_subsequence(letter_bits(first), len(first), second)
    assert length == rows[-1][-1]
    assert 2 * length + 1e-9 >= SequenceMatcher(None, second, first, autojunk=False).ratio() * (
        len(first) + len(second)
    )


TEXTS = st.lists(st.text("abc de", min_size=1, max_size=8), max_size=6)


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_parts_are_bounded_and_no_area_is_lost(first: list[str], second: list[str]) -> None:
    pages = [
        PageBlocks(
            width=100,
            height=100,
            blocks=tuple(
                TextBlock(text=text, left=9.0 * at, top=0, width=9, height=5, colour=(at, 0, 0))
                for at, text in enumerate(texts)
            ),
        )
        for texts in (first, second)
    ]
    score = design_score(*pages)
    assert all(value is None or 0 <= value <= 1 for value in (*values(score).values(), score.final))
    assert score.matched + score.missing <= len(first) and score.matched + score.extra <= len(second)
    if first == second and first:
        assert score.final == 1


@pytest.mark.parametrize("height", [11, 30, 31, 40, 41, 57])
def test_ssim_in_bands_is_ssim_at_once(height: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(height)
    first, second = (rng.integers(0, 256, (height + extra, 23, 3)).astype(np.uint8) for extra in (0, 5))
    module = importlib.import_module("envs.rewards.design2code.ssim")  # the package has a function of that name
    monkeypatch.setattr(module, "BAND", 10**6)
    at_once = ssim(first, second)
    for band in (1, 7, 20, 30):
        monkeypatch.setattr(module, "BAND", band)
        assert ssim(first, second) == pytest.approx(at_once, abs=1e-12)
