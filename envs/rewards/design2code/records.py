"""The text blocks of a page, which Design2Code compares."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from envs.types.record import Record


class TextBlock(Record):
    """A run of text in one colour."""

    text: str = Field(min_length=1)
    left: float
    top: float
    width: float = Field(gt=0)
    height: float = Field(gt=0)
    """Height in the unit of the page's size, such as CSS pixels."""
    colour: tuple[int, int, int]
    """Colour of the letters: red, green, blue, 0 to 255."""

    @property
    def area(self) -> float:
        """Area in page units squared."""
        return self.width * self.height

    @property
    def centre(self) -> tuple[float, float]:
        """Centre in page units."""
        return self.left + self.width / 2, self.top + self.height / 2

    @model_validator(mode="after")
    def _colour_has_bytes(self) -> Self:
        if not all(0 <= channel <= 255 for channel in self.colour):
            raise ValueError(f"colour {self.colour} of {self.text!r}: expected three numbers from 0 to 255")
        return self


class PageBlocks(Record):
    """The blocks of one page, in reading order."""

    width: float = Field(gt=0)
    height: float = Field(gt=0)
    """Height of the page."""
    blocks: tuple[TextBlock, ...] = ()
