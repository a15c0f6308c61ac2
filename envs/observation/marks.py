"""Set of marks: the screenshot with a box and a number for each element of the list."""

from __future__ import annotations

import io
from collections.abc import Iterable
from functools import cache

from PIL import Image, ImageDraw, ImageFont

from envs.types import Element

COLOURS = ("#d00000", "#0050d0", "#007a20", "#a000a0", "#b05000", "#007080")
"""Dark enough for white numbers (contrast above 4.5), taken in turn so that neighbours differ."""

FONT_SIZE = 11
"""Pixels; the smallest that a model reads at 1280 x 720 without covering a line of text."""

QUALITY = 80
"""Of the JPEG; the same as of the screenshots."""


def draw(screenshot: bytes, elements: Iterable[Element]) -> bytes:
    """The JPEG with the boxes and numbers of the elements that are in the viewport; texts have none.

    Args:
        screenshot: JPEG or PNG of the viewport, at any device scale.
    """
    shown = [element for element in elements if element.in_viewport and element.tag != "text"]
    with Image.open(io.BytesIO(screenshot)) as image:
        picture = image.convert("RGB")
    return _encode(_mark(picture, shown))


def draw_scaled(screenshot: bytes, elements: Iterable[Element], viewport: tuple[int, int]) -> bytes:
    """As `draw`, for a screenshot whose pixels are not CSS pixels: boxes are stretched from the viewport to it."""
    with Image.open(io.BytesIO(screenshot)) as image:
        x, y = image.width / viewport[0], image.height / viewport[1]
    moved = [
        element.model_copy(
            update={"box": (element.box[0] * x, element.box[1] * y, element.box[2] * x, element.box[3] * y)}
        )
        for element in elements
    ]
    return draw(screenshot, moved)


def place_tag(
    box: tuple[float, float, float, float], size: tuple[float, float], taken: list[tuple[float, float, float, float]]
) -> tuple[float, float, float, float]:
    """Where a number goes (left, top, right, bottom): the first free corner of the box, inside or above, else its top left corner."""
    x, y, width, height = box
    wide, high = size
    corners = ((x, y - high), (x + width - wide, y - high), (x, y + height), (x, y), (x + width - wide, y))
    for left, top in corners:
        place = (left, top, left + wide, top + high)
        if left >= 0 and top >= 0 and not any(_overlap(place, other) for other in taken):
            return place
    return max(0.0, x), max(0.0, y), max(0.0, x) + wide, max(0.0, y) + high


def _mark(picture: Image.Image, elements: list[Element]) -> Image.Image:
    pen, font = ImageDraw.Draw(picture), _font()
    taken: list[tuple[float, float, float, float]] = []
    for element in elements:
        colour = COLOURS[element.index % len(COLOURS)]
        x, y, width, height = element.box
        pen.rectangle((x, y, x + max(1.0, width - 1), y + max(1.0, height - 1)), outline=colour, width=1)
        left, top, right, bottom = pen.textbbox((0, 0), str(element.index), font=font)
        place = place_tag(element.box, (right - left + 4, bottom - top + 4), taken)
        taken.append(place)
        pen.rectangle(place, fill=colour)
        pen.text((place[0] + 2 - left, place[1] + 2 - top), str(element.index), fill="white", font=font)
    return picture


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _encode(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=QUALITY)
    return out.getvalue()


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(FONT_SIZE)  # comes with Pillow: the same on every machine
