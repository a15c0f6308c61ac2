"""Set of marks: the screenshot with a box and a number for each element of the list."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from envs.types import Element

COLOURS = ("#d00000", "#0050d0", "#007a20", "#a000a0", "#b05000", "#007080")
"""Colours of marks, taken in turn so that neighbours differ. All are dark enough for white numbers
(contrast above 4.5)."""

FONT_SIZE = 11
"""Font size of the numbers in pixels: the smallest that a model reads at 1280 x 720 without
covering a line of text."""

TAG_WEIGHT = 4
"""Weight of a hidden number compared with a hidden part of an element."""

Box = tuple[float, float, float, float]

QUALITY = 80
"""JPEG quality, the same as of the screenshots."""


def draw(screenshot: bytes, elements: Iterable[Element]) -> bytes:
    """Draw the boxes and numbers of the elements in the viewport, and return the JPEG. Texts have
    none.

    Args:
        screenshot: JPEG or PNG of the viewport, at any device scale.
    """
    shown = [element for element in elements if element.in_viewport and element.tag != "text"]
    with Image.open(io.BytesIO(screenshot)) as image:
        picture = image.convert("RGB")
    out = io.BytesIO()
    _mark(picture, shown).save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


def draw_scaled(screenshot: bytes, elements: Iterable[Element], viewport: tuple[int, int]) -> bytes:
    """Draw marks on a screenshot whose pixels are not CSS pixels: boxes are scaled to it."""
    with Image.open(io.BytesIO(screenshot)) as image:
        x, y = image.width / viewport[0], image.height / viewport[1]
    moved = [
        element.model_copy(
            update={"box": (element.box[0] * x, element.box[1] * y, element.box[2] * x, element.box[3] * y)}
        )
        for element in elements
    ]
    return draw(screenshot, moved)


def place_tag(box: Box, size: tuple[float, float], avoid: NDArray[np.float64], picture: tuple[int, int]) -> Box:
    """Choose the place of a number at a corner of its element's box.

    It is the place that hides least of what is to be avoided.

    Args:
        box: x, y, width, height of the element.
        size: Width and height of the number.
        avoid: (n, 4) left, top, right, bottom of the other elements and of the numbers that are
            there already.
        picture: Width and height of the picture.

    Returns:
        left, top, right, bottom, inside of the picture.
    """
    x, y, width, height = box
    wide, high = size
    corners = ((x, y - high), (x + width, y), (x + width - wide, y - high), (x - wide, y), (x, y + height), (x, y))
    top_lefts = np.clip(np.array(corners), 0, np.maximum(np.array(picture) - size, 0))
    places = np.hstack([top_lefts, top_lefts + np.array(size)])
    low = np.maximum(places[:, None, :2], avoid[None, :, :2])
    high_end = np.minimum(places[:, None, 2:], avoid[None, :, 2:])
    hidden = np.maximum(high_end - low, 0).prod(axis=2).sum(axis=1)
    left, top, right, bottom = places[int(hidden.argmin())].tolist()
    return left, top, right, bottom


def _mark(picture: Image.Image, elements: list[Element]) -> Image.Image:
    pen, font = ImageDraw.Draw(picture), _font()
    boxes = np.array([element.box for element in elements]).reshape(-1, 4)
    boxes[:, 2:] += boxes[:, :2]
    tags = np.zeros((0, 4))
    for element in elements:
        colour = COLOURS[element.index % len(COLOURS)]
        x, y, width, height = element.box
        pen.rectangle((x, y, x + max(1.0, width - 1), y + max(1.0, height - 1)), outline=colour, width=1)
        left, top, right, bottom = pen.textbbox((0, 0), str(element.index), font=font)
        # A number hidden by another is worse than a hidden piece of a label.
        size, avoid = (right - left + 4, bottom - top + 4), np.vstack([boxes, *[tags] * TAG_WEIGHT])
        place = place_tag(element.box, size, avoid, picture.size)
        tags = np.vstack([tags, place])
        pen.rectangle(place, fill=colour)
        pen.text((place[0] + 2 - left, place[1] + 2 - top), str(element.index), fill="white", font=font)
    return picture


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(FONT_SIZE)  # comes with Pillow: the same on every machine
