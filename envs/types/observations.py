"""What the policy sees."""

from __future__ import annotations

from pydantic import Field

from envs.types.record import Record


class Element(Record):
    """One interactive element that the policy may name, in reading order."""

    index: int = Field(ge=1)
    """Number in this observation, from 1."""
    tag: str
    """Kind shown to the policy: button, link, input, password, textarea, checkbox, radio, select, option, text…"""
    text: str
    """Visible label, shortened."""
    value: str = ""
    """Current value of a field, shortened."""
    checked: bool = False
    """A checkbox or radio is on; a tab or option is selected."""
    focused: bool = False
    """The element has the keyboard focus."""
    box: tuple[float, float, float, float]
    """x, y, width, height in CSS pixels of the viewport."""


class Observation(Record):
    """What the policy sees before a step. The screenshot travels beside it as JPEG bytes, never inside."""

    instruction: str
    elements: tuple[Element, ...]
    url: str
    viewport: tuple[int, int]
    """width, height in CSS pixels; the screenshot has the same size."""
    error: str | None = None
    """Why the previous action had no effect, with a hint; ``None`` when it was carried out."""
