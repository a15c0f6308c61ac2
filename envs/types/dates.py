"""Dates in tasks and configurations, in ISO 8601."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

YEARS = (1971, 2199)
"""First and last year of a page's clock."""


def read_date(text: str) -> float:
    """Seconds since 1970 of ``2024-05-01`` or ``2024-05-01T09:30+02:00``; in UTC without a zone.

    Raises:
        ValueError: it is none, or of a year that no page's clock has.
    """
    try:
        given = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text!r} is no date; write 2024-05-01 or 2024-05-01T09:30Z") from None
    if not YEARS[0] <= given.year <= YEARS[1]:
        raise ValueError(f"the year of {text!r} is not from {YEARS[0]} to {YEARS[1]}")
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()


def _checked(text: str) -> str:
    if text:
        read_date(text)
    return text


def _as_text(value: Any) -> Any:
    """A date that YAML has read, as the text that was written."""
    return value.isoformat() if isinstance(value, date) else value


PageDate = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked)]
"""A text that `read_date` reads, or an empty one."""
