"""What the policy may do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from envs.types.record import Record


class Click(Record):
    """Press and release the mouse on an element."""

    type: Literal["click"] = "click"
    element: int


class Type(Record):
    """Click a field, empty it and type the text."""

    type: Literal["type"] = "type"
    element: int
    text: str


class Select(Record):
    """Choose an option of a drop-down list by its visible label."""

    type: Literal["select"] = "select"
    element: int
    text: str


class Invalid(Record):
    """What the policy wrote is no action. The page is not touched; the reason goes into the next observation."""

    type: Literal["invalid"] = "invalid"
    reason: str


Action = Annotated[Click | Type | Select | Invalid, Field(discriminator="type")]
